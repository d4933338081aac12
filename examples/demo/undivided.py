"""The reference: every request whole, in one process, with no store in sight."""

from __future__ import annotations

from dataclasses import asdict

from examples.demo.model import Model, tokenize
from examples.demo.pipes import listen, say
from examples.demo.workload import NEW_TOKENS, Request


def main() -> None:
    """Generate what the orchestrator asks for."""
    model = Model()
    say("ready", weights=model.weights_digest())
    for values in listen()["requests"]:
        request = Request.from_json(values)
        hidden_state, sampled = model.undivided(tokenize(request.prompt), NEW_TOKENS, request.top_logprobs)
        say(
            "generated",
            room=request.room,
            hidden_state=hidden_state.numpy().tobytes().hex(),
            sampled=[asdict(token) for token in sampled],
        )


if __name__ == "__main__":
    main()
