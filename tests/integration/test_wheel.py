"""The wheel, not the tree: built as a release is, installed as people do, and used from a folder without a checkout.

SEATRIAL_WHEEL_PYTHONS=3.10,3.13 takes other Pythons than the one that runs the tests; uv finds them, and a test fails
where one of them is not there.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from cli_project import environment

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
ASKED = os.environ.get("SEATRIAL_WHEEL_PYTHONS", "")
PYTHONS = (ASKED or ".".join(map(str, sys.version_info[:2]))).split(",")

pytestmark = pytest.mark.slow

#: Not here: what would let the tree answer in the wheel's place.
_NOT_PASSED_ON = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


def call(*argv: str | Path, cwd: Path, env: Mapping[str, str], timeout_s: float = 300) -> str:
    """Standard output; fails with both streams."""
    ended = subprocess.run(
        [str(word) for word in argv], cwd=cwd, env=dict(env), capture_output=True, text=True, timeout=timeout_s
    )
    assert ended.returncode == 0, f"{argv}: exit {ended.returncode}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("home")
    clean = {name: value for name, value in environment(folder).items() if name not in _NOT_PASSED_ON}
    own = {"PIPX_HOME": "pipx", "PIPX_BIN_DIR": "pipx-bin", "UV_TOOL_DIR": "uv", "UV_TOOL_BIN_DIR": "uv-bin"}
    return {**clean, **{name: str(folder / value) for name, value in own.items()}}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, env: dict[str, str]) -> Path:
    """From the sdist, as an index's users may have to; both pass twine's strict check."""
    pytest.importorskip("build")
    if not (ROOT / "pyproject.toml").exists():
        pytest.skip("the tests are not in a checkout")
    dist = tmp_path_factory.mktemp("dist")
    call(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, ROOT, cwd=dist, env=env)
    files = sorted(dist.iterdir())
    assert [file.suffix for file in files] == [".whl", ".gz"]
    call(sys.executable, "-m", "twine", "check", "--strict", *files, cwd=dist, env=env)
    return files[0]


def interpreter(version: str) -> str:
    """Return the Python of this version. Without one: fail if it was requested by name, otherwise skip."""
    if sys.version.startswith(f"{version}."):
        return sys.executable
    requested = [BIN / "uv", "python", "find", "--no-project", "--no-python-downloads", version]
    found = subprocess.run(requested, capture_output=True, text=True, cwd="/") if (BIN / "uv").exists() else None
    if found is None or found.returncode != 0:
        (pytest.fail if version in ASKED.split(",") else pytest.skip)(f"no Python {version} here")
    return found.stdout.strip()


def installed(how: str, python: str, wheel: Path, folder: Path, env: dict[str, str]) -> Path:
    """The program ``seatrial`` in an environment of its own, made as its users make one."""
    if how == "pip":
        call(python, "-m", "venv", folder / "venv", cwd=folder, env=env)
        call(folder / "venv" / "bin" / "python", "-m", "pip", "install", "--quiet", wheel, cwd=folder, env=env)
        return folder / "venv" / "bin" / "seatrial"
    if not (BIN / how).exists():
        pytest.skip(f"{how} is not installed")
    verb = {"pipx": ["install"], "uv": ["tool", "install", "--quiet"]}[how]
    call(BIN / how, *verb, "--python", python, wheel, cwd=folder, env=env)
    return Path(env[{"pipx": "PIPX_BIN_DIR", "uv": "UV_TOOL_BIN_DIR"}[how]]) / "seatrial"


@pytest.fixture(scope="module", params=PYTHONS)
def program(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, wheel: Path, env: dict[str, str]
) -> Path:
    """Installed with pip, for each Python."""
    return installed("pip", interpreter(request.param), wheel, tmp_path_factory.mktemp("pip"), env)


def test_nothing_answers_from_the_tree(program: Path, tmp_path: Path, env: dict[str, str]) -> None:
    where = "import seatrial, sys; print(seatrial.__file__)"
    file = call(program.parent / "python", "-c", where, cwd=tmp_path, env=env).strip()
    assert Path(file).is_relative_to(program.parents[1]), file


def test_a_script_runs_and_is_judged(program: Path, tmp_path: Path, env: dict[str, str]) -> None:
    """The agent, the hook, the templates of the receipt and the tables of versions come out of the wheel."""
    (tmp_path / "train.py").write_text("for epoch in range(3):\n    print('epoch', epoch, 'loss', 1 / (epoch + 1))\n")
    call(program, "run", "train.py", "--on", "local", "--gpus", "none", cwd=tmp_path, env=env)
    [run] = json.loads(call(program, "runs", "ls", "--json", cwd=tmp_path, env=env))
    page = tmp_path / ".seatrial" / "runs" / run["id"] / "receipt.html"
    assert "<style" in page.read_text() and "done on the CPU" in page.read_text()
    assert "intact" in call(program, "runs", "verify", cwd=tmp_path, env=env)


def test_a_recipe_is_planned_and_a_project_begun(program: Path, tmp_path: Path, env: dict[str, str]) -> None:
    planned = call(
        program, "plan", "digits", "--target", "h100", "--as", "compose", "--gpus", "1", cwd=tmp_path, env=env
    )
    assert "nvidia" in planned
    (tmp_path / "train.py").write_text("import torch\n")
    call(program, "init", cwd=tmp_path, env=env)
    assert "train.py" in (tmp_path / "seatrial.toml").read_text()


@pytest.mark.parametrize("how", ["pipx", "uv"])
def test_other_installers(how: str, wheel: Path, tmp_path: Path, env: dict[str, str]) -> None:
    program = installed(how, sys.executable, wheel, tmp_path, env)
    assert call(program, "--version", cwd=tmp_path, env=env).startswith("seatrial ")
    checks = subprocess.run(
        [program, "doctor", "--on", "local", "--host-only", "--json"], cwd=tmp_path, env=env, capture_output=True
    )
    assert json.loads(checks.stdout)["checks"] and not checks.stderr


def promised() -> list[str]:
    """The Pythons of the classifiers."""
    return re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())


@pytest.mark.parametrize("version", promised())
def test_the_pins_hold_for_every_python(version: str, tmp_path: Path, env: dict[str, str]) -> None:
    """Detect here, and not at a user's, that a new release of a package drops the oldest Python.

    Wheels only: nobody should need a compiler for a checkout.
    """
    if not (BIN / "uv").exists():
        pytest.skip("uv is not installed")
    groups = [word for name in ("test", "lint", "wheel", "docs") for word in ("--group", f"pyproject.toml:{name}")]
    chosen = ["--all-extras", "--only-binary", ":all:", "--constraints", "constraints.txt", *groups]
    machine = ["--python-version", version, "--python-platform", "x86_64-manylinux_2_28"]
    lock = tmp_path / "lock.txt"
    call(BIN / "uv", "pip", "compile", "--quiet", "pyproject.toml", *chosen, *machine, "-o", lock, cwd=ROOT, env=env)
    assert "torch==" in lock.read_text()


@pytest.mark.parametrize("version", ["3.10", "3.11"])
def test_the_lower_bounds_are_true(version: str, wheel: Path, tmp_path: Path, env: dict[str, str]) -> None:
    """With the oldest of each package that the metadata allows. Only older Pythons have wheels of all of these."""
    if not (BIN / "uv").exists():
        pytest.skip("uv is not installed")
    python = interpreter(version)
    call(python, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path, env=env)
    into = ["--quiet", "--python", tmp_path / "venv" / "bin" / "python", "--only-binary", ":all:"]
    oldest = ["--resolution", "lowest-direct", "--python-version", version, "-o", tmp_path / "oldest.txt"]
    call(BIN / "uv", "pip", "compile", "--quiet", ROOT / "pyproject.toml", *oldest, cwd=tmp_path, env=env)
    call(BIN / "uv", "pip", "install", *into, "-r", tmp_path / "oldest.txt", cwd=tmp_path, env=env)
    call(BIN / "uv", "pip", "install", *into, "--no-deps", wheel, cwd=tmp_path, env=env)
    program = tmp_path / "venv" / "bin" / "seatrial"
    for verb in ("run", "plan", "runs", "doctor", "init", "sweep", "dashboard"):
        assert "Usage: seatrial" in call(program, verb, "--help", cwd=tmp_path, env=env)
    test_a_script_runs_and_is_judged(program, tmp_path, env)
    test_a_recipe_is_planned_and_a_project_begun(program, tmp_path, env)


@pytest.mark.docker
def test_the_demo_of_the_readme(program: Path, tmp_path: Path, env: dict[str, str], docker_backend: object) -> None:
    """``seatrial run digits`` trains in a container; after ``make demo`` its image is there."""
    demo = tmp_path / "demo"
    demo.mkdir()
    printed = call(program, "run", "digits", "--gpus", "none", cwd=demo, env=env, timeout_s=900)
    assert "accuracy" in printed and (demo / "models" / "digits.safetensors").is_file()
