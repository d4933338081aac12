"""The small values that calls take and give: keys, widths, failures, reservations."""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from pd_handoff._values.failure_text import sendable
from pd_handoff._values.integers import shown, unfit
from pd_handoff.v1 import metadata_store_pb2 as pb


@dataclass(frozen=True, slots=True)
class Key:
    """Names one hand-off; prefill and decode must use the same one.

    Attributes:
        room: the rendezvous number of the request, 0 to 2**64 - 1. 0 is a room like any other.
        sample: which of n parallel samples of the request, from 0.
        namespace: which of several models or deployments that share a store; None is the client's own.
    """

    room: int
    sample: int = 0
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class Widths:
    """Sizes of a record's variable parts. 0 means "not declared" in what a caller asks for, and "switched off" in a
    store's limits.

    Attributes:
        tokens: elements of `Record.tokens`.
        top_logprobs: elements of `Token.top_logprobs`, of each token.
        token_ids_logprobs: elements of `Token.token_ids_logprobs`, of each token.
        sampling_mask_tokens: elements of `SamplingMask.token_ids`.
        speculative_topk: elements of `SpeculativeState.topk_index`.
        dsa_topk_indices: elements of `SpeculativeState.dsa_topk_indices`.
        customized_info_bytes: bytes of `Record.customized_info`.
        hidden_state_bytes: bytes of `SpeculativeState.hidden_states`.
        engine_state_bytes: bytes of `EngineState.data`.
        draft_tokens: elements of `SpeculativeState.draft_token_ids`.
        attachment_bytes: bytes of `Record.attachments` as encoded: their data, and up to 192 more for each.
    """

    tokens: int = 0
    top_logprobs: int = 0
    token_ids_logprobs: int = 0
    sampling_mask_tokens: int = 0
    speculative_topk: int = 0
    dsa_topk_indices: int = 0
    customized_info_bytes: int = 0
    hidden_state_bytes: int = 0
    engine_state_bytes: int = 0
    draft_tokens: int = 0
    attachment_bytes: int = 0

    def to_proto(self) -> pb.Widths:
        """The message. Raises ValueError or TypeError, naming it, when a width is no unsigned integer of its field's
        size."""
        try:
            return pb.Widths(**{name: getattr(self, name) for name in WIDTH_NAMES})
        except (ValueError, TypeError) as error:
            for name, bits in WIDTH_BITS.items():
                wrong = unfit(getattr(self, name), bits)
                if wrong is not None:
                    raise type(error)(f"widths.{name}: {wrong}") from None
            raise

    @classmethod
    def from_proto(cls, message: pb.Widths) -> Widths:
        """From the message."""
        return cls(**{name: getattr(message, name) for name in WIDTH_NAMES})


WIDTH_NAMES = tuple(field.name for field in fields(Widths))
WIDTH_BITS = {name: 64 if name in {"hidden_state_bytes", "attachment_bytes"} else 32 for name in WIDTH_NAMES}


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a hand-off was aborted, in terms that a gateway can pass on to its user.

    Attributes:
        http_status: 100 to 599.
        reason: UPPER_SNAKE, up to 63 bytes, for programs.
        message: for people. Sent as at most 1,024 bytes of UTF-8, with a question mark for each lone surrogate.
    """

    http_status: int = 500
    reason: str = "ABORTED"
    message: str = ""

    def to_proto(self) -> pb.Failure:
        """The message. Raises TypeError or ValueError, naming the field, for a value that it cannot hold."""
        message = sendable(self.message)
        try:
            return pb.Failure(http_status=self.http_status, reason=self.reason, message=message)
        except TypeError:
            if not isinstance(self.reason, str):
                raise TypeError(f"failure.reason: must be a str, not {shown(self.reason)}") from None
            raise TypeError(f"failure.http_status: must be an int, not {shown(self.http_status)}") from None

    @classmethod
    def from_proto(cls, message: pb.Failure) -> Failure:
        """From the message; what it leaves out is what the store would fill in."""
        return cls(message.http_status or 500, message.reason or "ABORTED", message.message)


@dataclass(frozen=True, slots=True)
class Reservation:
    """A slot held for one Put.

    Attributes:
        key: which hand-off, its namespace filled in.
        token: opaque bytes that prove ownership; keep them secret.
        owner: the idempotency key of the Reserve.
        attempt: which prefill of the key, 0 for the first.
        lease: seconds granted, counted from the store's answer.
        store_epoch: changes when the store comes back empty.
        expected_readers: as reserved, so that a renewal that meets a store that came back empty reserves the same.
        widths: as reserved, likewise.
        request_digest: as reserved, likewise; up to 32 bytes.
    """

    key: Key
    token: bytes
    owner: str
    attempt: int
    lease: float
    store_epoch: str
    expected_readers: int = 1
    widths: Widths | None = None
    request_digest: bytes = b""

    def __repr__(self) -> str:
        """Without the token, which is a credential."""
        return (
            f"Reservation(key={self.key!r}, owner={self.owner!r}, attempt={self.attempt}, lease={self.lease}, "
            f"store_epoch={self.store_epoch!r})"
        )


class _Told:
    __slots__ = ("_response",)  # what the fields of a Published are read from when they are first asked for


@dataclass(frozen=True, slots=True)
class Published(_Told):
    """A Put's confirmation.

    Attributes:
        published_at: by the store's wall clock, UTC.
        store_epoch: changes when the store comes back empty.
    """

    published_at: datetime
    store_epoch: str

    @classmethod
    def from_proto(cls, message: pb.PutResponse) -> Published:
        """From the message; most callers look at none of it."""
        made = _new(cls)
        _tell(made, message)
        return made

    if not TYPE_CHECKING:  # which would take any name for a field

        def __getattr__(self, name: str) -> Any:
            """A field that nobody has asked for yet. Raises AttributeError for anything else."""
            if name == "published_at":
                at = self._response.published_at  # by hand: ToDatetime takes several times as long
                value: Any = _EPOCH + timedelta(0, at.seconds, at.nanos // 1000)
            elif name == "store_epoch":
                value = self._response.store_epoch
            else:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            object.__setattr__(self, name, value)
            return value


_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_new = object.__new__
_tell = _Told._response.__set__  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class ReserveItem:
    """One item of `reserve_many`; what is None comes from the call's own arguments.

    Attributes:
        key: which hand-off; an int is a room.
        owner: idempotency key, up to 256 bytes; made up when None.
        widths: what the record will need.
        attempt: which prefill of the key, from 0.
        request_digest: of what both sides know of the request, up to 32 bytes.
    """

    key: Key | int
    owner: str | None = None
    widths: Widths | None = None
    attempt: int | None = None
    request_digest: bytes | None = None


@dataclass(frozen=True, slots=True)
class GetItem:
    """One item of `get_many`; what is None comes from the call's own arguments.

    Attributes:
        key: which hand-off; an int is a room.
        attempt: the lowest attempt that will do, from 0.
        reader_id: who reads, up to 256 bytes.
        request_digest: of what both sides know of the request, up to 32 bytes.
        attachments: names of those to return.
    """

    key: Key | int
    attempt: int | None = None
    reader_id: str | None = None
    request_digest: bytes | None = None
    attachments: Sequence[str] | None = None


def digest_of_prompt(token_ids: Iterable[int]) -> bytes:
    """A `request_digest` of a prompt: 16 bytes, equal for equal token ids, whether a list or an array of any integer
    type holds them. Raises TypeError or OverflowError for what is no integer of 64 bits."""
    ids = array("q", iter(token_ids))
    if sys.byteorder == "big":
        ids.byteswap()
    return hashlib.blake2b(ids.tobytes(), digest_size=16, person=b"pd-handoff").digest()
