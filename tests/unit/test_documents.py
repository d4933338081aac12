"""What people read says what is so: every reason of the schema with its code and metadata, and defaults."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from pd_handoff import Retries
from pd_handoff.v1 import error_reason_pb2
from pd_handoff_server.rpc.errors import CODES

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Reason:
    """What the comment of a value in error_reason.proto says."""

    code: str
    metadata: frozenset[str]
    retry: bool


def reasons_of_the_schema() -> dict[str, Reason]:
    """By name, from the file itself."""
    text = (ROOT / "protos/pd_handoff/v1/error_reason.proto").read_text()
    found: dict[str, Reason] = {}
    for comment, name in re.findall(r"((?:^  //.*\n)+)  ERROR_REASON_(\w+) = \d+;", text, re.MULTILINE):
        if name != "UNSPECIFIED":
            prose = re.sub(r"\n\s*//", "", comment)
            shown = re.search(r"\{\"code\".*\}", prose)
            assert shown is not None, f"{name} shows no details"
            example = json.loads(shown[0])
            assert example["reason"] == name
            found[name] = Reason(example["code"], frozenset(example["metadata"]), "in the attached RetryInfo" in prose)
    return found


def rows(document: str, heading: str) -> list[list[str]]:
    """The cells of the first table after a heading, without its head."""
    text = (ROOT / document).read_text()
    lines = iter(text[text.index(f"\n## {heading}\n") :].splitlines())
    table: list[str] = []
    for line in lines:
        if line.startswith("|"):
            table.append(line)
        elif table:
            break
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


SCHEMA = reasons_of_the_schema()
PROTOCOL = {row[0]: row[1:] for row in rows("docs/protocol.md", "Reasons")}


def test_the_schema_was_read() -> None:
    names = {name.removeprefix("ERROR_REASON_") for name in error_reason_pb2.ErrorReason.keys()}  # noqa: SIM118  # no dict
    assert set(SCHEMA) == names - {"UNSPECIFIED"}


def test_the_protocol_page_has_every_reason_and_no_other() -> None:
    assert list(PROTOCOL) == list(SCHEMA)


@pytest.mark.parametrize("name", SCHEMA)
def test_the_protocol_page_tells_code_metadata_when_and_what_to_do(name: str) -> None:
    told = SCHEMA[name]
    code, metadata, when, retry, cure = PROTOCOL[name]
    assert code == told.code == CODES[name].name
    assert set(re.findall(r"`(\w+)`", metadata)) == told.metadata
    assert (retry == "after RetryInfo") is told.retry
    assert when
    assert cure


def test_the_readme_has_every_reason_with_its_code() -> None:
    found: dict[str, str] = {}
    for names, codes, *_ in rows("README.md", "Errors"):
        reasons, each = names.split(", "), codes.split(", ")
        found |= dict(zip(reasons, each if len(each) > 1 else each * len(reasons), strict=True))
    assert found == {name: told.code for name, told in SCHEMA.items() if name != "INTERNAL"}


def test_the_protocol_page_has_every_failure_that_the_project_makes() -> None:
    made: set[str] = set()
    for path in (*(ROOT / "service").rglob("*.py"), *(ROOT / "clients/python/pd_handoff").glob("*.py")):
        made |= set(re.findall(r'Failure\([^()]*?"([A-Z][A-Z_]+)"', path.read_text()))
    assert "ROW_DAMAGED" in made
    page = (ROOT / "docs/protocol.md").read_text()
    told = {line.strip("|").split("|")[0].strip() for line in page[page.index("| failure_reason |") :].splitlines()}
    assert made <= told


def test_the_client_page_tells_the_default_budget_of_retries() -> None:
    page = (ROOT / "docs/client.md").read_text()
    seconds = Retries().total_seconds
    assert f"**{seconds:g} s**" in page
    assert f"`Retries(total_seconds={seconds})`" in page
