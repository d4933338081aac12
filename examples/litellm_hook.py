"""A hook for LiteLLM's proxy: it refuses, before any prefill, what the store cannot hand over.

Put this file beside the proxy's configuration, and name it there:

    litellm_settings:
      callbacks: litellm_hook.handoff

PD_HANDOFF_TARGET names the store, or several with commas; PD_HANDOFF_ADMISSION is `reject` or `clamp`.
"""

from __future__ import annotations

import os
from typing import Any

from litellm.integrations.custom_logger import CustomLogger
from litellm.proxy._types import ProxyException
from pd_handoff.gateway import Admission, Limits, Refused

PATHS = {
    "acompletion": "/v1/chat/completions",
    "completion": "/v1/chat/completions",
    "atext_completion": "/v1/completions",
    "text_completion": "/v1/completions",
    "aresponses": "/v1/responses",
    "responses": "/v1/responses",
}


class Handoff(CustomLogger):
    """Checks each request before LiteLLM sends it on."""

    def __init__(self) -> None:
        super().__init__()
        self._limits: Limits | None = None
        policy: Any = os.environ.get("PD_HANDOFF_ADMISSION", "reject")
        self._admission = Admission(self._limit, policy=policy)

    def _limit(self) -> int | None:
        return None if self._limits is None else self._limits.top_logprobs

    async def async_pre_call_hook(
        self, user_api_key_dict: Any, cache: Any, data: dict[str, Any], call_type: str
    ) -> Any:
        """Returns the request, cleaned and clamped. Raises ProxyException, which LiteLLM answers as it stands."""
        if self._limits is None:  # clients belong to the proxy's event loop, which runs only now
            self._limits = Limits.connect(os.environ.get("PD_HANDOFF_TARGET", "127.0.0.1:50071"))
            await self._limits.wait(1.0)
        path = PATHS.get(call_type)
        if path is not None:
            try:
                self._admission.admit(path, data)
            except Refused as refused:
                headers = {name.decode(): value.decode() for name, value in refused.headers()}
                kind = refused.body()["error"]["type"]
                raise ProxyException(refused.message, kind, refused.param, refused.http_status, headers) from None
        return data


handoff = Handoff()
