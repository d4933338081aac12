"""Admission at the HTTP door: one ASGI class for an engine's own server and for any Starlette or FastAPI proxy.

In front of vLLM or SGLang, without a line of code (settings come from the environment):

    PD_HANDOFF_TARGET=127.0.0.1:50071 PD_HANDOFF_ROLE=decode \\
        vllm serve MODEL --middleware pd_handoff.gateway.Gateway

In a Starlette or FastAPI proxy:

    app.add_middleware(Gateway, target="127.0.0.1:50071")

What it does with POST and PUT to the generating endpoints (chat, completions, Responses, Anthropic messages,
`/generate`, `/inference/v1/generate`, `/invocations`, `/vertex_generate`):

- **Limits.** A request for more top logprobs than the store and the engine take is refused with an OpenAI-shaped 400
  that names the user's own field, or is clamped (`policy="clamp"`; the header `x-pd-handoff-clamped` says what was).
- **Topology.** `kv_transfer_params` keeps nothing but the room: `{"handoff": {"room": "17"}}`, with `sample` and
  `attempt` where the client gave them. `do_remote_prefill`, `do_remote_decode`, `remote_host`, `remote_port`, block
  ids, `tp_size` and everything else are taken out. What is inside (a connector, or another middleware) knows its side
  from PD_HANDOFF_ROLE, and takes the engine's parameters from the store. The parsed rooms are also in the ASGI scope
  as `scope["pd_handoff.rooms"]`, a tuple of `Room`.
- **Failures.** With `role="prefill"`, a refused request is reported to the store, unless its room is in use there.
  With `role="decode"`, a hand-off that prefill aborted is answered with prefill's status and text, as long as the
  response has not begun.
- **Models.** `/v1/models` shows `max_top_logprobs`.

Everything else, streams and WebSockets included, passes through untouched.

| keyword | variable | default |
|---|---|---|
| `target` | `PD_HANDOFF_TARGET`: one store, or several with commas | `127.0.0.1:50071` |
| `role` | `PD_HANDOFF_ROLE`: `prefill`, `decode`, or `front` for a proxy | `front` |
| `policy` | `PD_HANDOFF_ADMISSION`: `reject` or `clamp` | `reject` |
| `engine_limit` | `PD_HANDOFF_ENGINE_TOP_LOGPROBS`: the engine's own limit | on vLLM its own, else none |
| `room_from_request_id` | `PD_HANDOFF_ROOM_FROM_REQUEST_ID`: `yes` makes a room of `X-Request-Id` | `no` |
| `bootstrap` | `PD_HANDOFF_BOOTSTRAP`: `keep` or `strip` SGLang's addresses | `strip` at `front`, else `keep` |
| `max_body_bytes` | `PD_HANDOFF_MAX_BODY_BYTES`: largest body of one request | 64 MiB |
| `max_buffered_bytes` | `PD_HANDOFF_MAX_BUFFERED_BYTES`: bodies of all requests together | 512 MiB |
| `refresh` | `PD_HANDOFF_LIMITS_REFRESH`: seconds between two looks at the store's limits | 30 |

SGLang's addresses are `bootstrap_host` and `bootstrap_port`. `PD_HANDOFF_NAMESPACE`, `PD_HANDOFF_BEARER_FILE`,
`PD_HANDOFF_TLS_CA` and `PD_HANDOFF_INSECURE_TOKEN` describe the way to the store, as for the SGLang adapter.
docs/gateway.md has the rest.
"""

from pd_handoff.gateway.admission import Admission, Admitted
from pd_handoff.gateway.answers import Refused, openai_error
from pd_handoff.gateway.asgi import Gateway
from pd_handoff.gateway.limits import Limits
from pd_handoff.gateway.topology import Room

__all__ = ["Admission", "Admitted", "Gateway", "Limits", "Refused", "Room", "openai_error"]
