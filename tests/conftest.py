"""For all tests: stores are forked, and deadlines fit the machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support import matrix, needs, preloaded
from tests.support.failures import JUDGED
from tests.support.waits import SCALE

_CONTRACT = Path(__file__).parent / "contract"

os.environ.setdefault("PYTEST_TIMEOUT", str(120 * SCALE))  # read before the ini file, and after the command line


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run name the store that the tests of the contract judge."""
    needs.add_options(parser)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests on each transport in turn."""
    needs.spread(metafunc)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count what was judged."""
    needs.count(report)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give tests with time limits of their own what this machine needs; leave out what a given store cannot show."""
    needs.select(config, items, _CONTRACT)
    for item in items:
        marker = item.get_closest_marker("timeout")
        if marker is not None and SCALE != 1:
            item.add_marker(pytest.mark.timeout(marker.args[0] * SCALE), append=False)


def pytest_configure(config: pytest.Config) -> None:
    """Fork processes that tests start, where that makes no difference."""
    needs.check_options(config)
    preloaded.enable()


# -- the matrix of reasons and calls ----------------------------------------------------------------------------------


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take what another process of this run has judged."""
    output = getattr(node, "workeroutput", {})
    JUDGED.update(map(tuple, output.get("judged", ())))
    for need, number in output.get("unjudged", {}).items():
        needs.unjudged[need] = number  # each process collects, and leaves out, the same


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run of the whole contract suite in which a documented pair was judged nowhere."""
    config = session.config
    if hasattr(config, "workeroutput"):
        config.workeroutput["judged"] = sorted(JUDGED)
        config.workeroutput["unjudged"] = dict(needs.unjudged)
    elif session.exitstatus == pytest.ExitCode.OK and _whole(config) and matrix.DOCUMENTED - JUDGED:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Name the pairs that were judged nowhere, and count what the tests of the contract needed."""
    needs.summary(terminalreporter)
    left = matrix.DOCUMENTED - JUDGED
    if _whole(config) and left:
        terminalreporter.section("documented errors that no test judged", red=True)
        for reason, call in sorted(left):
            terminalreporter.line(f"{call} refused with {reason}")


def _whole(config: pytest.Config) -> bool:
    """Whether this is a run of all tests of the contract, and perhaps of others."""
    option = config.option
    if needs.is_given(config):
        return False
    if option.keyword or option.markexpr or option.collectonly or option.deselect or option.ignore_glob:
        return False
    arguments = [Path(config.invocation_params.dir, argument).resolve() for argument in config.args]
    ignored = [Path(config.invocation_params.dir, path).resolve() for path in option.ignore or ()]
    return any(_CONTRACT.is_relative_to(path) for path in arguments) and not any(
        path.is_relative_to(_CONTRACT) for path in ignored
    )
