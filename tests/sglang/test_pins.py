"""The environment of these tests is pinned in full."""

from __future__ import annotations

import re

from tests.sglang.pins import FREE, ROOT, pinned, plain, strays


def test_all_that_the_script_installs_has_a_pin() -> None:
    script = (ROOT / "tools/test-sglang.sh").read_text(encoding="utf-8")
    (needed,) = re.findall(r"^needed=\(\n(.*?)^\)", script, re.MULTILINE | re.DOTALL)
    wanted = {*map(plain, needed.split()), "sglang", "pytest", "pytest-timeout", "hypothesis", "grpcio", "structlog"}
    assert "openai" in wanted
    assert wanted - set(pinned()) == set()
    assert "tests/sglang/pins.py" in script


def test_a_package_without_a_pin_or_of_another_version_is_named() -> None:
    pins = {"torch": "2.13.0", "openai": "2.8.0"}
    assert strays({"torch": "2.13.0", "openai": "2.8.0", **dict.fromkeys(FREE, "1")}, pins) == []
    assert strays({"torch": "2.14.0", "brand-new": "1.0"}, pins) == [
        "brand-new 1.0 is installed, no version of it is pinned",
        "torch 2.14.0 is installed, 2.13.0 is pinned",
    ]
