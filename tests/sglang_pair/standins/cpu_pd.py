"""A plugin for SGLang in the tests. Without CUDA there is no pinned memory and there are no events, so Mooncake's
sender has to take page indices as numpy arrays. And `PD_TEST_WITHOUT` names a hook of pd-handoff's plugin to leave out,
so that a test can show what it is for."""

import os


def register():
    """Called in each of SGLang's processes, before pd-handoff's plugin: `standins` goes first on the path."""
    from sglang.srt.disaggregation.mooncake.conn import MooncakeKVSender

    MooncakeKVSender.supports_host_tensor_indices = False
    without = os.environ.get("PD_TEST_WITHOUT")
    if without:
        from pd_handoff.engines.sglang import plugin

        kept = [hook for hook in plugin.HOOKS if not hook.target.endswith(without)]
        if len(kept) != len(plugin.HOOKS) - 1:
            raise SystemExit(f"not one hook is named {without}")
        plugin.HOOKS[:] = kept
