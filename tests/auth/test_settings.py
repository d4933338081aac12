"""Settings that would let strangers in are refused before anything listens."""

from __future__ import annotations

from pathlib import Path

import pytest
from pd_handoff_server import config
from pd_handoff_server.config import ConfigError

from tests.support.credentials import Authority, access_file
from tests.support.process import run_serve


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.8.9.10:1", "localhost:1", "[::1]:1", "unix:/s", "unix:///s"])
def test_plaintext_where_only_this_machine_reaches(address: str) -> None:
    assert config.load({"listen": [address]}, {}).listen == (address,)


@pytest.mark.parametrize(
    "address",
    ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "store.example:1", "localhost.example:1", "[fe80::1%eth0]:1", "*:1"],
)
def test_plaintext_beyond_this_machine_must_be_asked_for(address: str) -> None:
    with pytest.raises(ConfigError, match="--insecure"):
        config.load({"listen": ["127.0.0.1:1", address]}, {})
    assert config.load({"listen": [address], "insecure": "yes"}, {}).insecure
    assert config.load({"listen": [address], "tls_cert": "c", "tls_key": "k"}, {}).tls_cert == "c"


def test_metrics_beyond_this_machine_must_be_asked_for() -> None:
    with pytest.raises(ConfigError, match="--metrics-listen"):
        config.load({"metrics_listen": "0.0.0.0:9100", "tls_cert": "c", "tls_key": "k"}, {})
    assert config.load({"metrics_listen": "127.0.0.1:9100"}, {}).metrics_listen
    assert config.load({"metrics_listen": "0.0.0.0:9100", "insecure": "yes"}, {}).metrics_listen
    with pytest.raises(ConfigError, match="host:port"):
        config.load({"metrics_listen": "9100"}, {})


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"tls_cert": "c"}, "go together"),
        ({"tls_key": "k"}, "go together"),
        ({"tls_client_ca": "a"}, "needs --tls-cert"),
        ({"tls_roles": "r", "tls_cert": "c", "tls_key": "k"}, "needs --tls-client-ca"),
        ({"namespace_slots": ["a"]}, "NAMESPACE=N"),
        ({"namespace_slots": ["a=-1"]}, "NAMESPACE=N"),
        ({"namespace_slots": ["a b=1"]}, "NAMESPACE=N"),
        ({"namespace_slots": ["a=1", "a=2"]}, "twice"),
    ],
)
def test_settings_that_contradict_each_other(given: dict[str, object], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        config.load(given, {})


@pytest.mark.parametrize(
    ("address", "advice"),
    [
        ("::1:52111", "put IPv6 in brackets: [::1]:52111"),
        ("::1:5211", "put IPv6 in brackets: [::1]:5211"),
        ("[::1", "put IPv6 in brackets: [::1]:PORT"),
        ("[::1]", "put IPv6 in brackets: [::1]:PORT"),
        ("::", "put IPv6 in brackets: [::]:PORT"),
        ("2001:db8::2:50071", "put IPv6 in brackets: [2001:db8::2]:50071"),
        ("[::1]:65536", "put IPv6 in brackets"),
        ("[localhost]:1", ""),
        ("dns:localhost:1", ""),
        ("localhost", ""),
        (":1", ""),
        ("localhost:65536", ""),
        ("127.0.0.1:1x", ""),
    ],
)
@pytest.mark.parametrize("name", ["listen", "metrics_listen"])
def test_an_address_is_host_and_port(name: str, address: str, advice: str) -> None:
    given = {name: [address] if name == "listen" else address, "insecure": "yes"}
    with pytest.raises(ConfigError, match=rf"^--{name.replace('_', '-')} must be host:port") as caught:
        config.load(given, {})
    assert advice in str(caught.value)
    assert bool(advice) == ("brackets" in str(caught.value))


@pytest.mark.parametrize("text", ["http://127.0.0.1:4317", "https://collector.example:4317/", "http://[::1]:4317"])
def test_a_collector_that_spans_can_go_to(text: str) -> None:
    assert config.load({"otlp_endpoint": text}, {}).otlp_endpoint == text


@pytest.mark.parametrize(
    "text",
    [
        "foo",
        "https://",
        "http://collector",
        "ftp://x",
        "ftp://x:4317",
        "collector:4317",
        "http://:4317",
        "http://x:99999",
        "http://x:port",
        "http://[::1:4317",
        "http://x:4318/v1/traces",
        "http://user@x:4317",
        "unix:/x",
    ],
)
def test_a_collector_that_spans_cannot_go_to(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--otlp-endpoint must be http://host:port or https://host:port") as caught:
        config.load({"otlp_endpoint": text}, {})
    assert repr(text) in str(caught.value)
    with pytest.raises(ConfigError, match=r"^PD_HANDOFF_OTLP_ENDPOINT must be"):
        config.load({}, {"PD_HANDOFF_OTLP_ENDPOINT": text})


def test_quotas() -> None:
    assert config.load({"namespace_slots": ["a=1", "=2", "b.c=0"]}, {}).quotas() == {"a": 1, "": 2, "b.c": 0}
    assert config.load({}, {"PD_HANDOFF_NAMESPACE_SLOTS": "a=1, b=2"}).quotas() == {"a": 1, "b": 2}


def test_the_command_says_why_it_does_not_start(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = ("--tls-cert", str(authority.cert), "--tls-key")
    for arguments, code, what in [
        (("--listen", "0.0.0.0:0"), 2, "--insecure"),
        ((*tls, str(authority.cert)), 1, "not a certificate and its key"),
        ((*tls, str(tmp_path / "missing")), 1, "cannot read"),
        ((*tls, str(authority.key), "--tls-client-ca", str(authority.key)), 1, "holds no certificates"),
        (("--token-file", str(access_file(tmp_path / "t", "a b c"))), 1, "line 1"),
    ]:
        ended = run_serve(
            "--log-format", "json", *(() if "--listen" in arguments else ("--listen", "127.0.0.1:0")), *arguments
        )
        assert ended.returncode == code, ended
        assert what in ended.stderr
        assert "Traceback" not in ended.stderr
