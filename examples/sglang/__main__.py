"""SGLang's prefill and decode in processes of their own, with a store between them. Exits 0 only if all of it held.

.venv-sglang/bin/python -m examples.sglang
"""

from __future__ import annotations

import sys
import tempfile
import traceback
from contextlib import ExitStack
from pathlib import Path

from examples.demo.store import Store
from examples.sglang.engine import patched_copy
from examples.sglang.scenarios import ALL, Deployment
from examples.sglang.wire import Engine


def main() -> int:
    """Runs everything; returns how many scenarios failed."""
    failed = 0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pd-handoff-")))
        store = Store(folder, "--slots", "64")
        stack.callback(store.stop)
        patched = folder / "patched"
        patched_copy(patched)
        engines = {}
        for name in ("prefill", "decode"):
            for side in ("ours", "sglang"):
                engine = Engine(
                    f"examples.sglang.{name}",
                    [store.target, side],
                    folder / f"{name}-{side}.log",
                    patched if side == "ours" else None,
                )
                stack.callback(engine.stop)
                engines[name, side] = engine
        print("starting a store and four engine processes ...", flush=True)
        store.wait_until_serving(60)
        for engine in engines.values():
            engine.wait_until_ready()
        deployment = Deployment(
            store.target,
            engines["prefill", "ours"],
            engines["decode", "ours"],
            engines["prefill", "sglang"],
            engines["decode", "sglang"],
        )
        for scenario in ALL:
            try:
                print(f"ok      {scenario.__name__.replace('_', ' ')}: {scenario(deployment)}", flush=True)
            except Exception:  # whatever went wrong, the rest is shown too
                failed += 1
                print(f"FAILED  {scenario.__name__.replace('_', ' ')}", flush=True)
                traceback.print_exc()
        for (name, side), engine in engines.items():
            status = engine.stop()
            if status:
                failed += 1
                print(f"FAILED  {name} ({side}) ended with status {status}\n{engine.log.read_text()[-2000:]}")
    print("all held" if not failed else f"{failed} failed")
    return failed


if __name__ == "__main__":
    sys.exit(min(main(), 1))
