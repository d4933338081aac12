"""What the store's process is set up with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.waits import patient

_PROGRAM = """
from pd_handoff_server.process import runtime
runtime.prepare()
import structlog.dev, structlog.tracebacks
assert "rich" not in sys.modules
import rich
assert rich.__file__.startswith({directory!r}), rich.__file__
runtime.prepare()
assert rich.__name__ == "rich"
"""


def test_the_log_does_without_rich_and_others_may_have_it(tmp_path: Path) -> None:
    (tmp_path / "rich").mkdir()
    (tmp_path / "rich" / "__init__.py").touch()
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})" + _PROGRAM.format(directory=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=patient(60), check=False
    )
    assert done.returncode == 0, done.stderr
