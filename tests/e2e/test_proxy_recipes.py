"""The recipes on the page "Behind a proxy", as they stand there, before a real store."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pd_handoff import DecodeClient, PrefillClient, Record, Token

from tests.support.process import ProcessStore
from tests.support.proxies import WebProxy
from tests.support.waits import PATIENCE

PAGE = Path(__file__).parents[2] / "docs/how-to/proxy.md"
LARGE = 3 << 20
CALLS = 1200
"""More than nginx takes on one connection by default, and more at a time than HTTP/2 proxies allow by default."""


def recipe(kind: str) -> str:
    """The one block of this language on the page."""
    (found,) = re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.mark.parametrize("kind", ["nginx", "haproxy"])
def test_the_recipe_passes_all_that_clients_do(kind: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"slots": 512, "max_customized_info_bytes": LARGE}
    with ProcessStore(f"unix:{tmp_path}/store", **settings).wait() as store:
        front = WebProxy(kind, store.target, tmp_path, recipe=recipe(kind))
        with front, PrefillClient(front.target) as prefill, DecodeClient(front.target) as decode:
            large = Record(tokens=[Token(7)], customized_info=bytes(LARGE))
            prefill.put_once(1, large)
            assert decode.get(1, max_wait=PATIENCE).record == large
            with ThreadPoolExecutor(200) as threads:
                reads = [threads.submit(decode.get, room, max_wait=PATIENCE) for room in range(10, 210)]
                for room in range(10, 210):
                    prefill.put_once(room, Record(tokens=[Token(room)]))
                assert [read.result().record.tokens[0].token_id for read in reads] == [*range(10, 210)]
            for room in range(1000, 1000 + CALLS):
                prefill.put_once(room, Record(tokens=[Token(1)]))
                decode.get(room)
