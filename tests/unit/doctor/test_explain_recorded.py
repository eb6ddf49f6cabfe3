"""explain and what engines, builds and clusters print: whole, cut in two, behind a timestamp, in other quotes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from seatrial.doctor.explain import explain_stream, explain_text
from seatrial.findings.catalogue import LAYERS, entries
from seatrial.images.build.failure import explain as explain_build
from seatrial.images.build.failure import readable
from seatrial.job.plan import ImagePlan
from tables import cases, constant

RECORDED = Path(__file__).parents[2] / "recorded"
ENGINE = json.loads((RECORDED / "engine-errors.json").read_text())
BUILDS = sorted((RECORDED / "images").glob("*/*.txt"))

#: A folder that the image does not have: no failure of a run.
UNKNOWN = ("docker-workdir", "podman-workdir", "docker-28.5-workdir")

#: As kubectl describe and kubectl get events print them.
CLUSTER = constant(__file__, "CLUSTER")


def ids(text: str) -> list[str]:
    return [finding.id for finding in explain_text(text)]


@pytest.mark.parametrize("key", ENGINE)
def test_engines_words_are_known(key: str) -> None:
    found = explain_text(ENGINE[key]["stderr"])
    assert bool(found) == (key not in UNKNOWN)
    assert not found or key.partition("-")[0].capitalize() in found[0].message or "{" not in found[0].message


@pytest.mark.parametrize("path", BUILDS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_build_log_gets_the_advice_of_the_build_error(path: Path) -> None:
    engine = path.parent.name.partition("-")[0]
    with path.open("rb") as log:
        [found] = explain_stream(log)
    lines = [text for line in path.read_text().splitlines() if (text := readable(line))]
    result = explain_build(lines, image=ImagePlan(tag="x:1", build=True, base="<base>"), engine=engine)
    assert found.cause and (result.cause or "").startswith(found.cause)
    if "{base}" not in next(entry.fix for entry in entries() if entry.id == found.id):
        assert result.run == found.fix


@pytest.mark.parametrize("text", CLUSTER, ids=lambda text: text[:40])
def test_clusters_words_are_known(text: str) -> None:
    assert ids(text) == [CLUSTER[text]]


ALL = {key: ENGINE[key]["stderr"].strip().splitlines()[-1 if key.startswith("podman") else 0] for key in ENGINE
       if key not in (*UNKNOWN, "docker-permission")}  # fmt: skip


@pytest.mark.parametrize("text", [*ALL.values(), *CLUSTER], ids=lambda text: text[:60])
def test_however_it_was_copied(text: str) -> None:
    whole = ids(text)
    assert len(whole) == 1
    assert ids(f"2026-11-22T04:05:06.789Z {text}") == whole
    assert ids(f"[04:05:06] ERROR {text}") == whole
    assert ids(text.upper()) == ids(text.lower()) == whole
    assert ids(json.dumps({"level": "error", "msg": text})) == whole
    assert ids(text.replace('"', "'")) == ids(text.replace('"', "“")) == whole


@pytest.mark.parametrize("text", [*ALL.values(), *CLUSTER], ids=lambda text: text[:60])
def test_a_line_that_was_broken_in_two(text: str) -> None:
    """By a terminal, and by a logger that puts a time before both parts. Words stay whole."""
    middle = text.rfind(" ", 0, len(text) // 2)
    first, second = text[:middle], text[middle + 1 :]
    assert ids(f"{first}\n    {second}") == ids(text)
    assert ids(f"2026-11-22 04:05:06 {first}\n2026-11-22 04:05:06 {second}") == ids(text)


@cases("half", "id")
def test_half_a_message_is_guessed(half: str, id: str) -> None:
    [found] = explain_text(half)
    assert found.id == id
    assert found.evidence[0].startswith(("part of a line: ", "line 1: "))


@pytest.mark.parametrize("text", ["", "hello", "the requirements of the device", "KeyError: 'x'", "could not select"])
def test_too_little_is_not_guessed(text: str) -> None:
    assert explain_text(text) == []


def test_every_layer_is_known_to_explain() -> None:
    assert all(entries((layer,)) for layer in LAYERS)
    assert set(entries()) == {entry for layer in LAYERS for entry in entries((layer,))}
