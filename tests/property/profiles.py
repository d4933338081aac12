"""How long tests look: PD_HANDOFF_TEST_PROFILE is `long` for a run of hours, `ci`, or `quick`, the default."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

PROFILE = os.environ.get("PD_HANDOFF_TEST_PROFILE", "quick")
"""Its name."""

TIMEOUT = 6 * 3600 if PROFILE == "long" else 900
"""Seconds for a test of random sequences: it takes seconds while it passes, but minutes to cut a failure down."""

# Examples are slow to draw on a busy machine, which says nothing about the store; time is measured elsewhere.
_QUICK = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
    max_examples=60,
    stateful_step_count=50,
)


def slower(times: int) -> settings:
    """The profile's, with so many times fewer examples: for those that take as much longer."""
    chosen = settings.get_profile(PROFILE)
    return settings(chosen, max_examples=max(chosen.max_examples // times, 10))


def load() -> None:
    """Use the profile that the environment names."""
    settings.register_profile("quick", _QUICK)
    settings.register_profile("ci", _QUICK, max_examples=200)
    settings.register_profile("long", _QUICK, max_examples=20_000, stateful_step_count=100)
    settings.load_profile(PROFILE)
