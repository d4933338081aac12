"""pd-handoff as a general plugin of SGLang, found by the entry point group `sglang.srt.plugins`: nothing is patched.

Active in a process whose environment names a store (`PD_HANDOFF_TARGET`). SGLang logs what a plugin raises and goes on
without it, which would leave half a deployment without its hand-off. So a plugin that cannot do its work ends the
process with a sentence (SystemExit), and the metadata buffers check at construction that each hook is in place.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pd_handoff.engines.sglang import hooks
from pd_handoff.engines.sglang.environment import check_environment

VERSIONS = ("0.5.21", "0.5.22", "0.5.23")
"""Releases of SGLang whose code the hooks were compared with."""

_UTILS = "sglang.srt.disaggregation.utils"
_DECODE = "sglang.srt.disaggregation.decode.DecodePreallocQueue"
_TRANSFER = "sglang.srt.disaggregation.common.conn"
_PREFILL = "sglang.srt.disaggregation.prefill"
_SCHEDULER = "sglang.srt.managers.scheduler"
_TOKENIZER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"


@dataclass(frozen=True)
class Hook:
    """One place in SGLang, by its dotted name, and what happens there. `kind` is a name of SGLang's HookType."""

    target: str
    kind: str
    make: Callable[[], Any]


HOOKS = [
    Hook(f"{_UTILS}.MetadataBuffers", "REPLACE", lambda: hooks.buffers_class(check_hooks)),
    Hook(f"{_UTILS}.ReqToMetadataIdxAllocator", "REPLACE", hooks.allocator_class),
    Hook(f"{_UTILS}._apply_metadata_gate", "REPLACE", lambda: hooks.gate),
    Hook(f"{_UTILS}.prepare_abort", "AFTER", lambda: hooks.after_prepare_abort),
    Hook(f"{_DECODE}._send_kv_metadata", "AROUND", lambda: hooks.around_send_kv_metadata),
    Hook(f"{_TRANSFER}.CommonKVManager.check_status", "AROUND", lambda: hooks.around_check_status),
    Hook(f"{_PREFILL}.PrefillBootstrapQueue.create_sender", "AFTER", lambda: hooks.after_create_sender),
    Hook(f"{_PREFILL}.PrefillBootstrapQueue.ensure_metadata_buffer", "AROUND", lambda: hooks.around_ensure_row),
    Hook(
        f"{_PREFILL}.SchedulerDisaggregationPrefillMixin._retire_aborted_prefill_result",
        "BEFORE",
        lambda: hooks.before_retire_result,
    ),
    Hook(f"{_SCHEDULER}.Scheduler.retire_unadmitted_request", "BEFORE", lambda: hooks.before_retire_unadmitted),
    Hook(f"{_SCHEDULER}.Scheduler._add_request_to_queue", "BEFORE", lambda: hooks.before_add_request),
    Hook(f"{_SCHEDULER}._make_abort_req", "BEFORE", lambda: hooks.before_make_abort_req),
    Hook(f"{_TOKENIZER}._validate_token_ids_logprob", "AFTER", lambda: hooks.after_validate),
    Hook(f"{_TOKENIZER}._tokenize_one_request", "AROUND", lambda: hooks.around_tokenize),
    Hook(f"{_TOKENIZER}._send_one_request", "BEFORE", lambda: hooks.before_send_one_request),
]
"""In SGLang's order of a request's life per module; see docs/engines/sglang.md for what each is for."""


def register() -> None:
    """What SGLang calls in each of its processes. Does nothing where `PD_HANDOFF_TARGET` is not set. Ends the process
    (SystemExit) for a setting with which nothing could be handed over, a release of SGLang that the hooks were not
    compared with, and a place that this SGLang does not have."""
    try:
        _register()
    except Exception as error:
        raise SystemExit(f"pd-handoff: {error}") from error


def _register() -> None:
    if not os.environ.get("PD_HANDOFF_TARGET"):
        others = sorted(name for name, value in os.environ.items() if name.startswith("PD_HANDOFF_") and value)
        if others:
            raise ValueError(f"PD_HANDOFF_TARGET is not set, though {', '.join(others)} is: name the store")
        return
    check_environment()
    version = importlib.metadata.version("sglang")
    if version.partition("+")[0] not in VERSIONS:
        raise ValueError(
            f"SGLang {version} is not one of {', '.join(VERSIONS)}, which this release of pd-handoff is for; install "
            "one of them, or unset PD_HANDOFF_TARGET to start without the hand-off"
        )
    registry: Any = importlib.import_module("sglang.srt.plugins.hook_registry")
    for hook in HOOKS:
        registry.HookRegistry.register(hook.target, hook.make(), registry.HookType[hook.kind])


def check_hooks() -> None:
    """Ends the process (SystemExit) where SGLang left a hook out. It applies the hooks after `register` and logs what
    fails."""
    registry: Any = importlib.import_module("sglang.srt.plugins.hook_registry")
    missing = [hook.target for hook in HOOKS if hook.target not in registry.HookRegistry._patched]
    if missing:
        version = importlib.metadata.version("sglang")
        raise SystemExit(f"pd-handoff: SGLang {version} took no hook for {', '.join(missing)}; its log says why")
