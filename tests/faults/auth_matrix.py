"""Every RPC by every role, by nobody, and by certificates that are expired or of another authority.

What the outcome must be is written down here once more, apart from the store's own table of roles.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message
from google.rpc.status_pb2 import Status
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from pd_handoff.v1 import admin_pb2, record_pb2
from pd_handoff.v1 import metadata_store_pb2 as pb

from tests.support import requests
from tests.support.credentials import Authority, Identity, access_file, bearing
from tests.support.process import START_SECONDS, ProcessStore
from tests.support.waits import eventually

from .common import Options, Report, Scenario

STORE, ADMIN = "pd_handoff.v1.MetadataStore", "pd_handoff.v1.MetadataStoreAdmin"
OWN, OTHER = "own", "other"
SECONDS = 20.0

_PREFILL = {"Reserve", "Put", "Put one-shot", "Release", "Abort", "BatchReserve", "BatchPut"}
_DECODE = {"Get", "Release", "Abort", "BatchGet"}
_OBSERVER = {"ListHandoffs", "GetHandoff"}
ALLOWED: dict[str, set[str]] = {
    "prefill": _PREFILL,
    "decode": _DECODE,
    "observer": _OBSERVER,
    "admin": _PREFILL | _DECODE | _OBSERVER | {"GetHandoff with contents"},
}
OPEN = {"Health.Check", "Health.Watch", "Reflection"}
ANY_ROLE = {"Capabilities", "Session"}
SINGLE = {"Capabilities", "Reserve", "Put", "Put one-shot", "Get", "Release", "Abort"}

_rooms = itertools.count(1)


@dataclass(frozen=True)
class Visitor:
    """Somebody who tries.

    Attributes:
        role: what their credentials stand for; None for none that count.
        everywhere: whether for all namespaces, or for OWN alone.
        connects: whether the handshake lets them in.
    """

    name: str
    role: str | None
    everywhere: bool = True
    connects: bool = True
    token: str | None = None
    identity: Identity | None = None


def rpcs(namespace: str) -> dict[str, tuple[str, Message]]:
    """Full method and a well-formed request about this namespace, by name; each room is new."""

    def key() -> record_pb2.HandoffKey:
        return record_pb2.HandoffKey(namespace=namespace, room=next(_rooms))

    calls: dict[str, Message] = {
        "Capabilities": pb.CapabilitiesRequest(),
        "Reserve": requests.reserve(key(), lease=1),
        "Put": requests.put(key(), b"foreign"),
        "Put one-shot": requests.put_once(key()),
        "Get": requests.get(key()),
        "Release": pb.ReleaseRequest(key=key(), reader_id="r"),
        "Abort": requests.abort(key()),
        "BatchReserve": pb.BatchReserveRequest(requests=[requests.reserve(key(), lease=1)]),
        "BatchPut": pb.BatchPutRequest(requests=[requests.put_once(key())]),
        "BatchGet": pb.BatchGetRequest(requests=[requests.get(key())]),
        "ListHandoffs": admin_pb2.ListHandoffsRequest(namespace=namespace),
        "GetHandoff": admin_pb2.GetHandoffRequest(key=key()),
        "GetHandoff with contents": admin_pb2.GetHandoffRequest(key=key(), include_record=True),
    }
    return {
        name: (f"/{ADMIN if name.startswith(('List', 'GetH')) else STORE}/{name.split()[0]}", request)
        for name, request in calls.items()
    }


def expected(visitor: Visitor, rpc: str, namespace: str) -> str:
    """ALLOWED, UNAUTHENTICATED, PERMISSION_DENIED, or UNAVAILABLE where there is no connection."""
    if not visitor.connects:
        return "UNAVAILABLE"
    if rpc in OPEN:
        return "ALLOWED"
    if visitor.role is None:
        return "UNAUTHENTICATED"
    if rpc in ANY_ROLE:
        return "ALLOWED"
    within = visitor.everywhere or namespace == OWN
    return "ALLOWED" if within and rpc in ALLOWED[visitor.role] else "PERMISSION_DENIED"


# -- asking ------------------------------------------------------------------------------------------------------------


def verdict(code: grpc.StatusCode) -> str:
    """A code as an outcome: whatever is not about credentials means that the call was let in."""
    refused = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAVAILABLE}
    return code.name if code in refused else "ALLOWED"


def unary(channel: Any, method: str, request: bytes) -> tuple[str, str]:
    """(outcome, what was told beside it) of a unary call. A batch's outcome is that of its only item."""
    call = channel.unary_unary(method)
    try:
        answer = call(request, timeout=SECONDS)
    except grpc.RpcError as error:
        trailing: Any = error.trailing_metadata() or ()
        told = [name for name, _ in trailing if name == "grpc-status-details-bin"]
        return verdict(error.code()), f"{error.details()} {told}"
    kind: Any = {"BatchPut": pb.BatchPutResponse, "BatchGet": pb.BatchGetResponse}.get(method.rpartition("/")[2])
    if kind is not None:
        (result,) = kind.FromString(answer).results
        if result.WhichOneof("result") == "error":
            return _status(result.error)
    return "ALLOWED", ""


def _status(status: Status) -> tuple[str, str]:
    (code,) = [code for code in grpc.StatusCode if code.value[0] == status.code]
    return verdict(code), f"{status.message} {[detail.type_url for detail in status.details]}"


@contextlib.contextmanager
def session(channel: Any) -> Iterator[Any]:
    """Asks one call after the other on one stream; (outcome, what was told) of each."""
    asked: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    answers = channel.stream_stream(f"/{STORE}/Session")(iter(asked.get, None), timeout=SECONDS)

    def ask(field: str, request: Message) -> tuple[str, str]:
        asked.put(pb.SessionRequest(call_id=1, **{field: request}).SerializeToString())  # type: ignore[arg-type]
        try:
            answer = pb.SessionResponse.FromString(next(answers))
        except grpc.RpcError as error:
            return verdict(error.code()), str(error.details())
        return _status(answer.error) if answer.WhichOneof("result") == "error" else ("ALLOWED", "")

    try:
        yield ask
    finally:
        asked.put(None)
        answers.cancel()


def open_services(channel: Any) -> dict[str, str]:
    """Outcomes of what is open to everybody."""
    found = {}
    health, request = health_pb2_grpc.HealthStub(channel), health_pb2.HealthCheckRequest()
    listing = reflection_pb2.ServerReflectionRequest(list_services="*")
    reflection: Any = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
    asked: dict[str, Callable[[], Any]] = {
        "Health.Check": lambda: health.Check(request, timeout=SECONDS),
        "Health.Watch": lambda: next(health.Watch(request, timeout=SECONDS)),
        "Reflection": lambda: next(reflection(iter([listing.SerializeToString()]), timeout=SECONDS)),
    }
    for name, ask in asked.items():
        try:
            ask()
            found[name] = "ALLOWED"
        except grpc.RpcError as error:
            found[name] = error.code().name
    return found


# -- the matrix --------------------------------------------------------------------------------------------------------


class Matrix:
    """Visitors against one store."""

    def __init__(self, report: Report, target: str, authority: Authority | None) -> None:
        self._report = report
        self._target = target
        self._authority = authority

    @contextlib.contextmanager
    def channel(self, visitor: Visitor) -> Iterator[Any]:
        """A connection of the visitor's own, with their credentials."""
        own = [("grpc.use_local_subchannel_pool", 1)]
        identity = visitor.identity
        if self._authority is None:
            plain = grpc.insecure_channel(self._target, own)
        else:
            credentials = grpc.ssl_channel_credentials(
                self._authority.root, identity and identity.key, identity and identity.chain
            )
            plain = grpc.secure_channel(self._target, credentials, own)
        with plain:
            yield bearing(plain, visitor.token) if visitor.token else plain

    def check(self, visitor: Visitor) -> None:
        """All RPCs, about the visitor's own namespace and another, well-formed and as nonsense."""
        with self.channel(visitor) as channel:
            for rpc, outcome in open_services(channel).items():
                self._note(visitor, rpc, "", outcome, "")
            for namespace in (OWN, OTHER):
                for rpc, (method, request) in rpcs(namespace).items():
                    self._note(visitor, rpc, namespace, *unary(channel, method, request.SerializeToString()))
                with session(channel) as ask:
                    for rpc, (method, request) in rpcs(namespace).items():
                        if rpc in SINGLE:
                            outcome, told = ask(method.rpartition("/")[2].lower(), request)
                            self._note(visitor, rpc, namespace, outcome, told, "Session, ")
                            if outcome in {"UNAUTHENTICATED", "UNAVAILABLE"}:
                                break  # the stream itself was refused
            self._nonsense(visitor, channel)

    def _nonsense(self, visitor: Visitor, channel: Any) -> None:
        """Bytes that are no message must not tell who is let in from who is not, but by their role."""
        for rpc, (method, _) in rpcs(OTHER).items():
            if " " in rpc:
                continue
            outcome, told = unary(channel, method, b"\xff\xff\xff no message")
            due = expected(visitor, rpc, OWN)
            self._report.count("calls with nonsense")
            self._report.expect(outcome == due, f"{visitor.name}: {rpc} with nonsense: {outcome} {told}, not {due}")

    def _note(self, visitor: Visitor, rpc: str, namespace: str, outcome: str, told: str, how: str = "") -> None:
        due = expected(visitor, rpc, namespace)
        where = f"{visitor.name}: {how}{rpc} in {namespace or 'no namespace'}"
        self._report.count("calls judged")
        self._report.count(f"{outcome.lower().replace('_', ' ')}")
        self._report.expect(outcome == due, f"{where}: {outcome} ({told}), not {due}")
        if outcome in {"UNAUTHENTICATED", "PERMISSION_DENIED"}:
            plain = told in {"no valid credentials []", "not permitted []", "no valid credentials", "not permitted"}
            self._report.expect(plain, f"{where}: tells more than its code: {told}")


def by_token(directory: Path) -> tuple[list[Visitor], Path]:
    """Visitors with tokens, and the file that knows them."""
    lines, visitors = [], [Visitor("nobody", None), Visitor("wrong token", None, token="wrong-token-0123456789")]
    for role in ALLOWED:
        for place, everywhere in (("*", True), (OWN, False)):
            token = f"{role}-{'all' if everywhere else OWN}-0123456789"
            lines.append(f"{role}-{'all' if everywhere else OWN} {role} {place} {token}")
            visitors.append(Visitor(f"token of {role} for {place}", role, everywhere, token=token))
    return visitors, access_file(directory / "tokens", *lines)


def by_certificate(directory: Path, authority: Authority) -> tuple[list[Visitor], Path]:
    """Visitors with certificates, and the file that knows their names."""
    stranger = Authority(directory, "stranger")
    visitors = [
        Visitor("no certificate", None, connects=False),
        Visitor("nameless certificate", None, identity=authority.issue("somebody-else")),
        Visitor("expired certificate", None, connects=False, identity=authority.issue("admin-all", expired=True)),
        Visitor("foreign certificate", None, connects=False, identity=stranger.issue("admin-all")),
        Visitor("a wrong token beside it", None, token="wrong-token-0123456789", identity=authority.issue("admin-all")),
    ]
    lines = []
    for role in ALLOWED:
        for place, everywhere in (("*", True), (OWN, False)):
            name = f"{role}-{'all' if everywhere else OWN}"
            lines.append(f"{name} {role} {place}")
            visitors.append(
                Visitor(f"certificate of {role} for {place}", role, everywhere, identity=authority.issue(name))
            )
    return visitors, access_file(directory / "roles", *lines)


def run(options: Options) -> Report:
    """Both files, on each transport."""
    report = Report()
    authority = Authority(options.directory)
    for transport in options.transports:
        settings: dict[str, Any] = {"slots": 256, "admin_contents": "yes", "transport": transport}
        visitors, tokens = by_token(options.directory)
        with ProcessStore("127.0.0.1:0", token_file=tokens, **settings).wait() as store:
            matrix = Matrix(report, store.target, None)
            for visitor in visitors:
                options.say(f"{transport}: {visitor.name}")
                matrix.check(visitor)
        visitors, roles = by_certificate(options.directory, authority)
        tls = {name: given for name, given in authority.settings(mutual=True).items() if name != "listen"}
        with ProcessStore("localhost:0", **tls, tls_roles=roles, **settings) as store:
            eventually(lambda: not store.target.endswith(":0"), "the store tells its port", START_SECONDS)
            matrix = Matrix(report, store.target, authority)
            for visitor in visitors:
                options.say(f"{transport}: {visitor.name}")
                matrix.check(visitor)
            report.expect(store.process.poll() is None, "the store has ended")
            report.expect(not [event for event in store.events if event["event"] == "failed"], "the store failed")
    return report


SCENARIO = Scenario("auth-matrix", "every RPC by every role, by nobody, by expired and foreign certificates", run)
