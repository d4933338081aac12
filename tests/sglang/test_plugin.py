"""SGLang loads the plugin by its entry point, in processes that name a store; one that cannot do its work ends them."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from types import SimpleNamespace
from typing import Any

import pytest
from pd_handoff.engines.sglang import door, hooks, plugin
from pd_handoff.engines.sglang.keys import sample_room

from examples.sglang.engine import load
from tests.sglang.making import Made

LOAD = """
from examples.sglang.engine import load
load("srt.plugins").load_plugins()
registry = load("srt.plugins.hook_registry").HookRegistry
print(sorted(registry._patched))
"""


def loaded(program: str = LOAD, **variables: str) -> subprocess.CompletedProcess[str]:
    """A process in which SGLang loads its plugins."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PD_HANDOFF_")}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def test_the_plugin_is_found_by_its_entry_point() -> None:
    [found] = [one for one in entry_points(group="sglang.srt.plugins") if one.name == "pd_handoff"]
    assert found.load() is plugin.register


def test_every_hook_takes() -> None:
    done = loaded(PD_HANDOFF_TARGET="127.0.0.1:1")
    assert done.returncode == 0, done.stderr
    assert all(repr(hook.target) in done.stdout for hook in plugin.HOOKS), done.stdout + done.stderr


def test_without_a_target_sglang_is_as_it_was() -> None:
    done = loaded()
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"PD_HANDOFF_TARGET": "http://store"}, "pd-handoff: PD_HANDOFF_TARGET: target 'http://store': give host:port"),
        (
            {"PD_HANDOFF_NAMESPACE": "a"},
            "pd-handoff: PD_HANDOFF_TARGET is not set, though PD_HANDOFF_NAMESPACE is: name the store",
        ),
        (
            {"PD_HANDOFF_TARGET": "127.0.0.1:1", "PD_HANDOFF_ADMISSION": "Clamp"},
            'pd-handoff: PD_HANDOFF_ADMISSION must be "reject" or "clamp", is \'Clamp\'',
        ),
    ],
)
def test_a_setting_with_which_nothing_is_handed_over_ends_the_start(variables: dict[str, str], words: str) -> None:
    done = loaded(**variables)
    assert done.returncode == 1
    assert words in done.stderr.strip().splitlines()[-1]


def test_another_release_of_sglang_ends_the_start() -> None:
    older = "from pd_handoff.engines.sglang import plugin; plugin.VERSIONS = ('0.5.19',)" + LOAD
    done = loaded(older, PD_HANDOFF_TARGET="127.0.0.1:1")
    assert done.returncode == 1
    assert "pd-handoff: SGLang 0.5.23 is not one of 0.5.19, which this release of pd-handoff is for" in done.stderr


def test_a_hook_that_did_not_take_ends_the_start() -> None:
    gone = (
        "from pd_handoff.engines.sglang import plugin; from dataclasses import replace\n"
        "plugin.HOOKS[-1] = replace(plugin.HOOKS[-1], target=plugin.HOOKS[-1].target + '_of_old')" + LOAD
    )
    done = loaded(gone + "load('srt.disaggregation.utils').MetadataBuffers()", PD_HANDOFF_TARGET="127.0.0.1:1")
    assert done.returncode == 1
    assert "took no hook for sglang.srt.managers.tokenizer_manager.TokenizerManager._send_one_request" in done.stderr


def test_the_second_of_two_live_requests_with_a_room_is_refused_at_the_door() -> None:
    entrance = door.Door()
    first, second, other = Made().request(rid="a"), Made().request(rid="b"), Made(room=8).request(rid="c")
    assert entrance.refusal(first) is None
    assert entrance.refusal(first) is None
    assert entrance.refusal(other) is None
    refused = entrance.refusal(second)
    assert refused is not None
    assert (refused.http_status, refused.reason) == (409, "HANDOFF_EXISTS")
    assert "room 7" in refused.message
    first.finished_reason = object()
    assert entrance.refusal(second) is None


def test_what_is_no_room_is_refused_at_the_door_of_either_side(monkeypatch: pytest.MonkeyPatch) -> None:
    entrance = door.Door()
    assert entrance.refusal(Made(room=None).request()) is None  # an engine that does both has no rooms
    for mode in ("prefill", "decode"):
        disagg = SimpleNamespace(disaggregation_mode=mode, disaggregation_transfer_backend="mooncake")
        monkeypatch.setattr(load("srt.runtime_context"), "get_disagg", lambda disagg=disagg: disagg)
        for room in (-1, 1 << 64, None):
            refused = entrance.refusal(Made(room=room).request())
            assert refused is not None
            assert refused.http_status == 400
            assert "bootstrap_room" in refused.message
        assert entrance.refusal(Made(room=0).request()) is None


def test_a_request_that_is_gone_leaves_its_room() -> None:
    entrance = door.Door()
    entrance.refusal(Made().request(rid="a"))
    assert entrance.refusal(Made().request(rid="b")) is None


def test_each_sample_gets_a_room_and_the_request_before_them_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "_samples", hooks.Samples())

    def sent(params: Any) -> Any:
        tokenized = type("Tokenized", (), {"sampling_params": params, "bootstrap_room": 5})()
        hooks.before_send_one_request(None, tokenized)
        return tokenized.bootstrap_room

    params, before = Params(n=3), Params(n=3, max_new_tokens=0)
    assert sent(before) == 5
    assert [sent(params) for _ in range(3)] == [sample_room(5, sample) for sample in range(3)]
    assert [sent(params) for _ in range(3)] == [sample_room(5, sample) for sample in range(3)]
    assert sent(Params(n=1)) == 5


def test_samples_that_their_user_left_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = hooks.Samples()
    left = Params(n=2)
    assert samples.next(left) == 0
    for _ in range(samples.MOST):
        samples.next(Params(n=2))
    assert samples.next(left) == 0


class Params:
    """What the hook reads of SGLang's sampling parameters."""

    def __init__(self, n: int, max_new_tokens: int = 16) -> None:
        self.n, self.max_new_tokens = n, max_new_tokens
