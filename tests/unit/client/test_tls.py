"""TLS and mutual TLS, by the clients and by the command."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pd_handoff
import pytest
import trustme
from pd_handoff import aio, errors
from pd_handoff.cli import exits, main
from pd_handoff.retries import NO_RETRIES
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff.v1 import metadata_store_pb2_grpc


class Secured(NamedTuple):
    """A store that wants certificates of its own authority, and such a certificate."""

    target: str
    ca: bytes
    certificate: bytes
    key: bytes


@pytest.fixture
def secured(store: Any) -> Iterator[Secured]:
    authority = trustme.CA()
    mine, theirs = authority.issue_cert("127.0.0.1"), authority.issue_cert("prefill")
    ca = authority.cert_pem.bytes()
    key, chain = mine.private_key_pem.bytes(), mine.cert_chain_pems[0].bytes()
    server = grpc.server(ThreadPoolExecutor(2))
    metadata_store_pb2_grpc.add_MetadataStoreServicer_to_server(store, server)
    credentials = grpc.ssl_server_credentials([(key, chain)], root_certificates=ca, require_client_auth=True)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    store.script("Capabilities", pb.CapabilitiesResponse(slots_total=4))
    yield Secured(f"127.0.0.1:{port}", ca, theirs.cert_chain_pems[0].bytes(), theirs.private_key_pem.bytes())
    server.stop(None).wait(5)


async def test_both_faces_with_a_certificate(secured: Secured) -> None:
    credentials = pd_handoff.tls_credentials(ca=secured.ca, certificate=secured.certificate, key=secured.key)
    async with aio.PrefillClient(secured.target, credentials=credentials, token="t") as client:
        assert (await client.capabilities()).slots_total == 4
    with pd_handoff.PrefillClient(secured.target, credentials=credentials) as blocking:
        assert blocking.capabilities().slots_total == 4


@pytest.mark.parametrize("what", ["plaintext", "no certificate", "another authority"])
def test_who_does_not_fit_gets_no_answer(what: str, secured: Secured) -> None:
    other = trustme.CA().cert_pem.bytes()
    credentials = {
        "plaintext": None,
        "no certificate": pd_handoff.tls_credentials(ca=secured.ca),
        "another authority": pd_handoff.tls_credentials(ca=other, certificate=secured.certificate, key=secured.key),
    }[what]
    with (
        pd_handoff.DecodeClient(secured.target, credentials=credentials, retries=NO_RETRIES) as client,
        pytest.raises(errors.StoreUnavailable),
    ):
        client.capabilities()


def test_the_command_with_files(secured: Secured, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("ca", "certificate", "key"):
        (tmp_path / name).write_bytes(getattr(secured, name))
    files = {"--tls-ca": "ca", "--tls-cert": "certificate", "--tls-key": "key"}
    flags = [part for flag, name in files.items() for part in (flag, str(tmp_path / name))]
    assert main(["capabilities", "--target", secured.target, *flags]) == exits.OK
    assert "slots_total" in capsys.readouterr().out
    assert main(["capabilities", "--target", secured.target, *flags[:2]]) == exits.MISMATCH
    assert main(["capabilities", "--target", secured.target, *flags[:4]]) == exits.USAGE
    renamed = ["--tls-name", "127.0.0.1"]
    assert main(["capabilities", "--target", secured.target, *flags, *renamed]) == exits.OK
