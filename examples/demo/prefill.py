"""The prefill process: reserve, compute, publish, request by request."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from pd_handoff import (
    CachedTokens,
    Failure,
    Key,
    KvChecksum,
    Logprobs,
    PrefillClient,
    Record,
    SpeculativeState,
    Tensor,
    Token,
    TopLogprobsOverflow,
    Widths,
)

from examples.demo import kv
from examples.demo.model import HIDDEN_SIZE, Model, Prefilled, tokenize
from examples.demo.pipes import listen, say
from examples.demo.workload import CONTEXT, NEW_TOKENS, Request


def main() -> None:
    """Serve the orchestrator's requests until it has no more."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--kv", type=Path, required=True)
    arguments = parser.parse_args()
    model = Model()
    with PrefillClient(arguments.target, instance_id="prefill-0", epoch=1) as store:
        say("ready", weights=model.weights_digest())
        for values in listen()["requests"]:
            serve(Request.from_json(values), model, store, arguments.kv)


class PromptTooLongError(ValueError):
    """Raised while a hand-off is open, it goes to the waiting decode side as it is: status, reason and text."""

    http_status = 400
    reason = "INPUT_TOO_LONG"


def serve(request: Request, model: Model, store: PrefillClient, kv_directory: Path) -> None:
    """One request; tells the orchestrator what became of it."""
    key, before = Key(request.room), model.prefills
    # What has to fit is known before anything is computed.
    widths = Widths(tokens=1, top_logprobs=request.top_logprobs, hidden_state_bytes=4 * HIDDEN_SIZE)
    outcome: dict[str, Any]
    started = time.monotonic_ns()
    try:
        with store.prefill(key, widths=widths, lease=30) as handoff:  # the lease is renewed while this block runs
            prefilled = compute(request, model)
            # The cache is in place before the record is published: who gets the record may read it.
            kv.write(kv_directory / f"{request.room}.safetensors", prefilled.kv)
            record = record_of(prefilled, request.top_logprobs)
            handoff.put(record)
            outcome = {"outcome": "published", "record_bytes": record.to_proto().ByteSize()}
    except TopLogprobsOverflow as refused:
        # Nothing was reserved, but decode waits for this room already.
        store.abort(key, Failure(refused.http_status, refused.reason, str(refused)))
        outcome = {"outcome": "refused", "requested": refused.requested, "limit": refused.limit}
        outcome["http_status"] = refused.http_status
    except PromptTooLongError:
        outcome = {"outcome": "aborted"}
    say("served", room=request.room, prefills=model.prefills - before, at=started, **outcome)


def compute(request: Request, model: Model) -> Prefilled:
    """The prefill itself. Raises PromptTooLongError."""
    prompt = tokenize(request.prompt)
    if len(prompt) + NEW_TOKENS > CONTEXT:
        raise PromptTooLongError(f"the prompt has {len(prompt)} tokens; at most {CONTEXT - NEW_TOKENS} fit")
    return model.prefill(prompt, request.top_logprobs)


def record_of(prefilled: Prefilled, top_logprobs: int) -> Record:
    """What decode needs beside the KV cache."""
    first = prefilled.first
    return Record(
        tokens=[
            Token(
                first.token_id,
                logprob=first.logprob,
                top_logprobs=Logprobs(first.top_values, first.top_ids) if top_logprobs else None,
            )
        ],
        cached_tokens=CachedTokens(total=0),
        speculative=SpeculativeState(hidden_states=Tensor.from_array(prefilled.hidden_state)),
        kv_checksum=KvChecksum(*kv.checksum(prefilled.kv)),
    )


if __name__ == "__main__":
    main()
