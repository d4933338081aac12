"""Measures the words of README, docs and the schema's comments, and fails on what the house style rules out.

    python tools/words.py            check; one line per fault
    python tools/words.py --table    the mean length of a sentence and the faults, page by page

A page passes when its sentences have fewer than 20 words on the mean, and none of the phrases below. Tables, code and
the targets of links are left out. Of the comments in protos/, which editors and grpcurl show one by one, no sentence
may have more than 20 words.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LONGEST_MEAN = 20.0
LONGEST_OF_A_PROTO = 20  # words in any sentence of a comment

# What to write instead stands beside each.
RIDDLES = (
    (r"\bwhoever\b", "caller, client, operator"),
    (r"\bnobody\b", "no caller, no reader"),
    (r"\bsomebody\b", "someone, a caller"),
    (r"\bfor who\b", "for callers that"),
    (r"\bwho knows\b", "say which one"),
    (r"\b(?:is|are|was|were) told\b", "is reported, gets, is notified"),
    (r"\bis seen to\b", "is done"),
    (r"\bgives? (?:its|their) bytes back\b", "removes its bytes"),
    (r"\boutlasts?\b", "retries, survives"),
    (r"\bis over when\b", "ends when"),
    (r"\bwhat is [a-z]+ed\b", "name the thing"),
    (r"\bstays? as (?:it|they) (?:is|are), and\b", "is unchanged"),
    (
        r"\b(?:bytes|seconds|µs|ms|MiB|KiB|GiB|calls|slots|times|lines?|items?|units?) an? "
        r"(?:row|call|second|minute|slot|record|batch|connection|token|hand-off|process|request|outcome|item)\b",
        "per, for `a` in units",
    ),
)


@dataclass(frozen=True)
class Page:
    """What was measured of one page."""

    name: str
    sentences: int
    mean: float
    faults: tuple[str, ...]


def prose_of(text: str) -> str:
    """The sentences of a page: without code, tables, comments and targets of links."""
    text = re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    lines = []
    for line in text.splitlines():
        if line.lstrip().startswith(("|", "    ", ":::", "<", "![", "!!!")):
            continue
        # A heading or an item of a list is a sentence of its own.
        if re.match(r"\s*(#|[-*] |\d+\. )", line):
            lines.append("")
        lines.append("" if line.startswith("#") else line)
    text = "\n".join(lines)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"`([^`]*)`", lambda code: "code" if " " in code[1] else code[1].replace(".", "_"), text)


def sentences_of(text: str) -> list[str]:
    """Its sentences, by full stops, question marks, and the ends of paragraphs and items."""
    found: list[str] = []
    for paragraph in re.split(r"\n\s*\n", prose_of(text)):
        flat = " ".join(paragraph.split())
        found += [part for part in re.split(r"(?<=[.!?])[\"')*]*\s+(?=[A-Z`\"'(*\d])", flat) if len(part.split()) > 1]
    return found


def comments_of(proto: str) -> str:
    """The comments of a .proto file as a page of the same lines, a paragraph for each comment."""
    found = (re.match(r"\s*// ?(.*)", line) for line in proto.splitlines())
    return "\n".join(comment[1] if comment else "" for comment in found)


def measure(name: str, text: str) -> Page:
    """One page, or the comments of one .proto file."""
    if name.endswith(".proto"):
        text = comments_of(text)
    sentences = sentences_of(text)
    lengths = [len(sentence.split()) for sentence in sentences]
    mean = sum(lengths) / len(lengths) if lengths else 0.0
    faults = [f"mean sentence {mean:.1f} words, {LONGEST_MEAN:g} or more"] if mean >= LONGEST_MEAN else []
    if name.endswith(".proto"):
        long = [sentence for sentence in sentences if len(sentence.split()) > LONGEST_OF_A_PROTO]
        faults += [f"{len(sentence.split())} words, more than {LONGEST_OF_A_PROTO}: {sentence}" for sentence in long]
    visible = re.sub(
        r"^( *)```.*?^\1```$", lambda code: "\n" * code[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL
    )
    for number, line in enumerate(visible.splitlines(), 1):
        for pattern, better in RIDDLES:
            faults += [f"line {number}: {found[0]!r}; better: {better}" for found in re.finditer(pattern, line, re.I)]
    return Page(name, len(sentences), mean, tuple(faults))


def pages() -> list[Path]:
    """README, CHANGELOG, everything in docs/ but the decisions, which are history, and the schema."""
    docs = [path for path in sorted((ROOT / "docs").rglob("*.md")) if "adr" not in path.parts]
    return [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "CHANGELOG.md",
        *docs,
        *sorted((ROOT / "protos").rglob("*.proto")),
    ]


def main() -> int:
    """Check, or show the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="every page, in numbers")
    arguments = parser.parse_args()
    found = [measure(str(path.relative_to(ROOT)), path.read_text()) for path in pages()]
    if arguments.table:
        print("| page | sentences | words per sentence | riddles |\n|---|---|---|---|")
        for page in found:
            riddles = sum(fault.startswith("line") for fault in page.faults)
            print(f"| {page.name} | {page.sentences} | {page.mean:.1f} | {riddles} |")
        return 0
    failed = [page for page in found if page.faults]
    for page in failed:
        for fault in page.faults:
            print(f"{page.name}: {fault}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
