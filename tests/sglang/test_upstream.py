"""The installed SGLang is the one that the adapter was written for; what another one has changed is said in words."""

from __future__ import annotations

import ast
import inspect
import re
from collections import deque
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pd_handoff.engines.sglang import model_info
from pd_handoff.engines.sglang.upstream import VERSION, differences
from pd_handoff.model import Widths

from examples.sglang import engine


def test_the_class_has_the_shape_that_the_adapter_stands_in_for() -> None:
    engine.load("srt.disaggregation.utils")
    assert differences() == [], f"SGLang {version('sglang')} differs from {VERSION}"


def test_a_later_class_is_described_and_not_just_refused(upstream: Any) -> None:
    later = SimpleNamespace(
        __name__="later",
        MetadataBuffers=Later,
        ReqToMetadataIdxAllocator=LaterAllocator,
        KVPoll=SimpleNamespace(Failed=9),
    )
    found = differences(later)
    assert "set_buf reads req.first_audio_frame, which is not handed over" in found
    assert "set_buf no longer reads req.bootstrap_room" in found
    assert "MetadataBuffers() lost custom_mem_pool and gained slots: size, hidden_size," in found[0]
    assert "Later has no method clear_slot" in found
    assert "Later has a new method scrub" in found
    assert any(line.startswith("get_buf's tuple lost cached_tokens") for line in found)
    assert "LaterAllocator.free() lost free_index and gained slot: slot" in found
    assert "later has no function prepare_abort" in found
    assert "KVPoll.Failed is 9, was 0" in found


class Later:
    """A MetadataBuffers to come."""

    def __init__(
        self,
        size: int,
        hidden_size: int,
        hidden_states_dtype: Any,
        max_sampling_mask_tokens: int,
        max_top_logprobs_num: int = 128,
        output_dsa_topk_indices_dim: int = 0,
        *,
        kv_checksum_enabled: bool = False,
        slots: int = 0,
    ) -> None:
        self.output_ids = deque([size])

    def set_buf(self, req: Any) -> None:
        """Reads one thing that 0.5.23 does not know."""
        self.output_ids.append(req.output_ids[0] + req.first_audio_frame)

    def get_buf(self, idx: int) -> tuple[Any, ...]:
        """Gives less."""
        return (self.output_ids[idx],)

    def scrub(self) -> None:
        """New."""


class LaterAllocator:
    """Its allocator."""

    def available_size(self) -> int:
        """As before."""
        return 0

    def alloc(self) -> int:
        """As before."""
        return 0

    def free(self, slot: int) -> None:
        """Another name."""


def test_the_patch_fits_and_is_seventeen_lines_of_which_four_replace_one(tmp_path: Path) -> None:
    engine.patched_copy(tmp_path)
    patch = engine.PATCH.read_text(encoding="utf-8").splitlines()
    added = [line for line in patch if line.startswith("+") and not line.startswith("+++")]
    removed = [line for line in patch if line.startswith("-") and not line.startswith("---")]
    assert (len(added), len(removed)) == (17, 4)
    for name in re.findall(r"^\+\+\+ b/(.*)", "\n".join(patch), re.MULTILINE):
        ast.parse((tmp_path / name).read_text(encoding="utf-8"))


def test_a_patch_that_does_not_fit_names_file_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other.patch"
    text = engine.PATCH.read_text(encoding="utf-8")
    other.write_text(text.replace("        return True", "        return Maybe"), encoding="utf-8")
    monkeypatch.setattr(engine, "PATCH", other)
    with pytest.raises(ValueError, match=r"does not fit .*: sglang/srt/disaggregation/prefill\.py, from line 4"):
        engine.patched_copy(tmp_path / "copy")


def test_the_page_shows_the_patch_word_for_word() -> None:
    page = Path(engine.__file__).parents[2] / "docs/engines/sglang.md"
    assert f"```diff\n{engine.PATCH.read_text(encoding='utf-8')}```" in page.read_text(encoding="utf-8")


def test_the_limits_join_the_dictionary_of_model_info_without_taking_a_name(upstream: Any) -> None:
    source = Path(inspect.getfile(upstream)).parents[1] / "entrypoints/http_server.py"
    (function,) = (
        node
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(node, ast.AsyncFunctionDef) and node.name == "model_info"
    )
    theirs = {
        key.value
        for node in ast.walk(function)
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Constant)
    }
    assert "has_image_understanding" in theirs
    ours = model_info(Widths(top_logprobs=20, token_ids_logprobs=128, sampling_mask_tokens=0))
    assert not theirs & set(ours)
    assert ours == {
        "max_top_logprobs_num": 20,
        "max_token_ids_logprob": 128,
        "max_sampling_mask_tokens": 0,
        "has_disaggregated_hidden_states": False,
    }
