"""Settings: each once, with flag, variable, default and bounds, and refused by name."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import Field, fields
from typing import Any

import pytest
from pd_handoff_server import config
from pd_handoff_server.arena.layout import Limits
from pd_handoff_server.config import ConfigError, Settings, load

SPECS = fields(Settings)
BOUNDED = [spec for spec in SPECS if spec.metadata["least"] is not None]

SCRIPTED = {
    "listen": ("127.0.0.1:50071",),
    "slots": 1024,
    "max_top_logprobs": 128,
    "max_tokens": 8,
    "max_token_ids_logprobs": 128,
    "max_sampling_mask_tokens": 1024,
    "max_speculative_topk": 16,
    "max_dsa_topk_indices": 2048,
    "max_hidden_state_bytes": 32 << 10,
    "max_customized_info_bytes": 4 << 10,
    "max_engine_state_bytes": 0,
    "max_draft_tokens": 16,
    "attachment_heap": 0,
    "max_attachment_bytes": 64 << 20,
    "lease_default": 60,
    "lease_min": 1,
    "lease_max": 3600,
    "retention": 300,
    "max_wait": 600,
    "tombstones": 65_536,
    "tombstone_time": 120,
    "max_batch": 128,
    "consumed_grace": 30,
}
"""Names and defaults that the contract fixes."""


def parsed(*arguments: str) -> dict[str, Any]:
    """Flags as the command parses them."""
    parser = argparse.ArgumentParser()
    config.add_arguments(parser)
    return vars(parser.parse_args(arguments))


def refused(given: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> str:
    """The message of the refusal."""
    with pytest.raises(ConfigError) as caught:
        load(given, environment or {})
    return str(caught.value)


def names(specs: object) -> Any:
    """For test ids."""
    return specs.name if isinstance(specs, Field) else None


def test_defaults_are_those_of_the_contract() -> None:
    settings = load(parsed(), {})
    assert {name: getattr(settings, name) for name in SCRIPTED} == SCRIPTED
    assert settings == Settings()


@pytest.mark.parametrize("spec", SPECS, ids=names)
def test_each_setting_has_flag_variable_and_help(spec: Field[Any]) -> None:
    parser = argparse.ArgumentParser(formatter_class=lambda prog: argparse.HelpFormatter(prog, 2, 90, 500))
    config.add_arguments(parser)
    text = parser.format_help()
    flag, variable = "--" + spec.name.replace("_", "-"), "PD_HANDOFF_" + spec.name.upper()
    assert config.flag(spec.name) == flag
    assert config.variable(spec.name) == variable
    lines = [line for line in text.splitlines() if f"; {variable})" in line]
    assert len(lines) == 1
    assert lines[0].split()[0] == flag
    assert spec.metadata["what"].split(";")[0][:20] in lines[0]
    assert "default" in lines[0]
    for bound in (spec.metadata["least"], spec.metadata["most"]):
        assert bound is None or f"{bound:.10g}" in lines[0]


def text_of(spec: Field[Any]) -> str:
    """A legal value other than the default, as text."""
    meta = spec.metadata
    if meta["choices"]:
        return str(meta["choices"][-1])
    if isinstance(spec.default, tuple):
        return {"listen": "unix:/run/x", "namespace_slots": "a=1"}[spec.name]
    if isinstance(spec.default, bool):
        return "no" if spec.default else "yes"
    if isinstance(spec.default, str):
        special = {"metrics_listen": "localhost:1", "otlp_endpoint": "http://localhost:1"}
        return special.get(spec.name, "some/where")
    default: float = getattr(Settings(), spec.name)
    return str(default + 1 if meta["most"] is None or default < meta["most"] else default - 1)


# Alone, these contradict the rest; what they need is tested below.
_DEPENDENT = {"tls_cert", "tls_key", "tls_client_ca", "tls_roles"}
INDEPENDENT = [spec for spec in SPECS if spec.name not in _DEPENDENT]


@pytest.mark.parametrize("spec", INDEPENDENT, ids=names)
def test_flag_beats_variable_beats_default(spec: Field[Any]) -> None:
    text = text_of(spec)
    by_flag = load(parsed(config.flag(spec.name), text), {})
    by_variable = load(parsed(), {config.variable(spec.name): text})
    assert by_flag == by_variable
    assert getattr(by_flag, spec.name) != spec.default
    assert load(parsed(config.flag(spec.name), text), {config.variable(spec.name): "nonsense"}) == by_flag


@pytest.mark.parametrize("spec", BOUNDED, ids=names)
def test_bounds_are_legal_and_beyond_them_nothing(spec: Field[Any]) -> None:
    meta = spec.metadata
    whole = isinstance(spec.default, int)
    step = 1 if whole else 0.0001
    lease = {"lease_min": meta["least"], "lease_max": 31536000}
    for bound, beyond in ((meta["least"], -step), (meta["most"], step)):
        if bound is None:
            continue
        given = {**lease, spec.name: str(bound)} if "lease" in spec.name else {spec.name: str(bound)}
        if spec.name == "lease_max" and bound == meta["least"]:
            given |= {"lease_default": bound}
        if spec.name == "lease_min" and bound == meta["most"]:
            given |= {"lease_default": bound}
        assert getattr(load({name: str(value) for name, value in given.items()}, {}), spec.name) == bound
        text = str(bound + beyond)
        if whole and bound + beyond < 0 and meta["parse"] is config.size:
            assert config.flag(spec.name) in refused({spec.name: text})
            continue
        message = refused({spec.name: text})
        assert message.startswith(config.flag(spec.name) + " ")
        assert text in message
        assert config.variable(spec.name) in refused({}, {config.variable(spec.name): text})


@pytest.mark.parametrize("spec", BOUNDED, ids=names)
@pytest.mark.parametrize("text", ["", "x", "1x", "nan", "inf", "-inf", "1e400", "0x10", "1,0"])
def test_nonsense_is_refused_by_name(spec: Field[Any], text: str) -> None:
    message = refused({}, {config.variable(spec.name): text})
    assert config.variable(spec.name) in message
    assert repr(text) in message


@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec.metadata["choices"]], ids=names)
def test_choices(spec: Field[Any]) -> None:
    for choice in spec.metadata["choices"]:
        assert getattr(load({spec.name: choice}, {}), spec.name) == choice
    message = refused({spec.name: "other"})
    assert config.flag(spec.name) in message
    assert all(choice in message for choice in spec.metadata["choices"])


def test_sizes_have_units_and_durations_decimals() -> None:
    for text, size in (("0", 0), ("1000", 1000), ("1K", 1024), ("1KiB", 1024), ("2 MiB", 2 << 20), ("0GiB", 0)):
        assert load({"max_hidden_state_bytes": text}, {}).max_hidden_state_bytes == size
    for text in ("-1", "1.5K", "1KB", "1 k"):
        assert "--max-hidden-state-bytes" in refused({"max_hidden_state_bytes": text})
    policy = load({"retention": "0.25", "consumed_grace": "1.5", "lease_min": ".001"}, {}).policy()
    assert (policy.retention, policy.consumed_grace, policy.lease_min) == (250_000_000, 1_500_000_000, 1_000_000)


def test_switches() -> None:
    assert load(parsed("--admin-contents"), {}).admin_contents is True
    for text, value in (("yes", True), ("1", True), ("TRUE", True), ("on", True), ("no", False), ("0", False)):
        assert load(parsed("--admin-contents", text), {}).admin_contents is value
    assert "PD_HANDOFF_ADMIN_CONTENTS" in refused({}, {"PD_HANDOFF_ADMIN_CONTENTS": "perhaps"})


def test_limits_and_policy_are_the_settings() -> None:
    settings = load({"max_tokens": "3", "max_top_logprobs": "0", "max_hidden_state_bytes": "7"}, {})
    assert settings.limits() == Limits(tokens=3, top_logprobs=0, hidden_state_bytes=7)
    policy = settings.policy()
    assert policy.lease_default == 60 * 10**9
    assert policy.grant(None) == 60 * 10**9
    assert policy.grant(0) == 10**9
    assert policy.grant(10**15) == 3600 * 10**9
    assert policy.grant(5 * 10**9) == 5 * 10**9


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"lease_default": "5000"}, "--lease-default"),
        ({"lease_min": "61"}, "--lease-default"),
        ({"lease_max": "59"}, "--lease-default"),
        ({"listen": ["nowhere"]}, "--listen"),
        ({"listen": ["127.0.0.1:70000"]}, "--listen"),
        ({"listen": ["127.0.0.1:"]}, "--listen"),
        ({"listen": [":1"]}, "--listen"),
        ({"listen": ["unix:"]}, "--listen"),
        ({"listen": ["unix:/" + "x" * 107]}, "at most 107 bytes, and this one 108"),
        ({"listen": ["unix:///" + "x" * 107]}, "at most 107 bytes, and this one 108"),
        ({"listen": ["unix:/" + "ü" * 54]}, "at most 107 bytes, and this one 109"),
        ({"listen": ["0.0.0.0:1"]}, "--insecure"),
        ({"listen": ["unix:/ok", "[::]:1"]}, "--insecure"),
        ({"metrics_listen": "0.0.0.0:1"}, "--metrics-listen"),
        ({"metrics_listen": "9090"}, "--metrics-listen"),
        ({"namespace_slots": ["a"]}, "--namespace-slots"),
        ({"namespace_slots": ["a=1", "a=2"]}, "--namespace-slots"),
        ({"namespace_slots": ["a b=1"]}, "--namespace-slots"),
        ({"namespace_slots": ["a=-1"]}, "--namespace-slots"),
        ({"tls_cert": "c"}, "--tls-key"),
        ({"tls_key": "k"}, "--tls-cert"),
        ({"tls_client_ca": "a"}, "--tls-client-ca"),
        ({"tls_cert": "c", "tls_key": "k", "tls_roles": "r"}, "--tls-roles"),
    ],
    ids=str,
)
def test_contradictions_are_refused_by_name(given: dict[str, Any], named: str) -> None:
    assert named in refused(given)


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1:0", "localhost:1", "[::1]:65535", "127.1.2.3:1", "unix:/x y", "unix:/" + "x" * 106, "unix:" + "ü" * 53],
)
def test_addresses_of_this_machine_need_nothing_else(address: str) -> None:
    assert load({"listen": [address]}, {}).listen == (address,)


def test_lists_are_repeated_flags_or_one_variable_with_commas() -> None:
    wanted = ("127.0.0.1:1", "unix:/a")
    assert load(parsed("--listen", wanted[0], "--listen", wanted[1]), {}).listen == wanted
    assert load(parsed(), {"PD_HANDOFF_LISTEN": "127.0.0.1:1, unix:/a"}).listen == wanted
    assert "--listen" in refused({}, {"PD_HANDOFF_LISTEN": " , "})
    assert load({"namespace_slots": ["=3", "a.b=0"]}, {}).quotas() == {"": 3, "a.b": 0}


def test_other_variables_are_none_of_its_business() -> None:
    assert load({}, {"PD_HANDOFF_UNKNOWN": "x", "SLOTS": "1", "pd_handoff_slots": "2"}) == Settings()
