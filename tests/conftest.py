"""Every test has a state folder of its own session, never the developer's."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

#: The real engines, the cluster and a driver without a GPU, for tests/integration and tests/attacks.
pytest_plugins = ["engines", "fake_driver", "tiers"]

#: Scripts as people write them, one of which is called test_….py; tests/unit/diagnosis judges what they recorded.
collect_ignore = ["lab/bound"]


# Who starts the tests in the background of a script leaves them deaf to Ctrl-C (nohup: to a hang-up), and all processes
# that they start; Python then makes no KeyboardInterrupt of it.
for _number, _default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, _default)

# torch's threads wait in busy loops on cores that other tests need, which takes three times the processor time.
os.environ.setdefault("OMP_NUM_THREADS", "1")

#: Where the longest tests are. They start first, so that at the end only short ones are left and no worker waits.
LONGEST = ("integration", "attacks", "corpus", "fuzz", "unit/train", "unit/cli")


def pytest_configure(config: pytest.Config) -> None:
    """Hypothesis measures no time; in the core tier it tries the same 30 cases each time, in the full tier others."""
    quiet = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "database": None}
    core = "not slow" in config.getoption("markexpr")
    settings.register_profile("tier", derandomize=core, max_examples=30 if core else 100, **quiet)
    settings.load_profile("tier")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests recorded as ``summary``, from whichever worker they ran on."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "summary":
                terminalreporter.write_line(str(value))


@pytest.hookimpl(tryfirst=True)  # before xdist asks for the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The core tier runs a test of both engines on Docker; on Podman, too, where it is marked ``both_engines``.

    Tests of one file run on one worker, in their order, so that a module's fixtures are made once.
    """
    for item in items:
        if item.get_closest_marker("kubernetes"):
            item.add_marker(pytest.mark.docker)
            item.add_marker(pytest.mark.xdist_group("kubernetes"))
        if item.get_closest_marker("podman") and _repeats_docker(item) and not item.get_closest_marker("both_engines"):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("docker_is_enough") and "local" in _parameters(item):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.relative_to(item.config.rootpath).as_posix()))
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    """Return the place of its folder in ``LONGEST``; all others follow."""
    here = item.path.relative_to(item.config.rootpath / "tests").as_posix()
    return next((place for place, folder in enumerate(LONGEST) if here.startswith(folder)), len(LONGEST))


def _repeats_docker(item: pytest.Item) -> bool:
    return bool({"podman", "podman_backend"} & _parameters(item))


def _parameters(item: pytest.Item) -> set[str]:
    callspec = getattr(item, "callspec", None)
    return {str(value) for value in callspec.params.values()} if callspec else set()


@pytest.fixture(scope="session", autouse=True)
def working_directory() -> Iterator[None]:
    """A folder that shares no beginning with others and takes no files: what a test prints or writes by a relative path
    does not depend on where the checkout lies."""
    before = Path.cwd()
    os.chdir("/sys")
    yield
    os.chdir(before)


@pytest.fixture(scope="session", autouse=True)
def state_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    before = os.environ.get("SEATRIAL_STATE")
    os.environ["SEATRIAL_STATE"] = str(tmp_path_factory.mktemp("state"))
    yield
    if before is None:
        del os.environ["SEATRIAL_STATE"]
    else:
        os.environ["SEATRIAL_STATE"] = before
