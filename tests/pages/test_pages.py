"""Executable pages print what they show, and every other block gives a reason."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from functools import cache
from pathlib import Path

import pytest

from seatrial.cli.options import options_of

from . import console

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
EXAMPLES = sorted(ROOT.glob("examples/*/README.md"))

#: Records of runs.
NOT_WRITTEN = ("docs/receipts/",)

#: Pages by their path from the root.
WRITTEN = {
    name: page.read_text(encoding="utf-8")
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md")), *EXAMPLES)
    if not (name := page.relative_to(ROOT).as_posix()).startswith(NOT_WRITTEN)
}

PAGES = {name: page for name, page in WRITTEN.items() if console.EXECUTABLE.search(page)}

#: Pages that the core tier runs, of a few seconds each: no image is built for them.
FIRST = "docs/start.md"
CORE = (FIRST, *(f"examples/{name}/README.md" for name in ("distributed", "matmul", "spam")))

#: The longest pages train and serve; with a busy machine's patience.
TIMEOUT_S = 900


def environment(folder: Path) -> dict[str, str]:
    """Return a new user's environment with this installation's seatrial."""
    names = ("LANG", "LC_ALL", "SEATRIAL_STATE", "PYTHONPATH", "DOCKER_HOST", "DOCKER_CONFIG")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    kept["OMP_NUM_THREADS"] = "1"  # torch's threads wait for each other in loops, on cores that others want
    return {**kept, "PATH": path, "HOME": str(folder), "COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}


def commands(page: str) -> Iterator[list[str]]:
    """Yield the arguments of each ``seatrial`` command on a page."""
    for block in console.blocks(page):
        for command in block.commands:
            lexer = shlex.shlex(command.typed.replace("\\\n", " "), posix=True, punctuation_chars="();<>|&")
            lexer.whitespace_split, lexer.commenters = True, "#"
            here: list[str] | None = None
            for word in [*lexer, ";"]:
                if set(word) <= set("();<>|&") or (here is None and word == "seatrial"):
                    if here:
                        yield here
                    here = [] if word == "seatrial" else None
                elif here is not None:
                    here.append(word)


@cache
def options() -> dict[str, set[str]]:
    """Return the options of each command, by its words."""
    spec = importlib.util.spec_from_file_location("generate_reference", DOCS / "reference" / "generate.py")
    assert spec is not None and spec.loader is not None
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    return {name: set(options_of(*name.split())) for name, _ in reference.commands()}


def verb_of(typed: list[str]) -> str:
    return next((name for name in (" ".join(typed[:2]), typed[0]) if name in options()), "")


def test_there_are_executable_pages() -> None:
    assert FIRST in PAGES
    assert len(PAGES) >= 15


@pytest.mark.parametrize("name", WRITTEN)
def test_blocks_are_run_or_give_a_reason(name: str) -> None:
    found = [block for block in console.blocks(WRITTEN[name]) if block.commands]
    if name in PAGES:
        assert any(not block.recorded and not block.not_run for block in found), "nothing on it is run"
    for block in found:
        assert block.recorded is None or date(2026, 11, 1) <= block.recorded, f"{name}:{block.line}"
        assert name in PAGES or block.recorded or block.not_run, f"{name}:{block.line} is not run and gives no reason"
        # Blocks that wait for a GPU use one form, which the site rewrites: docs/site_hooks.py.
        assert not re.match(r"(?!needs )[^;[]*GPU", block.not_run), f"{name}:{block.line}"


@pytest.mark.parametrize("name", WRITTEN)
def test_verbs_and_flags_of_pages_exist(name: str) -> None:
    """Also in blocks that are not run. Arguments after -- belong to the target."""
    for typed in commands(WRITTEN[name]):
        if typed[:1] in ([], ["--help"], ["--version"], ["--completion"], ["VERB"], ["COMMAND"]):
            continue
        verb = verb_of(typed)
        assert verb, f"{name}: no verb: seatrial {' '.join(typed)}"
        ours = typed[: typed.index("--")] if "--" in typed else typed
        used = {word.partition("=")[0] for word in ours if word.startswith("-") and len(word) > 1}
        assert used <= options()[verb] | {"--help"}, f"{name}: seatrial {' '.join(typed)}"


def test_every_verb_is_on_an_executable_page() -> None:
    typed = {verb_of(words) for page in PAGES.values() for words in commands(page) if words}
    assert set(options()) <= typed


@pytest.mark.timeout(TIMEOUT_S + 60)
@pytest.mark.parametrize(
    "name", [page if page in CORE else pytest.param(page, marks=pytest.mark.slow) for page in PAGES]
)
def test_page_prints_what_it_shows(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("the pages show what happens without a GPU")
    page, environ = PAGES[name], environment(tmp_path / "home")
    needs = console.EXECUTABLE.search(page)
    if needs and needs[1]:
        request.getfixturevalue("docker_backend")
    if needs and needs[1] == "cluster":
        if shutil.which("kubectl") is None:
            pytest.skip("kubectl is not installed")
        cluster = request.getfixturevalue("cluster_environ")
        environ |= {name: cluster[name] for name in ("KUBECONFIG", "DOCKER_HOST")}
    for typed, needed in (("--search tpe", "optuna"), ("--track tensorboard", "tensorboard")):
        if typed in page:
            pytest.importorskip(needed)
    if any(
        words in page for words in ("run digits", "sweep digits", "bench ", "tune digits", "torchrun ", "predict.py")
    ):
        pytest.importorskip("torch")
        pytest.importorskip("sklearn")
    project = tmp_path / f"page-{Path(name).stem}"
    (tmp_path / "home").mkdir()
    if ROOT / name in EXAMPLES:
        project = tmp_path / (ROOT / name).parent.name
        shutil.copytree((ROOT / name).parent, project, ignore=shutil.ignore_patterns(".seatrial", "models", "*cache*"))
    else:
        project.mkdir()
    for other, file in console.borrowed(page):
        shown = (ROOT / name).parent.joinpath(other).read_text(encoding="utf-8")
        (project / file).write_text(next(block.text for block in console.blocks(shown) if block.file == file))
    try:
        wrong = console.run(page, project, environ, TIMEOUT_S)
    finally:
        _remove_images(project)
    assert not wrong, "\n\n".join(wrong)


def _remove_images(project: Path) -> None:
    """Remove what a page has built, and what Compose keeps of its file; layers stay in the engine's cache."""
    if (project / "compose.yaml").exists():
        words = ["docker", "compose", "down", "--volumes", "--rmi", "local", "--remove-orphans"]
        subprocess.run(words, cwd=project, capture_output=True, timeout=300)
    listing = ["docker", "images", "--quiet", "--filter", f"reference=seatrial/{project.name}"]
    try:
        found = subprocess.run(listing, capture_output=True, text=True, timeout=300).stdout.split()
        if found:
            subprocess.run(["docker", "image", "rm", "--force", *set(found)], capture_output=True, timeout=300)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        pass
