"""Recorded failures of real builds, and the one sentence each becomes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from seatrial.errors import ImageError
from seatrial.images.build.failure import explain, readable
from seatrial.job.plan import ImagePlan
from tables import cases

RECORDED = Path(__file__).parents[3] / "recorded" / "images"
DOCKER = "docker-20.10.24-buildx-0.13.1-pip-23.0.1"
PODMAN = "podman-4.3.1-pip-23.0.1"
IMAGE = ImagePlan(tag="seatrial/demo:0123456789ab", build=True, base="seatrial-no-such-base:1")


def explained(folder: str, name: str) -> ImageError:
    lines = (RECORDED / folder / f"{name}.txt").read_text().splitlines()
    return explain([text for line in lines if (text := readable(line))], image=IMAGE, engine=folder.partition("-")[0])


@pytest.mark.parametrize("folder", [DOCKER, PODMAN])
@cases("name", "step", "reason", "run")
def test_both_engines(folder: str, name: str, step: str, reason: str, run: str) -> None:
    error = explained(folder, name)
    assert step in error.message
    assert reason in error.message
    assert run in (error.run or "")
    assert "\n" not in error.message


@cases("name", "reason", "run")
def test_docker(name: str, reason: str, run: str) -> None:
    error = explained(DOCKER, name)
    assert reason in error.message
    assert run in (error.run or "")


def test_a_base_that_a_reached_registry_lacks_is_no_reason_to_leave_the_container() -> None:
    assert "the name and tag seatrial-no-such-base:1" in (explained(PODMAN, "base").run or "")


def test_a_version_that_is_not_there_names_the_newest() -> None:
    cause = explained(DOCKER, "noversion").cause or ""
    assert "the newest is 2.4.6" in cause and "No matching distribution found for numpy==99.0" in cause


def test_an_unknown_failure_shows_the_tools_last_error() -> None:
    lines = ["[base 2/2] RUN frobnicate", "frob: starting", "error: frob is out of cheese", "ERROR: failed to solve: x"]
    error = explain(lines, image=IMAGE, engine="docker")
    assert error.message == f"Building {IMAGE.tag} failed: error: frob is out of cheese"


def test_guess_that_the_index_lacks_is_named_as_a_guess() -> None:
    guess = "einops-x is a guess: train.py:2 imports einops_x, and seatrial does not know its package"
    lines = [
        "ERROR: Could not find a version that satisfies the requirement einops-x (from versions: none)",
        "ERROR: No matching distribution found for einops-x",
    ]
    image = IMAGE.model_copy(update={"warnings": ("something else", guess)})
    error = explain(lines, image=image, engine="docker")
    assert error.cause == guess and "requirements.txt" in (error.run or "")
    assert "pip index versions" in (explain(lines, image=IMAGE, engine="docker").run or "")


@cases("line", "text")
def test_readable(line: str, text: str) -> None:
    assert readable(line) == text


def test_a_package_that_wants_another_framework_is_one_sentence() -> None:
    """pip 23.0.1, where fastai was added above a layer with torch 2.13."""
    printed = """ERROR: Cannot install fastai==2.7.19: these package versions have conflicting dependencies.
The conflict is caused by:
    fastai 2.7.19 depends on torch<2.7 and >=1.10
    The user requested (constraint) torch==2.13.0+cpu

To fix this you could try to:"""
    error = explain(printed.splitlines(), image=IMAGE, engine="docker")
    assert "fastai 2.7.19 depends on torch<2.7 and >=1.10; the image has torch==2.13.0+cpu" in error.message
    named = printed.replace("    fastai", "    The user requested torch==2.13.0\n    fastai", 1)
    error = explain(named.splitlines(), image=IMAGE, engine="docker")
    assert (
        "each other: The user requested torch==2.13.0; fastai 2.7.19 depends on torch<2.7 and >=1.10" in error.message
    )
    assert "constraint" not in error.message


@cases("key", "reason")
def test_reason_is_not_taken_from_the_picture_of_the_dockerfile(key: str, reason: str) -> None:
    """BuildKit from 0.14 on prints the lines around what failed, the last of them often empty: ``12 |``."""
    lines = json.loads((RECORDED / "build-errors.json").read_text())[key]["output"].splitlines()
    assert explain(lines, image=IMAGE, engine="docker").message.endswith(reason)


#: A step that prints an error and then a hint, and one that copies what is not there, as each builder logs them.
STEP, COPY = "configure: error: C compiler cannot create executables", "nosuch.txt"
BUILDERS = ("20.10-legacy", "20.10", "28.5-legacy", "28.5", "podman")


@cases("key", "reason")
def test_reason_is_the_failing_steps_own_error(key: str, reason: str) -> None:
    lines = json.loads((RECORDED / "build-errors.json").read_text())[key]["output"].splitlines()
    error = explain(lines, image=IMAGE, engine="docker")
    assert error.message.startswith(f"Building {IMAGE.tag} failed") and reason in error.message
    assert "ref " not in error.message and "STEP" not in error.message and "\x1b" not in error.message
    assert error.run not in ("docker info", None)


@pytest.mark.parametrize(
    "rest", ['; platform_system == "Linux" (from torch)', " (from -r requirements.txt (line 1))", ""]
)
def test_missing_package_is_named_without_its_marker_and_parent(rest: str) -> None:
    requested = f"satisfies the requirement cuda-toolkit==13.0.2{rest}"
    line = f"ERROR: Could not find a version that {requested} (from versions: none)"
    error = explain([line], image=IMAGE, engine="docker")
    assert error.message.endswith("the package index has no cuda-toolkit==13.0.2 for this image's Python")
