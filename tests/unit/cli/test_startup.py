"""The command line starts fast and imports nothing heavy."""

import resource
import statistics
import subprocess
import sys

import pytest

from pace import slowness
from seatrial import cli

#: Of the issue: `seatrial --help` in under 100 ms. An idle core of 2020 takes 25 ms, of which Python itself 18.
LIMIT_S = 0.1

BLOCK_TORCH = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "numpy"}:
            raise AssertionError(f"{name} was imported")
sys.meta_path.insert(0, Blocked())
from seatrial.cli import _main
code = _main(sys.argv[1:])
heavy = ("rich", "click", "pydantic")
print([name for name in heavy if name in sys.modules], file=sys.stderr)
sys.exit(code)
"""


def seatrial(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", BLOCK_TORCH, *arguments], capture_output=True, text=True, check=False)


def cpu_s_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_help_is_fast():
    times = []
    for _ in range(7):
        started = cpu_s_of_children()
        subprocess.run([sys.executable, "-m", "seatrial", "--help"], capture_output=True, check=True)
        times.append(cpu_s_of_children() - started)
    # CPU time is what an idle machine takes, and the best of several: this one is busy with other tests.
    assert min(times) < LIMIT_S * slowness(), f"best {min(times):.3f} s, median {statistics.median(times):.3f} s"


def test_help_imports_nothing_heavy():
    done = seatrial("--help")
    assert done.returncode == 0
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize("traceback", ["", "1"])
def test_a_closed_pipe_is_141_and_ctrl_c_is_130_wherever_they_come(traceback, monkeypatch, capsys):
    monkeypatch.setenv("SEATRIAL_TRACEBACK", traceback)

    def exit_of_a_library(argv):
        try:
            raise BrokenPipeError
        except BrokenPipeError:
            raise SystemExit(1)  # noqa: B904  as rich does

    for raised, code in ((exit_of_a_library, 141), (interrupted, 130)):
        with monkeypatch.context() as patch:
            patch.setattr("seatrial.cli.options.dispatch", raised)
            assert cli._main(["plan"]) == code
    monkeypatch.setattr(cli.terminal, "finish", lambda: interrupted([]))
    assert cli._main(["--version"]) == 130
    assert capsys.readouterr().err == "stopped\nstopped\n"


def test_ctrl_c_in_a_verb_and_below_one_is_printed(tmp_path, monkeypatch, capsys):
    (tmp_path / "train.py").write_text("")
    monkeypatch.setattr("seatrial.runs.launch.plan_only", lambda *_: interrupted([]))
    monkeypatch.setattr("seatrial.runs.store.RunStore.find", lambda *_, **__: interrupted([]))
    assert cli._main(["plan", "train.py", "--on", "local", "-C", str(tmp_path)]) == 130
    assert cli._main(["runs", "show", "x", "-C", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "stopped\nstopped\n"


def interrupted(argv):
    raise KeyboardInterrupt
