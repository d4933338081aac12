"""TLS and mutual TLS through real gRPC, on each transport, and certificates that change while the store serves."""

from __future__ import annotations

import ipaddress
import socket
import ssl
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff_server.access.tls import CertificateError, Certificates

from tests.support import requests
from tests.support.caller import UnaryCaller
from tests.support.credentials import Authority, Identity, access_file, bearing, replace, secure_channel
from tests.support.failures import CallFailed
from tests.support.fixtures import Start
from tests.support.local import LocalStore
from tests.support.steps import Steps

from .conftest import TOKENS, Connect


def outcome(store: LocalStore, authority: Authority | None, identity: Identity | None = None, token: str = "") -> str:
    """OK, or the code with which a call ends."""
    if authority is None:
        channel = grpc.insecure_channel(store.target, [("grpc.use_local_subchannel_pool", 1)])
    else:
        channel = secure_channel(store.target, authority, identity)
    with channel:
        try:
            UnaryCaller(bearing(channel, token) if token else channel).call("Capabilities", pb.CapabilitiesRequest())
        except CallFailed as error:
            return error.code.name
    return "OK"


def serial_shown(target: str) -> int:
    """The serial number of the certificate that a store shows, by the standard library's TLS."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    host, _, port = target.rpartition(":")
    with socket.create_connection((host, int(port)), 20) as plain, context.wrap_socket(plain) as secured:
        shown = secured.getpeercert(binary_form=True)
    assert shown is not None
    return hash(shown)


def test_tls(start: Start, authority: Authority, tmp_path: Path) -> None:
    store = start(**authority.settings())
    assert outcome(store, authority) == "OK"
    assert outcome(store, None) == "UNAVAILABLE"
    assert outcome(store, Authority(tmp_path, "another")) == "UNAVAILABLE"


def test_mutual_tls(start: Start, authority: Authority, tmp_path: Path) -> None:
    store = start(**authority.settings(mutual=True))
    assert outcome(store, authority, authority.issue("anybody")) == "OK"
    assert outcome(store, authority) == "UNAVAILABLE"
    assert outcome(store, authority, authority.issue("anybody", expired=True)) == "UNAVAILABLE"
    assert outcome(store, authority, Authority(tmp_path, "another").issue("anybody")) == "UNAVAILABLE"


def test_roles_by_certificate(start: Start, authority: Authority, tmp_path: Path, connect: Connect, kind: str) -> None:
    roles = access_file(tmp_path / "roles", "prefill-0 prefill *", "decode.fleet decode *", "cn-0 decode *")
    store = start(**authority.settings(mutual=True), tls_roles=str(roles))
    prefill = Steps(connect(store, authority=authority, name="prefill-0", kind=kind))
    decode = Steps(connect(store, authority=authority, name="decode.fleet", kind=kind))
    prefill.put_once(1)
    decode.get(1, reader="d")
    with pytest.raises(CallFailed) as caught:
        prefill.get(1)
    assert caught.value.code is grpc.StatusCode.PERMISSION_DENIED
    assert outcome(store, authority, authority.issue("nobody-0")) == "UNAUTHENTICATED"
    assert outcome(store, authority, authority.issue("nobody-0", common_name="cn-0")) == "UNAUTHENTICATED"


def test_a_spiffe_id_is_a_name(start: Start, authority: Authority, tmp_path: Path) -> None:
    roles = access_file(tmp_path / "roles", "spiffe://fleet/ns/serving/sa/decode decode *")
    store = start(**authority.settings(mutual=True), tls_roles=str(roles))
    assert outcome(store, authority, authority.issue_uri("spiffe://fleet/ns/serving/sa/decode")) == "OK"
    assert outcome(store, authority, authority.issue_uri("spiffe://fleet/ns/serving/sa/other")) == "UNAUTHENTICATED"


def test_case_48_only_dns_names_and_uris_are_names(start: Start, authority: Authority, tmp_path: Path) -> None:
    roles = access_file(tmp_path / "roles", "ops@fleet.example decode *", "10.0.0.7 decode *", "decode.fleet decode *")
    store = start(**authority.settings(mutual=True), tls_roles=str(roles))
    for name in (x509.RFC822Name("ops@fleet.example"), x509.IPAddress(ipaddress.ip_address("10.0.0.7"))):
        assert outcome(store, authority, authority.issue_other(name)) == "UNAUTHENTICATED"
    assert outcome(store, authority, authority.issue_other(x509.DNSName("decode.fleet"))) == "OK"


def test_a_token_beside_a_certificate_decides(
    start: Start, authority: Authority, tmp_path: Path, token_file: Path
) -> None:
    roles = access_file(tmp_path / "roles", "prefill-0 prefill *")
    store = start(**authority.settings(mutual=True), tls_roles=str(roles), token_file=str(token_file))
    known, unknown = authority.issue("prefill-0"), authority.issue("nobody-0")
    assert outcome(store, authority, known) == "OK"
    assert outcome(store, authority, known, "wrong-token-0123456789") == "UNAUTHENTICATED"
    assert outcome(store, authority, unknown) == "UNAUTHENTICATED"
    assert outcome(store, authority, unknown, TOKENS["decode"]) == "OK"
    assert outcome(store, authority, None, TOKENS["decode"]) == "UNAVAILABLE"


def test_unix_sockets_stay_plaintext_and_ask_for_tokens(
    start: Start, authority: Authority, token_file: Path, sockets: Path
) -> None:
    beside = f"unix:{sockets / 'beside'}"
    settings = {**authority.settings(mutual=True), "listen": ("localhost:0", beside)}
    store = start(**settings, token_file=str(token_file))
    with grpc.insecure_channel(beside) as channel:
        with pytest.raises(CallFailed) as caught:
            UnaryCaller(channel).call("Capabilities", b"")
        assert caught.value.code is grpc.StatusCode.UNAUTHENTICATED
        assert UnaryCaller(bearing(channel, TOKENS["decode"])).call("Capabilities", b"").slots_total == 8
    assert outcome(store, authority, authority.issue("anybody"), TOKENS["decode"]) == "OK"


def test_certificates_change_while_the_store_serves(start: Start, authority: Authority, tmp_path: Path) -> None:
    store = start(**authority.settings(mutual=True))
    mine = authority.issue("anybody")
    held = secure_channel(store.target, authority, mine)
    with held:
        caller = UnaryCaller(held)
        caller.call("Reserve", requests.reserve(1))
        before = serial_shown(store.target)
        authority.install(authority.issue("localhost"))
        assert serial_shown(store.target) != before
        assert outcome(store, authority, mine) == "OK"
        # Another authority for callers and store alike: who is connected stays, who comes needs the new one.
        other = Authority(tmp_path, "another")
        fresh = other.issue("localhost")
        replace(authority.ca, other.root)
        authority.install(fresh)
        assert outcome(store, other, other.issue("anybody")) == "OK"
        assert outcome(store, other, mine) == "UNAVAILABLE"
        assert caller.call("Capabilities", b"").slots_free == 7


def test_files_that_do_not_fit_change_nothing(start: Start, authority: Authority) -> None:
    store = start(**authority.settings())
    before = serial_shown(store.target)
    next_one = authority.issue("localhost")
    replace(authority.cert, next_one.chain)  # its key is still on the way
    assert serial_shown(store.target) == before
    replace(authority.key, next_one.key)
    assert serial_shown(store.target) != before
    authority.cert.unlink()
    assert outcome(store, authority) == "OK"


def test_what_was_wrong_is_told_once(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    told: list[Exception | None] = []
    certificates = Certificates(
        str(authority.cert), str(authority.key), str(authority.ca), lambda path, error: told.append(error)
    )
    fetch, fetch_of_another_port = certificates.fetcher(), certificates.fetcher()
    assert fetch() is None
    replace(authority.ca, b"nonsense")
    assert fetch() is None
    assert fetch() is None
    assert len(told) == 1
    assert isinstance(told[0], CertificateError)
    replace(authority.ca, authority.root)
    assert fetch() is not None
    assert fetch_of_another_port() is not None  # though the files were read again for the first one
    assert fetch() is fetch_of_another_port() is None
    assert told[1:] == [None]


def test_every_port_shows_a_new_certificate(start: Start, authority: Authority) -> None:
    store = start(**{**authority.settings(), "listen": ("127.0.0.1:0", "127.0.0.1:0")})
    one, other = store.addresses
    before = serial_shown(one)
    assert serial_shown(other) == before
    authority.install(authority.issue("localhost"))
    after = serial_shown(one)
    assert after != before
    assert serial_shown(other) == after
