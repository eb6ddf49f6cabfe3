"""What makes a stage run again, each told by its name, and what does not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from seatrial.errors import DataError
from seatrial.pipelines.stages.decide import Decision, decide
from seatrial.pipelines.stages.digests import Digest, Digests
from seatrial.pipelines.stages.fingerprint import difference
from seatrial.pipelines.stages.graph import read_graph
from seatrial.pipelines.stages.record import Result

CONFIG = """
[image]
requirements = ["tqdm"]
[stages.first]
target = "first.py"
outputs = ["made"]
[stages.second]
target = "second.py"
needs = ["first"]
inputs = ["settings.json", "data"]
outputs = ["model"]
args = ["--fast"]
env_files = ["names.env"]
env = {SEED = 1}
"""


class Ground:
    """A project whose stages have both run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in {
            "seatrial.toml": CONFIG,
            "first.py": "print(1)\n",
            "second.py": "import helper, numpy\n",
            "helper.py": "from package import deep\n",
            "package/__init__.py": "",
            "package/deep.py": "x = 1\n",
            "unused.py": "x = 1\n",
            "settings.json": "{}",
            "data/a/b.txt": "b",
            "names.env": "A=1\n",
            "requirements.txt": "numpy\n",
            "made/x": "x",
            "model": "m",
        }.items():
            self.write(name, text)
        self.done = {"first": self.result("run-1", "made", {})}
        self.last: Result | None = None
        self.last = self.result("run-2", "model", self.decide().fingerprint)

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def result(self, run: str, output: str, fingerprint: dict[str, object]) -> Result:
        found = Digests(self.folder / "no-cache").of(self.folder, output)
        assert found is not None
        return Result(run, "group", fingerprint, wrote=(found,))

    def decide(self, *, force: bool = False, **flags: str) -> Decision:
        graph = read_graph(self.folder, flags, without_container=lambda name: False, recipes=[])
        stage = graph.stages["second"]
        digests = Digests(self.folder / "no-cache")
        return decide(stage, graph.job(stage), self.last, self.done, digests, dict(os.environ), force=force)


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


def test_nothing_changed(ground: Ground) -> None:
    found = ground.decide()
    assert found.holds == ground.last
    assert found.why == "same code, arguments, image, inputs and outputs of first"
    assert [piece.path for piece in found.read] == ["settings.json", "data", "made"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda g: g.write("second.py", "import helper, numpy  # x\n"), "second.py changed"),
        (lambda g: g.write("package/deep.py", "x = 2\n"), "package/deep.py changed"),
        (lambda g: g.write("settings.json", "[]"), "settings.json changed"),
        (lambda g: g.write("data/a/c.txt", ""), "data changed"),
        (lambda g: g.write("requirements.txt", "numpy==2\n"), "its image is another one: requirements.txt changed"),
        (lambda g: g.write("names.env", "A=2\n"), "its variables changed"),
        (lambda g: g.write("seatrial.toml", CONFIG.replace("SEED = 1", "SEED = 2")), "its variables changed"),
        (lambda g: g.write("seatrial.toml", CONFIG.replace("--fast", "--slow")), "its arguments changed"),
        (
            lambda g: g.write("seatrial.toml", CONFIG.replace('["tqdm"]', '["rich"]')),
            "its image is another one: image.requirements changed",
        ),
        (lambda g: g.write("model", "other"), "its output model was changed since"),
        (lambda g: (g.folder / "model").unlink(), "its output model is gone"),
    ],
)
def test_what_changed_is_told(ground: Ground, change: Callable[[Ground], object], why: str) -> None:
    change(ground)
    found = ground.decide()
    assert found.holds is None and found.why == why


@pytest.mark.parametrize(
    "change",
    [
        lambda g: g.write("unused.py", "x = 2\n"),
        lambda g: g.write("README.md", "hello"),
        lambda g: g.write("first.py", "print(2)\n"),
        lambda g: g.write("seatrial.toml", CONFIG + "timeout = 60\n"),
        lambda g: (g.folder / "second.py").touch(),
    ],
)
def test_what_has_no_part_in_it_is_no_reason(ground: Ground, change: Callable[[Ground], object]) -> None:
    change(ground)
    assert ground.decide().holds is not None


def test_the_needed_output_counts_by_content_and_a_need_without_one_by_its_run(ground: Ground) -> None:
    same = Digest("made", ground.done["first"].wrote[0].digest, 1, 1)  # type: ignore[index]
    ground.done["first"] = Result("another-run", "group", {}, wrote=(same,))
    assert ground.decide().holds is not None
    ground.done["first"] = Result("another-run", "group", {}, wrote=(Digest("made", "sha256:00", 1, 1),))
    assert ground.decide().why == "made of first changed"
    ground.done["first"] = Result("another-run", "group", {}, wrote=())
    assert ground.decide().why == "made of first and 1 more changed"


def test_force_gpus_and_a_missing_input(ground: Ground) -> None:
    assert ground.decide(force=True).why == "--force"
    assert ground.decide(gpus="none").why == "its settings changed: gpus"
    (ground.folder / "settings.json").unlink()
    with pytest.raises(DataError, match=r"stages\.second\.inputs: there is no settings\.json"):
        ground.decide()


def test_an_image_counts_by_its_id_and_one_that_was_pulled_meanwhile_is_the_same(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a ready image; the engine is asked for what its name stands for."""
    ids: list[str | None] = [None, "sha256:1", "sha256:1", "sha256:2"]
    monkeypatch.setattr("seatrial.pipelines.stages.fingerprint.image_id", lambda job, environ: ids.pop(0))
    ground.write("seatrial.toml", CONFIG.replace("[image]", '[image]\nready = "mine:latest"'))
    before = ground.decide().fingerprint
    pulled = ground.decide().fingerprint
    assert difference(before, pulled) is None
    ground.last = ground.result("run-2", "model", pulled)
    assert ground.decide().holds is not None
    assert ground.decide().why == "its image is another one: the image's ID changed"


def test_an_old_record_of_other_parts_runs_again(ground: Ground) -> None:
    ground.last = Result("run-2", "group", {"code": [], "strange": 1}, wrote=())
    assert ground.decide().holds is None
