"""What an SGLang process takes from its environment, so that the engine's construction lines stay as they are.

| variable | meaning | default |
|---|---|---|
| `PD_HANDOFF_TARGET` | `host:port` or `unix:PATH` of the store | `127.0.0.1:50071` |
| `PD_HANDOFF_NAMESPACE` | which of several models or deployments that share it | the empty one |
| `PD_HANDOFF_BEARER_FILE` | file with this node's bearer token alone; read at each call | no token |
| `PD_HANDOFF_TLS_CA` | PEM of the authority that signed the store's certificate | plaintext |
| `PD_HANDOFF_INSECURE_TOKEN` | `yes` lets the token go in plaintext beyond loopback and Unix sockets | `no` |
| `PD_HANDOFF_EXPECTED_READERS` | on prefill: how many ranks of decode read a record, 1 to 1,024 | as decode says |
| `PD_HANDOFF_ADMISSION` | `reject` or `clamp`: see Admission | `reject` |
| `PD_HANDOFF_HIDDEN_STATES` | `decode`: `return_hidden_states` gives those of decode's steps alone | `reject` |
| `PD_HANDOFF_DRAFT_STATE` | `optional`: decode may speculate where prefill does not | `required` |
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from pd_handoff._transport import bearer
from pd_handoff._transport.channel import DEFAULT_TARGET, target_of, tls_credentials
from pd_handoff.capabilities import Capabilities
from pd_handoff.client import DecodeClient
from pd_handoff.engines.sglang.admission import Admission, Policy
from pd_handoff.engines.sglang.link import MOST_READERS, StoreLink, namespace_fits
from pd_handoff.engines.sglang.runtime import speaks_for_its_group, speaks_for_its_ranks
from pd_handoff.errors import HandoffError, Unauthenticated
from pd_handoff.retries import NO_RETRIES

log = logging.getLogger(__name__)
REFRESH = 60.0  # seconds that a store's limits are taken for current
RETRY = 10.0  # seconds until a store that did not answer is asked again


def link_from_environment(**overrides: Any) -> StoreLink:
    """The StoreLink that the environment describes. Publishes only on the rank of a prefill that SGLang lets speak
    for the others: the first of its attention group, in the last stage of a pipeline. Raises ValueError for a bad
    setting."""
    check_environment()
    settings = {
        "target": os.environ.get("PD_HANDOFF_TARGET") or DEFAULT_TARGET,
        "expected_readers": _readers(),
        "publishes": speaks_for_its_ranks(),
        "reports": speaks_for_its_group(),
        **_connection(),
        **overrides,
    }
    return StoreLink(**settings)


def admit(params: Any) -> None:
    """For SGLang's tokenizer, before a request is scheduled: clamps `params` in place, or raises RequestRefused (a
    ValueError, HTTP 400). RuntimeError, HTTP 500, where this process cannot make a client at all: the reason is in the
    log, and none of the user's business. Does nothing where PD_HANDOFF_TARGET is not set. Judges by the limits known
    last, and lets everything pass before the store has answered once: the scheduler's own reservation still refuses
    it before its prefill."""
    if not os.environ.get("PD_HANDOFF_TARGET"):
        return
    admission = _limits.admission()
    if admission is None:
        return
    admitted = admission.check(params)
    for note in admitted.notes:
        log.info("%s", note)
    admitted.apply(params)


class _Limits:
    """The limits of the store, asked for once a minute on a thread of its own: nobody waits for the answer, and until
    it is there the last one is served."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._client: DecodeClient | None = None
        self._admission: Admission | None = None
        self._asking = False
        self._ask_at = 0.0

    def admission(self) -> Admission | None:
        """As known; None before the store has answered once. Raises RuntimeError where it cannot be asked at all."""
        with self._lock:
            if not self._asking and time.monotonic() >= self._ask_at:
                try:
                    self._begin()
                except Exception:
                    log.exception("the store cannot be asked for its limits")
                    text = "the hand-off between prefill and decode is not set up; the server's log says why"
                    raise RuntimeError(text) from None
            return self._admission

    def _begin(self) -> None:
        if self._client is None:
            target = os.environ["PD_HANDOFF_TARGET"]
            self._client = DecodeClient(target, timeout=1.0, retries=NO_RETRIES, **_connection())
        self._asking = True
        threading.Thread(
            target=self._ask, args=(self._client, _policy()), name="pd-handoff-limits", daemon=True
        ).start()

    def _ask(self, client: DecodeClient, policy: Policy) -> None:
        admission, pause = self._admission, RETRY
        try:
            admission, pause = _admission_of(client.capabilities(), policy), REFRESH
        except HandoffError as error:
            log.warning("the limits of the store are not known: %s", error)
        except Exception:
            log.exception("the store cannot be asked for its limits")
        finally:
            with self._lock:
                self._admission, self._asking = admission, False
                self._ask_at = time.monotonic() + pause


def _admission_of(capabilities: Capabilities, policy: Policy) -> Admission:
    return Admission(capabilities, policy, hidden_states=hidden_states_pass())


_limits = _Limits()


def _connection() -> dict[str, Any]:
    settings: dict[str, Any] = {"namespace": os.environ.get("PD_HANDOFF_NAMESPACE", "")}
    bearer_file = os.environ.get("PD_HANDOFF_BEARER_FILE")
    if bearer_file:
        settings["token"] = lambda: _token(bearer_file)
        settings["insecure_token"] = bearer.says_yes("PD_HANDOFF_INSECURE_TOKEN")
    authority = os.environ.get("PD_HANDOFF_TLS_CA")
    if authority:
        settings["credentials"] = tls_credentials(ca=Path(authority).read_bytes())
    return settings


def _token(file: str) -> str:
    try:
        return bearer.token_in(file)
    except (OSError, ValueError) as error:
        raise Unauthenticated(f"PD_HANDOFF_BEARER_FILE cannot be read: {error}") from error


def _check_way_of_token() -> None:
    """Raises ValueError where the token would go over a network in plaintext, and nobody said that it may."""
    if os.environ.get("PD_HANDOFF_BEARER_FILE"):
        bearer.check_way(
            target_of(os.environ.get("PD_HANDOFF_TARGET") or DEFAULT_TARGET),
            encrypted=bool(os.environ.get("PD_HANDOFF_TLS_CA")),
            insecure=bearer.says_yes("PD_HANDOFF_INSECURE_TOKEN"),
        )


def _policy() -> Policy:
    text = os.environ.get("PD_HANDOFF_ADMISSION") or "reject"
    if text not in ("reject", "clamp"):
        raise ValueError(f'PD_HANDOFF_ADMISSION must be "reject" or "clamp", is {text!r}')
    return cast(Policy, text)


def _readers() -> int | None:
    name = "PD_HANDOFF_EXPECTED_READERS"
    text = os.environ.get(name)
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 4 and 1 <= int(text) <= MOST_READERS):
        raise ValueError(f"{name} must be a whole number from 1 to {MOST_READERS}, is {text!r}")
    return int(text)


def _one_of(name: str, *choices: str) -> str:
    text = os.environ.get(name) or choices[0]
    if text not in choices:
        raise ValueError(f"{name} must be {' or '.join(map(repr, choices))}, is {text!r}")
    return text


def hidden_states_pass() -> bool:
    """Whether `return_hidden_states` may give those of decode's steps alone."""
    return _one_of("PD_HANDOFF_HIDDEN_STATES", "reject", "decode") == "decode"


def draft_state_required() -> bool:
    """Whether a decode that speculates needs prefill's draft state."""
    return _one_of("PD_HANDOFF_DRAFT_STATE", "required", "optional") == "required"


def check_environment() -> None:
    """Raises ValueError, naming the variable, for a setting with which no request could be handed over."""
    _policy()
    hidden_states_pass()
    draft_state_required()
    _readers()
    namespace = os.environ.get("PD_HANDOFF_NAMESPACE", "")
    if not namespace_fits(namespace):
        raise ValueError(
            f"PD_HANDOFF_NAMESPACE must be up to 128 of letters, digits, '.', '_' and '-', is {namespace!r}"
        )
    checks: tuple[tuple[str, Callable[[str], object]], ...] = (
        ("PD_HANDOFF_TARGET", target_of),
        ("PD_HANDOFF_BEARER_FILE", bearer.token_in),
        ("PD_HANDOFF_TLS_CA", _check_pem),
    )
    for name, check in checks:
        value = os.environ.get(name)
        if not value:
            continue
        try:
            check(value)
        except (OSError, ValueError) as error:
            raise ValueError(f"{name}: {error}") from error
    _check_way_of_token()


def _check_pem(file: str) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=file)
    except ssl.SSLError as error:
        raise ValueError(f"{file} holds no certificate in PEM: {error}") from None
