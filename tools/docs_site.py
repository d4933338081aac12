"""MkDocs hook: pages made from the code's own tables, and links that lead out of docs/.

A link to a file of the repository outside docs/ must name a file that is there. It leads to the repository where
pyproject.toml names one, and is plain text elsewhere.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "clients/python"), str(ROOT / "service")]

from google.protobuf import descriptor_pb2  # noqa: E402
from pd_handoff import errors  # noqa: E402
from pd_handoff.cli import arguments, exits, serve  # noqa: E402
from pd_handoff_server import config as settings  # noqa: E402

_LINK = re.compile(r"\[([^\]]*)\]\((?!https?://|mailto:|#)([^)\s]+)\)")
_FENCE = re.compile(r"^\s*```")
_FIELD_KINDS = {
    number: name.removeprefix("TYPE_").lower() for name, number in descriptor_pb2.FieldDescriptorProto.Type.items()
}


def on_files(files: Any, config: Any) -> Any:
    """Adds the generated pages."""
    from mkdocs.structure.files import File  # noqa: PLC0415  # only mkdocs calls this

    for uri, content in generated_pages().items():
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Mends the links that leave docs/. Raises FileNotFoundError for one that leads nowhere."""
    del files
    here = (ROOT / "docs" / page.file.src_uri).parent
    lines, code = [], False
    for line in markdown.splitlines():
        code = code != bool(_FENCE.match(line))
        lines.append(line if code else _LINK.sub(lambda found: _mended(found, here, config.repo_url), line))
    return "\n".join(lines)


def _mended(found: re.Match[str], here: Path, repository: str | None) -> str:
    text, link = found.groups()
    place = Path(os.path.normpath(here / link.partition("#")[0]))
    if place.is_relative_to(ROOT / "docs") or not link.partition("#")[0]:
        return found[0]
    if not place.exists():
        raise FileNotFoundError(f"{here.relative_to(ROOT)}: the link {link} leads to nothing")
    name = place.relative_to(ROOT)
    return f"[{text}]({repository.rstrip('/')}/blob/main/{name})" if repository else text


def generated_pages() -> dict[str, str]:
    """Markdown by the path below docs/."""
    return {
        "reference/cli.md": cli_page(),
        "reference/settings.md": settings_page(),
        "reference/errors.md": errors_page(),
        "reference/protos.md": protos_page(),
        "decisions.md": decisions_page(),
    }


def decisions_page() -> str:
    """The decisions by their titles."""
    lines = ["# Decisions\n", "Each page says what was decided, why, and what else was possible.\n"]
    for path in sorted((ROOT / "docs/adr").glob("*.md")):
        lines.append(f"- [{path.read_text().splitlines()[0].lstrip('# ')}](adr/{path.name})")
    return "\n".join(lines)


def cli_page() -> str:
    """Every command's help, as the command prints it."""
    os.environ["COLUMNS"] = "100"
    parser = arguments.parser()
    parts = ["# Command line\n\nWhat `pd-handoff --help` and `pd-handoff COMMAND --help` print.\n"]
    parts.append(f"## pd-handoff\n\n```text\n{_help(parser)}\n```\n")
    (subparsers,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    for name, sub in subparsers.choices.items():
        if name == "serve":
            parts.append("## serve\n\nEvery setting is on the page [Settings](settings.md).\n")
        else:
            parts.append(f"## {name}\n\n```text\n{_help(serve.parser_of(name) or sub, epilog=False)}\n```\n")
    return "\n".join(parts)


def _help(parser: argparse.ArgumentParser, *, epilog: bool = True) -> str:
    if not epilog:
        parser.epilog = None
    return parser.format_help().rstrip()


def settings_page() -> str:
    """Every setting of the store under its heading of `serve --help`."""
    lines = [
        "# Settings\n",
        "Flags of `pd-handoff serve`. Each can also be set by its environment variable; the flag wins.",
        "Sizes take KiB, MiB and GiB. Times are in seconds.\n",
    ]
    known = {spec.name: spec for spec in fields(settings.Settings)}
    grouped = {title: list(names) for title, names in settings.GROUPS.items()}
    rest = [name for name in known if settings.group_of(name) not in grouped]
    for title, names in {**grouped, **({"more": rest} if rest else {})}.items():
        lines += [
            f"## {title[0].upper()}{title[1:]}\n",
            "| flag | default | legal values | what it sets |",
            "|---|---|---|---|",
        ]
        for name in names:
            meta, default = known[name].metadata, known[name].default
            shown = ", ".join(default) if isinstance(default, tuple) else "yes" if default is True else default
            shown = "no" if shown is False else shown if shown != "" else "none"
            lines.append(
                f"| `{settings.flag(name)}`<br>`{settings.variable(name)}` | {shown} | {_legal(meta)} "
                f"| {_cell(meta['what'])} |"
            )
        lines.append("")
    return "\n".join(lines)


def _legal(meta: Any) -> str:
    if meta["choices"]:
        return ", ".join(meta["choices"])
    if meta["parse"] is settings.switch:
        return "yes, no"
    if meta["least"] is None:
        return ""
    return f"from {meta['least']:.10g}" + (f" to {meta['most']:.10g}" if meta["most"] is not None else "")


def errors_page() -> str:
    """Reasons with their comments from the schema, exceptions, HTTP statuses, and exit codes."""
    codes = {row.reason: row for row in (*errors._STORE, *errors._PLAIN)}
    lines = [
        "# Errors\n",
        "Each reason, its Python exception, the HTTP status that a gateway should answer, and the exit code of",
        "`pd-handoff`. The page [Protocol](../protocol.md#reasons) has the metadata and what to do.\n",
        "| reason | gRPC code | exception | HTTP | exit code |",
        "|---|---|---|---|---|",
    ]
    for reason, row in codes.items():
        lines.append(
            f"| {reason} | {row.code} | `{row.error.__name__}` | {row.http_status} | {exits.code_of(row.error(''))} |"
        )
    lines += ["", "## What the schema says of each reason\n"]
    for file in _schema():
        for index, enum in enumerate(file.enum_type):
            if enum.name == "ErrorReason":
                notes = _comments(file)
                for number, value in enumerate(enum.value):
                    name = value.name.removeprefix("ERROR_REASON_")
                    lines += [f"### {name}\n", _prose(notes.get((5, index, 2, number), "")), ""]
    return "\n".join([*lines, "## Exit codes\n", "```text", exits.EXPLAINED.rstrip(), "```"])


def protos_page() -> str:
    """Every service, message and enum with its comments."""
    lines = [
        "# Protos\n",
        "Made from the comments in `protos/pd_handoff/v1`. `pd-handoff protos --out DIR` writes the files.\n",
    ]
    for file in _schema():
        notes = _comments(file)
        lines += [f"## {file.name}\n", _prose(notes.get((2,), "") or notes.get((12,), "")), ""]
        for index, service in enumerate(file.service):
            lines += [f"### service {service.name}\n", _prose(notes.get((6, index), "")), ""]
            for number, method in enumerate(service.method):
                kind = "stream " if method.client_streaming else ""
                lines += [
                    f"#### {service.name}.{method.name}\n",
                    f"`{method.name}({kind}{_short(method.input_type)})` returns "
                    f"`{kind}{_short(method.output_type)}`\n",
                    _prose(notes.get((6, index, 2, number), "")),
                    "",
                ]
        for index, message in enumerate(file.message_type):
            lines += [f"### {message.name}\n", _prose(notes.get((4, index), "")), ""]
            if message.field:
                lines += ["| field | type | what it is |", "|---|---|---|"]
                lines += [
                    f"| `{field.name}` = {field.number} | {_type(field)} "
                    f"| {_cell(notes.get((4, index, 2, number), ''))} |"
                    for number, field in enumerate(message.field)
                ]
                lines.append("")
        for index, enum in enumerate(file.enum_type):
            lines += [f"### {enum.name}\n", _prose(notes.get((5, index), "")), ""]
            lines += ["| value | what it means |", "|---|---|"]
            lines += [
                f"| `{value.name}` = {value.number} | {_cell(notes.get((5, index, 2, number), ''))} |"
                for number, value in enumerate(enum.value)
            ]
            lines.append("")
    return "\n".join(lines)


def _schema() -> Iterator[descriptor_pb2.FileDescriptorProto]:
    raw = (ROOT / "clients/python/pd_handoff/v1/pd_handoff.v1.binpb").read_bytes()
    for file in descriptor_pb2.FileDescriptorSet.FromString(raw).file:
        if file.package.startswith("pd_handoff."):
            yield file


def _comments(file: descriptor_pb2.FileDescriptorProto) -> dict[tuple[int, ...], str]:
    return {
        tuple(place.path): place.leading_comments or place.trailing_comments
        for place in file.source_code_info.location
        if place.leading_comments or place.trailing_comments
    }


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _type(field: descriptor_pb2.FieldDescriptorProto) -> str:
    name = _short(field.type_name) if field.type_name else _FIELD_KINDS[field.type]
    repeated = field.label == descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
    return ("repeated " if repeated else "optional " if field.proto3_optional else "") + name


def _prose(text: str) -> str:
    """A comment as Markdown; what is in braces and angle brackets stays as it is."""
    lines = [line.removeprefix(" ") for line in text.splitlines()]
    return "\n".join(lines).replace("<", "&lt;").strip()


def _cell(text: str) -> str:
    return " ".join(_prose(text).split()).replace("|", "\\|")
