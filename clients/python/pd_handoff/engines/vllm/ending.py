"""What the end of a prefill means for the user of decode.

vLLM's decode can compute any prompt by itself. So a prefill that is lost costs time and nothing else. Only a request
that prefill refused, such as one with too long a prompt, is refused on decode, too.
"""

from __future__ import annotations

from pd_handoff.errors import HandoffAborted, HandoffError
from pd_handoff.gateway.relay import COMPUTE_LOCALLY
from pd_handoff.model import Failure

CLIENT_LEFT = Failure(499, "CLIENT_CLOSED", "the client of decode disconnected")
_OVERLOAD = (429, 503)


def no_handoff(why: str) -> Failure:
    """Tells decode to compute the prompt by itself. The status is not one of an error: no user has to see it."""
    return Failure(200, COMPUTE_LOCALLY, why)


def of_answer(failure: Failure) -> Failure:
    """What to tell decode of a request that prefill's server answered with an error: refusals and overload as they are,
    an internal error as a prefill that is lost."""
    if 400 <= failure.http_status < 500 or failure.http_status in _OVERLOAD:
        return failure
    return no_handoff(f"prefill answered {failure.http_status}: {failure.message}")


def for_user(error: HandoffError) -> Failure | None:
    """What the user of decode is answered after this outcome of a Get; None where decode computes the prompt."""
    if isinstance(error, HandoffAborted) and error.failure.http_status >= 400:
        return error.failure
    return None
