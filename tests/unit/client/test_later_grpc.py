"""A later release of gRPC whose private operations have another form: calls go on the public way, with one warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from pd_handoff import Record, errors
from pd_handoff._transport import grpc_internals, stream, unary
from pd_handoff._transport.session_policy import FEW
from pd_handoff.retries import NO_RETRIES
from pd_handoff.v1 import metadata_store_pb2 as pb

from tests.support.later_grpc import Changed, one_argument_fewer

CALLS = FEW + 6
OPERATIONS = sorted({*unary._NAMES, *stream._NAMES} - {"PropagationConstants"})
OF_A_CALL = ("next_event", "operate", "cancel")
FENCES = [*OPERATIONS, "PropagationConstants", "segregated_call", *OF_A_CALL, "code", "batch_operations"]


class Lacking(Changed):
    """The same; of batches the attribute itself is gone."""

    def __getattr__(self, name: str) -> Any:
        if name == self._name == "batch_operations":
            raise AttributeError(name)
        return super().__getattr__(name)


class ChangedCall(Lacking):
    """As Lacking, with events that are changed likewise."""

    def next_event(self) -> Any:
        if self._name == "next_event":
            return one_argument_fewer()
        return Lacking(self._real.next_event(), self._name)


def change(fence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this operation another one, as a later release might."""
    real = grpc_internals.cygrpc
    later = SimpleNamespace(**{name: getattr(real, name) for name in (*OPERATIONS, "PropagationConstants")})
    later.SegregatedCall = real.SegregatedCall
    if fence in OPERATIONS:
        setattr(later, fence, one_argument_fewer)
    elif fence == "PropagationConstants":
        later.PropagationConstants = SimpleNamespace()
    elif fence == "code":
        made = later.ReceiveStatusOnClientOperation
        later.ReceiveStatusOnClientOperation = lambda *given: made(*given, "more")
    for module in (grpc_internals, unary, stream):
        monkeypatch.setattr(module, "cygrpc", later)
    begin_of: Callable[[Any], Callable[..., Any]] = grpc_internals.begin_of

    def begin(channel: Any) -> Callable[..., Any]:
        if fence == "segregated_call":
            return one_argument_fewer
        return lambda *given: ChangedCall(begin_of(channel)(*given), fence)

    monkeypatch.setattr(grpc_internals, "begin_of", begin)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, store: Any) -> None:
    """Nothing has failed in this process yet."""
    monkeypatch.setattr(grpc_internals, "_given_up", False)
    store.script("Get", pb.GetResponse(store_epoch="e"))
    store.script("Put", pb.PutResponse(store_epoch="e"))
    store.script("Capabilities", pb.CapabilitiesResponse())
    store.serve_sessions()


@pytest.mark.parametrize("session", ["auto", "always", "never"])
@pytest.mark.parametrize("fence", FENCES)
async def test_calls_go_on(fence: str, session: str, connect: Any, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    change(fence, monkeypatch)
    client = connect("DecodeClient", session=session, retries=NO_RETRIES, timeout=20.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(CALLS):
            assert (await client.get(1)).store_epoch == "e"
        await client.close()
    said = [str(one.message) for one in caught if "pd_handoff" in str(one.message)]
    assert len(said) == grpc_internals.given_up()
    assert all("PD_HANDOFF_GRPC=public" in one for one in said)


@pytest.mark.parametrize("session", ["always", "never"])
async def test_the_public_way_can_be_forced(session: str, connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PD_HANDOFF_GRPC", "public")
    for module in (unary, stream):
        monkeypatch.setattr(module, "cygrpc", None)  # any use of it would fail
    monkeypatch.setattr(grpc_internals, "begin_of", one_argument_fewer)
    client = connect("DecodeClient", session=session, retries=NO_RETRIES)
    for _ in range(3):
        assert (await client.get(1)).store_epoch == "e"
    assert not grpc_internals.given_up()


async def test_a_setting_that_is_none(connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PD_HANDOFF_GRPC", "private")
    with pytest.raises(ValueError, match="PD_HANDOFF_GRPC must be auto or public"):
        await connect("DecodeClient", session="always").get(1)


async def test_a_callers_own_mistake_is_no_other_grpc(connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client = connect("DecodeClient", session="never", metadata=lambda: 7, retries=NO_RETRIES)
    with pytest.raises(TypeError):
        await client.get(1)
    assert not grpc_internals.given_up()


async def test_batches_and_admin_calls_are_public(connect: Any, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unary.RawUnary, "call", one_argument_fewer)
    store.script("BatchGet", pb.BatchGetResponse(results=[pb.BatchGetResult(response=pb.GetResponse())] * 2))
    client = connect("DecodeClient", session="never", retries=NO_RETRIES)
    assert len(await client.get_many([1, 2])) == 2
    assert not grpc_internals.given_up()


async def test_a_refusal_by_the_public_way_is_one(
    connect: Any, store: Any, refusal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    change("SendMessageOperation", monkeypatch)
    store.script("Put", refusal("RESOURCE_EXHAUSTED", "FIELD_OVERFLOW"))
    client = connect("PrefillClient", session="never", retries=NO_RETRIES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(errors.FieldOverflow):
            await client.put_once(1, Record().to_proto())
