"""Every setting of the store, once: flag, environment variable, default and bounds."""

from __future__ import annotations

import argparse
import difflib
import ipaddress
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

from .arena.layout import HeapShape, Limits
from .lifecycle.model import Policy

LONGEST_SOCKET_PATH: Final = 107
"""Bytes; the kernel keeps 108 for an address, and one of them ends it."""

_SECOND = 1_000_000_000
_SIZES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class ConfigError(Exception):
    """A setting that the store cannot start with; the message names it and says what is legal."""


def count(text: str) -> int:
    """A whole number."""
    try:
        return int(text)
    except ValueError:
        raise ConfigError("must be a whole number") from None


def size(text: str) -> int:
    """Bytes: a whole number, or one with KiB, MiB, GiB (or K, M, G)."""
    match = re.fullmatch(r"(\d+)\s*(?:([KMG])(?:iB)?)?", text.strip())
    if not match:
        raise ConfigError("must be a number of bytes such as 32768 or 32KiB")
    return int(match[1]) * _SIZES[match[2] or ""]


def seconds(text: str) -> float:
    """Seconds, decimals allowed."""
    try:
        value = float(text)
    except ValueError:
        raise ConfigError("must be a number of seconds") from None
    if not math.isfinite(value):
        raise ConfigError("must be a finite number of seconds")
    return value


def switch(text: str) -> bool:
    """yes or no."""
    if text.lower() in {"1", "true", "yes", "on"}:
        return True
    if text.lower() in {"", "0", "false", "no", "off"}:
        return False
    raise ConfigError("must be yes or no")


def endpoint(text: str) -> str:
    """A collector's address, or nothing."""
    wrong = ConfigError("must be http://host:port or https://host:port, of a collector that takes OTLP over gRPC")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise wrong from None
    bare = not (parts.username or parts.path.strip("/") or parts.query or parts.fragment)
    if text and not (parts.scheme in {"http", "https"} and host and port and bare):
        raise wrong
    return text


def word(text: str) -> str:
    """Any text."""
    return text


def setting(
    default: Any,
    what: str,
    parse: Callable[[str], Any] = count,
    *,
    least: float | None = None,
    most: float | None = None,
    choices: Sequence[str] = (),
) -> Any:
    """One setting; bounds are inclusive."""
    metadata = {"what": what, "parse": parse, "least": least, "most": most, "choices": tuple(choices)}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the store is started with. Times are in seconds, sizes in bytes."""

    listen: tuple[str, ...] = setting(
        ("127.0.0.1:50071",), "address to serve on, host:port or unix:PATH; repeat for several", word
    )
    slots: int = setting(1024, "rows: hand-offs that can be live at a time", least=1, most=1 << 24)
    max_tokens: int = setting(8, "tokens of a record", least=1, most=1024)
    max_top_logprobs: int = setting(128, "top logprobs of a token", least=0, most=1 << 20)
    max_token_ids_logprobs: int = setting(128, "logprobs of listed ids, of a token", least=0, most=1 << 20)
    max_sampling_mask_tokens: int = setting(1024, "token ids of a sampling mask", least=0, most=1 << 20)
    max_speculative_topk: int = setting(16, "candidates of a draft model", least=0, most=1 << 16)
    max_dsa_topk_indices: int = setting(2048, "sparse-attention indices", least=0, most=1 << 20)
    max_hidden_state_bytes: int = setting(32768, "bytes of hidden states", size, least=0, most=1 << 28)
    max_customized_info_bytes: int = setting(4096, "bytes of customized_info", size, least=0, most=1 << 26)
    max_engine_state_bytes: int = setting(
        0, "bytes of engine_state, for engines with a KV connector such as vLLM's; 0: none", size, least=0, most=1 << 26
    )
    max_draft_tokens: int = setting(16, "tokens that a draft model proposed", least=0, most=1 << 12)
    attachment_heap: int = setting(
        0, "bytes of the heap that attachments of records are kept in; 0: no attachments", size, least=0, most=1 << 44
    )
    max_attachment_bytes: int = setting(
        64 << 20, "bytes of all attachments of a record, as encoded; the heap's, where that is less", size, least=0
    )
    lease_default: float = setting(60.0, "lease of a reservation that asks for none", seconds, least=0.001)
    lease_min: float = setting(1.0, "shortest lease granted", seconds, least=0.001)
    lease_max: float = setting(3600.0, "longest lease granted", seconds, least=0.001, most=31536000)
    retention: float = setting(300.0, "how long a record waits for its readers", seconds, least=0.001, most=31536000)
    consumed_grace: float = setting(30.0, "how long a consumed record can be read again", seconds, least=0, most=86400)
    max_wait: float = setting(600.0, "longest wait of a Get or a Reserve", seconds, least=0, most=86400)
    max_waiters: int = setting(16384, "calls that may wait at a time", least=0, most=1 << 20)
    max_waiting_bytes: int = setting(
        256 << 20, "bytes that waiting calls may hold: their requests, and the records of one-shot Puts", size, least=0
    )
    max_unread_bytes: int = setting(
        256 << 20, "bytes of answers that are kept for callers that do not read them", size, least=1
    )
    namespace_slots: tuple[str, ...] = setting(
        (), "NAMESPACE=N: slots that hand-offs of a namespace may hold at a time; repeat for several", word
    )
    tombstones: int = setting(65536, "outcomes of ended hand-offs that are remembered", least=0, most=1 << 24)
    tombstone_time: float = setting(120.0, "how long they are remembered", seconds, least=0, most=86400)
    arena_file: str = setting(
        "", "file, best in tmpfs, in which the arena outlives the process; none: it does not", word
    )
    max_batch: int = setting(128, "items of a batch call", least=1, most=4096)
    grace: float = setting(10.0, "how long calls in flight may take once the store drains", seconds, least=0, most=3600)
    drain_notice: float = setting(
        0.5, "how long a draining store still answers, so that callers and probes notice", seconds, least=0, most=600
    )
    admin_contents: bool = setting(False, "let GetHandoff of the admin service show records", switch)
    insecure: bool = setting(False, "allow plaintext beyond loopback and Unix sockets", switch)
    tls_cert: str = setting("", "certificate chain (PEM) for TLS on every TCP address; read again when changed", word)
    tls_key: str = setting("", "key (PEM) of --tls-cert", word)
    tls_client_ca: str = setting("", "authorities (PEM) of callers' certificates, which are then required", word)
    tls_roles: str = setting("", "file of certificate names with their roles and namespaces", word)
    token_file: str = setting("", "file of bearer tokens with their names, roles and namespaces", word)
    max_connections: int = setting(4096, "connections to each address", least=1, most=1 << 20)
    max_streams: int = setting(4096, "calls in flight on a connection", least=1, most=1 << 20)
    metrics_listen: str = setting("", "address of the Prometheus metrics, host:port; left out: none", word)
    otlp_endpoint: str = setting(
        "", "where to send a span of each call, as http://host:4317; left out: nowhere", endpoint
    )
    transport: str = setting(
        "auto",
        "how calls are carried; auto: fast where it works with the gRPC that is installed, else aio",
        word,
        choices=("auto", "fast", "aio"),
    )
    native: str = setting(
        "auto",
        "whether requests are read by the part in C; auto: where it was built",
        word,
        choices=("auto", "off", "required"),
    )
    log_format: str = setting(
        "auto", "how events are written; auto: console on a terminal", word, choices=("auto", "json", "console")
    )
    log_level: str = setting(
        "info", "least level of events written", word, choices=("debug", "info", "warning", "error")
    )

    def limits(self) -> Limits:
        """The widths of a record."""
        limits = Limits(**{limit.name: getattr(self, "max_" + limit.name) for limit in fields(Limits)})
        return replace(limits, attachment_bytes=min(self.max_attachment_bytes, self.heap().total))

    def heap(self) -> HeapShape:
        """The pages of attachments; none where they are switched off."""
        return HeapShape.of(self.attachment_heap if self.max_attachment_bytes else 0, self.slots)

    def policy(self) -> Policy:
        """The times that bound a hand-off's life."""
        return Policy(
            lease_default=nanoseconds(self.lease_default),
            lease_min=nanoseconds(self.lease_min),
            lease_max=nanoseconds(self.lease_max),
            retention=nanoseconds(self.retention),
            consumed_grace=nanoseconds(self.consumed_grace),
            tombstone_time=nanoseconds(self.tombstone_time),
            tombstones=self.tombstones,
        )

    def quotas(self) -> dict[str, int]:
        """Slots that each of these namespaces may hold. Raises ConfigError."""
        found: dict[str, int] = {}
        for text in self.namespace_slots:
            namespace, _, number = text.rpartition("=")
            if "=" not in text or not re.fullmatch(r"[A-Za-z0-9._-]{0,128}", namespace) or not number.isdecimal():
                raise ConfigError(f"--namespace-slots must be NAMESPACE=N with a legal namespace, not {text!r}")
            if namespace in found:
                raise ConfigError(f"--namespace-slots names {namespace!r} twice")
            found[namespace] = int(number)
        return found


def nanoseconds(value: float) -> int:
    """Seconds as nanoseconds."""
    return round(value * _SECOND)


def flag(name: str) -> str:
    """The flag of a setting."""
    return "--" + name.replace("_", "-")


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return "PD_HANDOFF_" + name.upper()


GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "addresses": ("listen", "metrics_listen", "insecure"),
    "slots, and what a row holds": (
        *("slots", "namespace_slots", "max_tokens", "max_top_logprobs", "max_token_ids_logprobs"),
        *("max_sampling_mask_tokens", "max_speculative_topk", "max_dsa_topk_indices", "max_hidden_state_bytes"),
        *("max_customized_info_bytes", "attachment_heap", "max_attachment_bytes"),
    ),
    "times in the life of a hand-off": (
        *("lease_default", "lease_min", "lease_max", "retention", "consumed_grace", "max_wait"),
        *("tombstones", "tombstone_time"),
    ),
    "bounds on callers": (
        *("max_waiters", "max_waiting_bytes", "max_unread_bytes", "max_batch", "max_connections", "max_streams"),
    ),
    "restart and shutdown": ("arena_file", "grace", "drain_notice"),
    "access": ("tls_cert", "tls_key", "tls_client_ca", "tls_roles", "token_file", "admin_contents"),
    "log and traces": ("log_format", "log_level", "otlp_endpoint"),
    "how calls are carried": ("transport", "native"),
}
"""Headings of `serve --help`, each with its settings; those of no heading come last, under `more`."""
_MORE = "more"


def group_of(name: str) -> str:
    """The heading of a setting."""
    return next((title for title, names in GROUPS.items() if name in names), _MORE)


def add_arguments(parser: argparse.ArgumentParser, names: Sequence[str] | None = None) -> None:
    """Give a parser the flags of these settings, of all by default, under their headings."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    order = [*GROUPS, _MORE]
    for spec in sorted(fields(Settings), key=lambda spec: order.index(group_of(spec.name))):
        if names is not None and spec.name not in names:
            continue
        meta = spec.metadata
        default = ", ".join(spec.default) if isinstance(spec.default, tuple) else spec.default
        if isinstance(default, bool):
            default = "yes" if default else "no"
        bounds = _bounds_text(meta)
        optional: dict[str, Any] = {"nargs": "?", "const": "yes"} if meta["parse"] is switch else {}
        title = group_of(spec.name)
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        groups[title].add_argument(
            flag(spec.name),
            dest=spec.name,
            action="append" if isinstance(spec.default, tuple) else "store",
            metavar=meta["parse"].__name__.upper() if not meta["choices"] else "|".join(meta["choices"]),
            help=f"{meta['what']} (default {default or 'none'}{bounds}; {variable(spec.name)})".replace("%", "%%"),
            **optional,
        )


def _bounds_text(meta: Mapping[str, Any]) -> str:
    least, most = meta["least"], meta["most"]
    if least is None and most is None:
        return ""
    if most is None:
        return f", at least {least:g}"
    return f", {least:.10g} to {most:.10g}"


_OF_CALLERS: Final = frozenset(
    {"TARGET", "NAMESPACE", "ROLE", "LEASE", "ADMISSION", "GRPC", "TLS_CA", "TLS_NAME", "BEARER_FILE", "MAX_BODY_BYTES"}
    | {"INSECURE_TOKEN", "MAX_BUFFERED_BYTES"}
)
"""Variables of clients, engines and gateways that are like one of a store."""


class Parser(argparse.ArgumentParser):
    """Wrong usage is reported as a wrong setting is, in one line, with what may have been meant."""

    def error(self, message: str) -> NoReturn:
        """Raises ConfigError."""
        unknown = "unrecognized arguments: "
        if message.startswith(unknown):
            wrong = message.removeprefix(unknown).split()[0].partition("=")[0]
            message += _meant(wrong, self._option_string_actions)
        raise ConfigError(f"{message}; see --help")


def unknown_variables(environment: Mapping[str, str] | None = None) -> list[str]:
    """A sentence for each PD_HANDOFF_ variable that is nearly, but not quite, one of a setting."""
    known = {variable(spec.name) for spec in fields(Settings)}
    said = []
    for name in sorted(os.environ if environment is None else environment):
        others = name.removeprefix("PD_HANDOFF_") in _OF_CALLERS
        if name.startswith("PD_HANDOFF_") and name not in known and not others and (meant := _meant(name, known)):
            said.append(f"{name} has no effect{meant}")
    return said


def _meant(name: str, known: Iterable[str]) -> str:
    alike = difflib.get_close_matches(name, sorted(known), n=1, cutoff=_ALIKE)
    return f"; did you mean {alike[0]}?" if alike else ""


_ALIKE = 0.85  # difflib's ratio, of 1


def load(given: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Settings:
    """Settings from parsed flags (None: not given), then the environment, then defaults.

    Raises:
        ConfigError: a value that does not parse, is out of bounds, or contradicts another; the message names it.
    """
    environment = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    for spec in fields(Settings):
        raw, source = given.get(spec.name), flag(spec.name)
        if raw is None and variable(spec.name) in environment:
            raw, source = environment[variable(spec.name)], variable(spec.name)
            if isinstance(spec.default, tuple):
                raw = [part.strip() for part in raw.split(",") if part.strip()]
        if raw is not None:
            values[spec.name] = _value(spec.metadata, raw, source)
    settings = Settings(**values)
    _agree(settings)
    return settings


def _value(meta: Mapping[str, Any], raw: Any, source: str) -> Any:
    if isinstance(raw, list):
        return tuple(raw)
    try:
        value = meta["parse"](str(raw))
    except ConfigError as error:
        raise ConfigError(f"{source} {error}, not {raw!r}") from None
    least, most = meta["least"], meta["most"]
    if (least is not None and value < least) or (most is not None and value > most):
        bounds = f"at least {least:g}" if most is None else f"from {least:.10g} to {most:.10g}"
        raise ConfigError(f"{source} must be {bounds}, not {raw}")
    if meta["choices"] and value not in meta["choices"]:
        raise ConfigError(f"{source} must be one of {', '.join(meta['choices'])}, not {raw!r}")
    return value


def _agree(settings: Settings) -> None:
    if not settings.listen:
        raise ConfigError("--listen needs an address: host:port or unix:PATH")
    if settings.lease_min > settings.lease_max:
        raise ConfigError(
            f"--lease-min ({settings.lease_min:g}) must not be above --lease-max ({settings.lease_max:g})"
        )
    if not settings.lease_min <= settings.lease_default <= settings.lease_max:
        raise ConfigError(
            f"--lease-default must lie between --lease-min ({settings.lease_min:g}) and --lease-max "
            f"({settings.lease_max:g}), not be {settings.lease_default:g}"
        )
    for address in settings.listen:
        if address.startswith("unix:"):
            _check_socket_path(address.removeprefix("unix:").removeprefix("//"))
        else:
            _check_host_port("--listen", address, " or unix:PATH")
    if settings.metrics_listen:
        _check_host_port("--metrics-listen", settings.metrics_listen)
    settings.quotas()
    if settings.attachment_heap and settings.arena_file:
        raise ConfigError(
            "--attachment-heap does not go together with --arena-file yet: attachments would not outlive the process; "
            "leave one of them out"
        )
    _agree_on_security(settings)


def _agree_on_security(settings: Settings) -> None:
    if bool(settings.tls_cert) != bool(settings.tls_key):
        raise ConfigError("--tls-cert and --tls-key go together")
    if settings.tls_client_ca and not settings.tls_cert:
        raise ConfigError("--tls-client-ca needs --tls-cert and --tls-key")
    if settings.tls_roles and not settings.tls_client_ca:
        raise ConfigError("--tls-roles needs --tls-client-ca: without it no caller shows a certificate")
    if settings.insecure:
        return
    for address in settings.listen:
        if not settings.tls_cert and not address.startswith("unix:") and not is_loopback(address):
            raise ConfigError(
                f"--listen {address} would serve in plaintext beyond this machine; give --tls-cert and --tls-key, or "
                "say --insecure if the network lets nobody else in"
            )
    if settings.metrics_listen and not is_loopback(settings.metrics_listen):
        raise ConfigError(
            f"--metrics-listen {settings.metrics_listen} would show metrics beyond this machine; listen on loopback, "
            "or say --insecure if the network lets nobody else in"
        )


def _check_socket_path(path: str) -> None:
    if not path:
        raise ConfigError("--listen unix: needs a path")
    size = len(os.fsencode(path))
    if size > LONGEST_SOCKET_PATH:
        raise ConfigError(
            f"--listen unix:{path} is too long: the path of a Unix socket has at most {LONGEST_SOCKET_PATH} bytes, and "
            f"this one {size}; choose a shorter one"
        )


def _check_host_port(name: str, address: str, other: str = "") -> None:
    host, _, port = address.rpartition(":")
    if re.fullmatch(r"[0-9]{1,5}", port) and int(port) <= 65535:
        named = host and not set(host) & set(":[]")
        if named or (host.startswith("[") and host.endswith("]") and _is_ipv6(host[1:-1])):
            return
    advice, bare = "", address.replace("[", "").replace("]", "")
    host, _, port = bare.rpartition(":")
    if _is_ipv6(host) and port.isdecimal():
        advice = f"; put IPv6 in brackets: [{host}]:{port}"
    elif _is_ipv6(bare):
        advice = f"; put IPv6 in brackets: [{bare}]:PORT"
    raise ConfigError(f"{name} must be host:port (port up to 65535){other}, not {address!r}{advice}")


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach host:port, told by the address alone."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
