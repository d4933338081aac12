"""How long the property tests look: `PD_HANDOFF_TEST_PROFILE=long` for a run of many minutes, else a quick one."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_PROFILE = os.environ.get("PD_HANDOFF_TEST_PROFILE", "quick")

TIMEOUT = 900 if _PROFILE == "quick" else 6 * 3600
"""Seconds for a test of random sequences: it takes seconds while it passes, but minutes to cut a failure down."""

# Examples are slow to draw on a busy machine, which says nothing about the store; time is measured elsewhere.
_QUICK = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
    max_examples=200,
    stateful_step_count=50,
)


def load() -> None:
    """Use the profile that the environment names."""
    settings.register_profile("quick", _QUICK)
    settings.register_profile("long", _QUICK, max_examples=20_000, stateful_step_count=100)
    settings.load_profile(_PROFILE)
