"""How SGLang's own tokenizer makes n requests of one with n samples."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from examples.sglang.engine import load


def sample_rooms(room: int, n: int) -> list[int]:
    """The rooms under which SGLang's tokenizer, patched or not, sends a request of n samples to its scheduler; first
    comes the one in which it prefills the prompt, once, before them."""
    tokenizer = _Tokenizer()
    load("srt.managers.tokenizer_manager")  # its event loops are uvloop's from here on
    asyncio.run(tokenizer.send(room, n))
    return tokenizer.rooms


class _Tokenizer:
    """What TokenizerManager's fan-out needs of its object: no model, and a scheduler that answers at once."""

    def __init__(self) -> None:
        self.rooms: list[int] = []
        self.rid_to_state: dict[str, Any] = {}

    async def send(self, room: int, n: int) -> None:
        """One request, as its HTTP server takes it."""
        manager = load("srt.managers.tokenizer_manager").TokenizerManager
        request = load("srt.managers.io_struct").GenerateReqInput(
            text="a prompt", sampling_params={"n": n}, bootstrap_host="127.0.0.1", bootstrap_port=1, bootstrap_room=room
        )
        request.normalize_batch_and_arguments()
        states = {}
        for rid in request.rid:
            self.rid_to_state[rid] = states[rid] = _state()
        async for _ in manager._handle_batch_request(self, request, None, states):
            pass

    async def _tokenize_one_request(self, obj: Any) -> Any:
        sampling = SimpleNamespace(max_new_tokens=8)
        return SimpleNamespace(rid=obj.rid, bootstrap_room=obj.bootstrap_room, sampling_params=sampling, stream=False)

    def _init_req_state(self, obj: Any) -> None:
        self.rid_to_state[obj.rid] = _state()

    async def _send_one_request(self, tokenized: Any) -> None:
        self.rooms.append(tokenized.bootstrap_room)

    async def _wait_one_response(self, obj: Any, request: Any) -> AsyncIterator[dict[str, Any]]:
        yield {"meta_info": {"id": obj.rid}}

    async def _collect_batch_responses(self, generators: list[Any]) -> list[Any]:
        return [await generator.__anext__() for generator in generators]


def _state() -> Any:
    times = SimpleNamespace(set_finished_time=lambda: None)
    return SimpleNamespace(lora_released=False, time_stats=times, prompt_token_ids=None)
