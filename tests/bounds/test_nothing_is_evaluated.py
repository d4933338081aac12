"""Nothing that is received is unpickled or evaluated: the code that could do so is not there."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = [*(ROOT / "service").rglob("*.py"), *(ROOT / "clients" / "python").rglob("*.py")]
MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "code", "codeop", "runpy", "xmlrpc", "yaml"}
CALLS = {"eval", "exec", "compile", "__import__", "input"}
METHODS = {
    ("torch", "load"),
    ("numpy", "load"),
    ("np", "load"),
    ("os", "system"),
    ("os", "popen"),
    ("sys", "setprofile"),
}


def dangerous(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in MODULES:
            yield node.module
        elif isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name) and called.id in CALLS:
                yield called.id
            elif isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
                if (called.value.id, called.attr) in METHODS:
                    yield f"{called.value.id}.{called.attr}"
                elif called.attr == "compile" and called.value.id == "builtins":
                    yield "builtins.compile"


def test_neither_service_nor_client_can_unpickle_or_evaluate() -> None:
    assert len(SOURCES) > 80
    found = {f"{path.relative_to(ROOT)}: {what}" for path in SOURCES for what in dangerous(ast.parse(path.read_text()))}
    assert not found


def test_the_search_finds_what_it_looks_for() -> None:
    sample = "import pickle\nfrom yaml import load\neval('1')\nnp.load(f)\nimport torch\ntorch.load(f)\nre.compile('a')"
    assert list(dangerous(ast.parse(sample))) == ["pickle", "yaml", "eval", "np.load", "torch.load"]
