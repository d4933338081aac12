"""Real processes, broken on purpose: `python -m tests.faults [SCENARIO ...] [--short]`.

A scenario is a module of this package with a `SCENARIO` (see `common`); it is found by being there.
"""
