"""Says what the installed SGLang has changed, on a machine without GPUs, and without torchvision.

    python -m examples.sglang.differences

Ends with status 1 when something has changed."""

from __future__ import annotations

import sys

from pd_handoff.engines.sglang.upstream import VERSION, differences

from examples.sglang.engine import load


def main() -> int:
    """Prints one line a change."""
    found = differences(load("srt.disaggregation.utils"))
    print("\n".join(found) or f"as in {VERSION}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
