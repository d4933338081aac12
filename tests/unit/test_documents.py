"""What people read says what is so: every reason of the schema with its code and metadata, and defaults."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from pd_handoff import Retries
from pd_handoff._version import __version__
from pd_handoff.v1 import error_reason_pb2
from pd_handoff_server.config import Settings
from pd_handoff_server.handlers.status import CODES

from tools import docs_site, words

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


def events_of_the_code() -> set[str]:
    """What is logged: the first argument of each call of a logger, and of the event log's own `_tell`."""
    found: set[object] = set()
    for path in (ROOT / "service/pd_handoff_server").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            owner = ast.unparse(call.func.value)
            if call.func.attr in ("debug", "info", "warning", "error") and ("log" in owner.lower()):
                found |= {arg.value for arg in call.args[:1] if isinstance(arg, ast.Constant)}
            elif call.func.attr in ("_tell", "_write"):
                found |= {arg.value for arg in call.args[1:2] if isinstance(arg, ast.Constant)}
    return {event for event in found if isinstance(event, str)}


def test_the_page_of_log_events_has_every_event() -> None:
    page = (ROOT / "docs/reference/log-events.md").read_text()
    told = set(re.findall(r"`([^`]+)`", "".join(line.split("|")[1] for line in page.splitlines() if line[:2] == "| ")))
    code = events_of_the_code()
    assert {"serving", "refused_to_start", "ended", "refused"} <= code
    assert told == code
    assert {event for event in code if not re.fullmatch("[a-z_]+", event)} == set()


def test_a_page_with_riddles_or_long_sentences_is_found() -> None:
    good = words.measure("page", "# Head\n\nThe store answers. It takes 3 bytes per row.\n\n```\nwhoever\n```\n")
    assert (good.sentences, good.faults) == (2, ())
    bad = words.measure("page", "Whoever calls is told.\n\nIt takes 3 bytes a row; " + "word " * 60 + ".\n")
    assert [fault.split(": ")[0] for fault in bad.faults] == [
        "mean sentence 35.5 words, 20 or more",
        *["line 1"] * 2,
        "line 3",
    ]


def test_a_long_sentence_or_riddle_in_a_comment_of_the_schema_is_found() -> None:
    good = (
        "// The store answers.\nmessage A {\n  // It has " + "one word " * 8 + "more.\n  string b = 1; // whoever\n}\n"
    )
    assert words.measure("a.proto", good).faults == ()
    long = "message A {\n  // " + "Word " * 12 + "\n  // " + "word " * 8 + "word.\n  //\n  // Nobody calls.\n}\n"
    assert [fault.split(":")[0] for fault in words.measure("a.proto", long).faults] == [
        "21 words, more than 20",
        "line 5",
    ]
    assert {path.name for path in words.pages() if path.suffix == ".proto"} == {
        path.name for path in (ROOT / "protos/pd_handoff/v1").iterdir()
    }


def test_the_words_of_readme_and_docs() -> None:
    found = [words.measure(str(path.relative_to(ROOT)), path.read_text()) for path in words.pages()]
    assert {page.name: page.faults for page in found if page.faults} == {}


def test_the_generated_pages_have_every_setting_command_and_reason() -> None:
    made = docs_site.generated_pages()
    assert all(
        f"`--{name.replace('_', '-')}`" in made["reference/settings.md"] for name in Settings.__dataclass_fields__
    )
    assert all(
        f"\n## {name}\n" in made["reference/cli.md"] for name in ("serve", "plan", "doctor", "top", "completion")
    )
    assert all(f"\n### {name}\n" in made["reference/errors.md"] for name in SCHEMA)
    assert "#### MetadataStore.Put\n" in made["reference/protos.md"]


def test_a_link_out_of_the_docs_must_lead_somewhere() -> None:
    class File:
        src_uri = "how-to/deploy.md"

    class Page:
        file = File

    class Config:
        repo_url = "https://example.org/pd-handoff/"

    mended = docs_site.on_page_markdown("[a](../../deploy/README.md) [b](secure.md)", Page, Config, None)
    assert mended == "[a](https://example.org/pd-handoff/blob/main/deploy/README.md) [b](secure.md)"
    with pytest.raises(FileNotFoundError, match="deploy/NONE"):
        docs_site.on_page_markdown("[a](../../deploy/NONE.md)", Page, Config, None)


def test_the_issue_forms_ask_for_what_helps() -> None:
    for path in sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml")):
        form = yaml.safe_load(path.read_text())
        assert form.keys() == {"name", "description", "labels", "body"}
        fields = [part for part in form["body"] if part["type"] != "markdown"]
        assert len({part["id"] for part in fields}) == len(fields)
        assert all(part["attributes"]["label"] for part in fields)
        assert any(part.get("validations", {}).get("required") for part in fields)


def test_every_version_is_the_same() -> None:
    assert json.loads((ROOT / "clients/node/package.json").read_text())["version"] == __version__
    chart = yaml.safe_load((ROOT / "deploy/helm/pd-handoff/Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
    assert f"image: pd-handoff:{__version__}\n" in (ROOT / "deploy/kubernetes/pd-handoff.yaml").read_text()


def test_the_navigation_has_every_page_once() -> None:
    def pages(entry: object) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        return [page for part in (entry if isinstance(entry, list) else entry.values()) for page in pages(part)]  # type: ignore[attr-defined]

    listed = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    written = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert len(listed) == len(set(listed))
    assert set(listed) == {page for page in written if not page.startswith("adr/")} | set(docs_site.generated_pages())
