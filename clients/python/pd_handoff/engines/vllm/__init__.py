"""Hand-off between vLLM servers: two ASGI classes for `vllm serve --middleware`, and vLLM's KV connectors by name.

| in front of | add to `vllm serve` |
|---|---|
| prefill | `--middleware pd_handoff.engines.vllm.PrefillHandoff` |
| decode | `--middleware pd_handoff.engines.vllm.DecodeHandoff` |

They work with vLLM's connectors as they are. With `"kv_connector_module_path": "pd_handoff.engines.vllm"` in
`--kv-transfer-config`, decode waits in its scheduler instead of at the door. docs/engines/vllm.md has the rest.

A name that this module does not define is looked up among vLLM's connectors: `NixlConnector`, `ExampleConnector`, ...
Importing this module imports neither vllm nor torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pd_handoff.engines.vllm.middleware import DecodeHandoff, PrefillHandoff

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name.startswith("_") or not name.isidentifier():
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from pd_handoff.engines.vllm.connector import connector_class  # noqa: PLC0415  # needs vllm

        made = globals()[name] = connector_class(name)
        return made


__all__ = ["DecodeHandoff", "PrefillHandoff"]
