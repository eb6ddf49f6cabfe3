"""The command line starts fast and imports nothing heavy."""

from __future__ import annotations

import json
import os
import resource
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from pace import slowness
from seatrial import cli

#: Of the issue: `seatrial --help` in under 100 ms. An idle core of 2020 takes 25 ms, of which Python itself 18.
LIMIT_S = 0.1


def test_help_is_fast():
    times = []
    for _ in range(7):
        started = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "seatrial", "--help"], capture_output=True, check=True)
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(ended.ru_utime + ended.ru_stime - started.ru_utime - started.ru_stime)
    # CPU time is what an idle machine takes, and the best of several: this one is busy with other tests.
    assert min(times) < LIMIT_S * slowness(), times


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
            patch.setattr("seatrial.cli.words.dispatch", raised)
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


# ------------------------------------------------------------------ modules


#: Runs a verb and prints the modules loaded by its end, or by what stands in for {}.
PROBE = """
import json, sys
from seatrial.cli import _main
loaded = None
{}
code = _main(sys.argv[1:])
print(json.dumps([code, loaded or sorted(sys.modules)]), file=sys.stderr)
"""

#: The engine's first call for a container.
FIRST_CALL = """
from seatrial.system import command
plain = command.run
def called(argv, **more):
    global loaded
    if loaded is None and "run" in argv:
        loaded = sorted(sys.modules)
    return plain(argv, **more)
command.run = called
"""

#: The expressions that our modules compile.
COMPILED = """
import re
plain, loaded = re.compile, []
def compiled(text, *flags, **named):
    if str(sys._getframe(1).f_globals.get("__name__")).startswith("seatrial."):
        loaded.append(str(text))
    return plain(text, *flags, **named)
re.compile = compiled
"""

#: The groups of entry points that are read, and the variable that a target would get in the end.
PLUG_INS = """
import importlib.metadata, os
loaded = []
plain = importlib.metadata.entry_points
importlib.metadata.entry_points = lambda **group: loaded.append(str(group)) or plain(**group)
_of_seatrial = _main
def _main(words):
    code = _of_seatrial(words)
    loaded.append(str(os.environ.get("PYDANTIC_DISABLE_PLUGINS")))
    return code
"""

#: What a plan of a Python script has no use for.
OF_OTHER_PLANS = {
    "images.lint.check",
    "job.shell_scripts",
    "cli.errors",
    "compose.console",
    "runs.models",
    "runs.status",
}
OF_OTHER_PLANS = {f"seatrial.{name}" for name in OF_OTHER_PLANS}

#: What no plan and no start of a run is to load.
SPEAKS_TO_CLUSTERS = {"asyncio", "kr8s", "httpx", "seatrial.backends.kubernetes.client"}
SPEAKS_HTTP = {"http.client", "ssl", "urllib.request"}
ENDS_RUNS = {"seatrial.runs.ending", "seatrial.receipt.model", "jinja2", "seatrial.doctor.examine"}
HEAVY = {"torch", "numpy"} | SPEAKS_TO_CLUSTERS | SPEAKS_HTTP | ENDS_RUNS


@pytest.fixture
def project(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)\n")
    places = {"XDG_CACHE_HOME": "cache", "SEATRIAL_STATE": "state", "SEATRIAL_LEASES": "leases"}
    return folder, {**os.environ, **{name: str(tmp_path / place) for name, place in places.items()}}


def modules(words: list[str], folder: Path, environ: Mapping[str, str], until: str = "") -> tuple[int, set[str]]:
    argv = [sys.executable, "-c", PROBE.format(until), *words]
    done = subprocess.run(argv, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    code, loaded = json.loads(done.stderr.splitlines()[-1])
    return code, set(loaded)


def ours(loaded: set[str]) -> int:
    return len({name for name in loaded if name.startswith("seatrial.")})


@pytest.mark.parametrize(
    ("words", "never", "most"),
    [
        ("plan train.py --on local", {"yaml", *OF_OTHER_PLANS}, 165),  # 154 on 2026-11-29
        ("--completion words runs show ''", {"pydantic", "rich", "seatrial.job.plan"}, 40),
        ("runs ls", {"pydantic", "rich"}, 45),
    ],
)
def test_a_verb_loads_what_it_uses(
    project: tuple[Path, dict[str, str]], words: str, never: set[str], most: int
) -> None:
    code, loaded = modules(shlex.split(words), *project)
    assert code == 0
    assert not (HEAVY | never) & loaded
    assert ours(loaded) <= most and len(loaded) <= 540, "492 on 2026-11-29"


def test_a_plan_compiles_the_expressions_that_it_uses(project: tuple[Path, dict[str, str]]) -> None:
    code, compiled = modules(shlex.split("plan train.py --on local"), *project, COMPILED)
    assert code == 0 and 20 < len(compiled) <= 80, "61 on 2026-11-29, 248 before"


def test_a_plan_asks_no_package_for_plug_ins_of_pydantic(project: tuple[Path, dict[str, str]]) -> None:
    code, loaded = modules(shlex.split("plan train.py --on local"), *project, PLUG_INS)
    assert code == 0 and loaded == {"None"}


@pytest.mark.docker
def test_a_run_up_to_the_engines_call(project: tuple[Path, dict[str, str]], docker_backend: object) -> None:
    """Load the judge of a run while its container starts."""
    words = ["run", "train.py", "--on", "docker", "--image", "python:3.11-slim-bookworm", "--gpus", "none"]
    code, loaded = modules(words, *project, FIRST_CALL)
    assert code == 0 and not HEAVY & loaded


@pytest.mark.parametrize("words", [["run", "--help"], ["plan", "--help"], ["run", "train.py", "--gpuss", "1"]])
def test_help_and_a_misspelt_flag_load_the_flags_alone(project: tuple[Path, dict[str, str]], words: list[str]) -> None:
    code, loaded = modules(words, *project)
    assert code == (2 if "--gpuss" in words else 0)
    assert not (HEAVY | {"pydantic", "seatrial.job.model", "seatrial.runs.launch"}) & loaded
    assert ours(loaded) <= 36


def test_a_receipt_that_is_there_is_shown_without_what_judges(project: tuple[Path, dict[str, str]]) -> None:
    code, _ = modules(["run", "train.py", "--on", "local", "--gpus", "none"], *project)
    assert code == 0
    code, loaded = modules(["runs", "show"], *project)
    assert code == 0 and "seatrial.receipt.model" in loaded
    judges = {"seatrial.receipt.judge", "seatrial.job.plan", "seatrial.backends.base"}
    assert not (HEAVY - {"seatrial.receipt.model"} | judges) & loaded
