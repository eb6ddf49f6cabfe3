"""The core and the nightly tier: which tests are in which, and the processor time that the core tier may take."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

import pytest

#: Tests and files of the nightly tier, one a line, as pytest names them without parameters.
NIGHTLY = Path(__file__).parent / "nightly.txt"

_BUDGET = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--core-seconds", type=float, help="fail when the tests take more processor time than this")
    parser.addoption("--until", type=float, help="Unix time from which on tests are skipped")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that ``nightly.txt`` names, by themselves or by their file."""
    names = set(NIGHTLY.read_text().splitlines())
    for item in items:
        test = item.nodeid.removeprefix("tests/").partition("[")[0].partition("@")[0]
        if test in names or test.partition("::")[0] in names:
            item.add_marker(pytest.mark.nightly)


def pytest_runtest_setup(item: pytest.Item) -> None:
    until = item.config.getoption("until")
    if until and time.time() > until:
        pytest.skip("no time left for the nightly tier")


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[_BUDGET] = 0.0


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand a worker's processor time to the controller, which adds it up and judges it."""
    config = session.config
    output = getattr(config, "workeroutput", None)
    if output is not None:
        output["processor_s"] = _processor_s()
        return
    budget = config.getoption("core_seconds")
    taken = _all_processor_s(config)
    if budget and taken > budget and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_testnodedown(node: object, error: object) -> None:
    output = getattr(node, "workeroutput", {})
    config: pytest.Config = node.config  # type: ignore[attr-defined]
    config.stash[_BUDGET] += output.get("processor_s", 0.0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if os.environ.get("PYTEST_XDIST_WORKER"):
        return
    taken, budget = _all_processor_s(config), config.getoption("core_seconds")
    limit = f" of {budget:.0f}" if budget else ""
    terminalreporter.write_line(f"processor time: {taken:.0f}{limit} s")
    if budget and taken > budget:
        terminalreporter.write_line(
            "The core tier takes too long: make its longest tests shorter, or name them in tests/nightly.txt", red=True
        )


def _all_processor_s(config: pytest.Config) -> float:
    """Return seconds of processor time of the session; workers, which are children too, count once."""
    workers = config.stash[_BUDGET]
    return workers + _used(resource.RUSAGE_SELF) if workers else _processor_s()


def _processor_s() -> float:
    """Return seconds of processor time of this process and the children that it waited for."""
    return _used(resource.RUSAGE_SELF) + _used(resource.RUSAGE_CHILDREN)


def _used(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime
