"""The installed SGLang is the one that the adapter was written for; what another one has changed is said in words."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
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
    found = differences()
    assert not found, "\n".join((f"SGLang {version('sglang')} differs from {VERSION}:", *found))


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


def test_what_is_read_by_way_of_another_name_or_of_getattr_is_seen(upstream: Any) -> None:
    found = differences(later_by(upstream, set_buf=Roundabout.set_buf))
    for name in ("brand_new", "logprob.new_thing", "logprob.deeper.still", "asked_for"):
        assert f"set_buf reads req.{name}, which is not handed over" in found


class Roundabout:
    """Reads a request by other ways than `req.name`."""

    def set_buf(self, req: Any) -> Any:
        """Four things that 0.5.23 does not know."""
        lp = req.logprob
        deeper = lp.deeper
        if (same := req) and hasattr(same, "asked_for"):
            return getattr(req, "brand_new", 0), lp.new_thing, deeper.still
        return None


def test_other_dtypes_and_sizes_of_a_row_are_seen(upstream: Any) -> None:
    def wider(self: Any, *sizes: Any, **more: Any) -> None:
        upstream.MetadataBuffers.__init__(self, *sizes, **more)
        self.cached_tokens = self.cached_tokens.long()
        self.output_ids = self.output_ids[:, :8]
        self.output_dsa_topk_indices = None

    found = differences(later_by(upstream, __init__=wider))
    assert "get_buf's cached_tokens is int64 of [16], was int32 of [16]" in found
    assert "get_buf's output_ids is int32 of [8], was int32 of [16]" in found
    assert "get_buf's output_dsa_topk_indices is None, was int32 of [24]" in found


def test_a_class_that_cannot_be_constructed_says_so(upstream: Any) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("a GPU, please")

    found = differences(later_by(upstream, __init__=refuse))
    assert "MetadataBuffers cannot be constructed to compare its rows: RuntimeError: a GPU, please" in found


def later_by(upstream: Any, **methods: Any) -> Any:
    """SGLang's module, with these methods of its class in the place of its own."""
    own = vars(upstream.MetadataBuffers)
    later = type("MetadataBuffers", (upstream.MetadataBuffers,), {**own, **methods})
    return SimpleNamespace(**{**vars(upstream), "MetadataBuffers": later})


def test_a_run_with_another_sglang_ends_with_what_has_changed_and_nothing_else(tmp_path: Path) -> None:
    engine.patched_copy(tmp_path)
    file = tmp_path / "sglang/srt/disaggregation/utils.py"
    text = file.read_text(encoding="utf-8")
    text = text.replace("def clear_slot(", "def wipe_slot(").replace("def get_kv_checksum(", "def kv_checksum_of(")
    file.write_text(text, encoding="utf-8")
    root = Path(engine.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "tests/sglang", "-q", "-p", "no:cacheprovider"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 1
    assert f"SGLang {version('sglang')} differs from {VERSION}:" in said
    for line in (
        "MetadataBuffers has no method clear_slot",
        "MetadataBuffers has no method get_kv_checksum",
        "MetadataBuffers has a new method wipe_slot",
        "MetadataBuffers has a new method kv_checksum_of",
    ):
        assert line in said
    assert "passed" not in said
    assert "failed" not in said


def test_the_pages_command_for_a_checkout_answers_in_this_environment() -> None:
    root = Path(engine.__file__).parents[2]
    page = (root / "docs/engines/sglang.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^\.venv-sglang/bin/python (-m .*)$", page, re.MULTILINE)
    done = subprocess.run(
        [sys.executable, *command.split()], cwd=root, capture_output=True, text=True, check=False, timeout=200
    )
    assert (done.returncode, done.stdout) == (0, "as in 0.5.23\n"), done.stderr


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


def test_the_patch_fits_and_is_eighteen_lines_of_which_four_replace_one(tmp_path: Path) -> None:
    engine.patched_copy(tmp_path)
    patch = engine.PATCH.read_text(encoding="utf-8").splitlines()
    added = [line for line in patch if line.startswith("+") and not line.startswith("+++")]
    removed = [line for line in patch if line.startswith("-") and not line.startswith("---")]
    assert (len(added), len(removed)) == (18, 4)
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
