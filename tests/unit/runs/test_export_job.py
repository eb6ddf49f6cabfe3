"""seatrial export on the host side: the model that a word names, where it goes, and what is refused."""

from __future__ import annotations

import json
import os
import time
import zipfile
from pathlib import Path

import pytest

from cli_project import Project, environment
from seatrial.errors import DataError, UsageError
from seatrial.images.recipes import RECIPES
from seatrial.job.gpu_request import GpuRequest
from seatrial.job.model import Job, Target
from seatrial.runs.jobs import check_format, export_job, out_path
from seatrial.runs.models import EXPORT, SERVE, TrainedModel, check_model_file, find_model, of_file
from seatrial.runs.store import RunStore
from seatrial.system.host import Host


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project", "local", environment(tmp_path))


def store(project: Project) -> RunStore:
    return RunStore(project.folder, Host(project.environ))


def find(project: Project, word: str) -> TrainedModel:
    return find_model(word, project.folder / "models", store(project), EXPORT)


def job(project: Path, **fields: object) -> Job:
    return Job(project=project, target=Target(kind="recipe", value="digits"), **fields)  # type: ignore[arg-type]


def test_a_file(project: Project) -> None:
    path = project.write("deep/best.v2.pth", "x")
    found = find(project, str(path))
    assert (found.model, found.folder, found.name) == ("best.v2.pth", path.parent, "best.v2")
    spam = project.write("models/spam/model.safetensors", "x")
    assert find(project, str(spam)).model == "spam"
    with pytest.raises(DataError, match="File not found"):
        find(project, str(project.folder / "none.pt2"))
    with pytest.raises(UsageError, match="is a pickle: loading one can run any code"):
        find(project, str(project.write("m.pkl", "x")))
    with pytest.raises(UsageError, match="is an ONNX file already"):
        find(project, str(project.write("m.onnx", "x")))
    with pytest.raises(UsageError, match="is not a model that can be exported"):
        find(project, str(project.write("m.gguf", "x")))
    assert find(project, str(project.write("m.bin", "x"))).is_weights_alone


SAVES = """
import pathlib, sys, time
pathlib.Path("out").mkdir(exist_ok=True)
for name in sys.argv[2:]:
    pathlib.Path("out", name).write_text(name)
sys.exit(int(sys.argv[1]))
"""


def test_runs_of_a_script(project: Project) -> None:
    project.write("old.pt2", "of before")
    os.utime(project.folder / "old.pt2", (time.time() - 3600,) * 2)
    project.write("train.py", SAVES)

    project.run("train.py", "--gpus", "none", "--", "0", "best.pth", "notes.txt")
    run, when = project.last.name, (project.folder / "out/best.pth").stat().st_mtime

    def had_saved(*names: str) -> None:
        for path in (project.folder / "out").glob("*"):
            path.unlink()
        for name in names:
            os.utime(project.write(f"out/{name}", "x"), (when, when))

    found = find(project, "last")
    assert (found.model, found.of_run) == ("best.pth", run)
    assert find(project, run[-4:]).of_run == run
    had_saved("a.pth", "b.pth", "c.pt2", "c.examples.safetensors")
    assert find(project, "last").model == "c.pt2", "which needs no network to open it"
    had_saved("a.pth", "b.pth")
    with pytest.raises(UsageError, match="saved 2 models: ") as reported:
        find(project, "last")
    assert reported.value.run and reported.value.run.startswith("seatrial export") and "a.pth" in reported.value.run
    had_saved("notes.txt", "train.bin")  # which may be data
    with pytest.raises(UsageError, match="saved no model that is still there"):
        find(project, "last")
    project.run("train.py", "--gpus", "none", "--", "1", "half.pth", exit_code=1)
    with pytest.raises(UsageError, match="failed, so it has no trained model") as reported:
        find(project, "last")
    assert reported.value.run and reported.value.run.startswith("seatrial runs show")


def test_the_job(tmp_path: Path) -> None:
    model = TrainedModel("recipe", "digits", "digits", tmp_path / "models")
    requested = job(tmp_path, gpus=GpuRequest("count", 2), workdir="src", timeout_s=60)
    made = export_job(requested, model, "onnx", options=("--tolerance", "0.1"))
    assert made.target.value == "export" and made.gpus.kind == "none" and made.workdir is None and made.timeout_s == 60
    words = ("--model", "digits", "--to", "onnx", "--out", "exports/digits.onnx", "--tolerance", "0.1")
    assert made.target.args == words and made.target.typed == "export digits --to onnx"
    assert made.models is not None and made.models.read_only and made.criteria.model == ("exports/digits.onnx",)
    with pytest.raises(UsageError, match="not on Kubernetes"):
        export_job(job(tmp_path, backend="k8s"), model, "onnx")


def test_where_it_goes(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    assert out_path(tmp_path, "m", "pt2") == "exports/m.pt2"
    assert out_path(tmp_path, "m", "pt2", "made") == out_path(tmp_path, "m", "pt2", "made/") == "made/m.pt2"
    assert out_path(tmp_path, "m", "onnx", str(tmp_path / "x/../y.onnx")) == "y.onnx"
    for out in ("../m.onnx", "/tmp/m.onnx", "a/../../m.onnx"):
        with pytest.raises(UsageError, match="is outside the project"):
            out_path(tmp_path, "m", "onnx", out)
    with pytest.raises(UsageError, match=r"does not end in \.onnx") as reported:
        out_path(tmp_path, "m", "onnx", "made/m.pt2")
    assert reported.value.run and reported.value.run.endswith("--out made/m.onnx")
    (tmp_path / "away").symlink_to("/tmp")
    with pytest.raises(UsageError, match="is outside the project"):
        out_path(tmp_path, "m", "onnx", "away/m.onnx")
    with pytest.raises(UsageError, match="no such format"):
        check_format("tflite")


def test_both_sides_agree() -> None:
    pytest.importorskip("torch")
    from seatrial.export.formats import FORMATS
    from seatrial.recipe_names import WEIGHTS
    from seatrial.runs import jobs

    assert {name: f".{name}" for name in FORMATS} == jobs.SUFFIXES
    assert WEIGHTS.keys() == {name for name, each in RECIPES.items() if each.trains}


# -------------------------------------------------------------------- files


def safetensors(path: Path, *, cut: int = 0) -> Path:
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    whole = len(header).to_bytes(8, "little") + header + b"\0" * 8
    path.write_bytes(whole[: len(whole) - cut])
    return path


def zipped(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"x")
    return path


def check(path: Path) -> None:
    check_model_file(of_file(path, SERVE), SERVE)


def test_files_that_may_be_served(tmp_path: Path) -> None:
    (tmp_path / "w.examples.safetensors").write_bytes(b"")
    check(safetensors(tmp_path / "w.safetensors"))
    check(zipped(tmp_path / "n.pt2", "n/models/model.json"))


@pytest.mark.parametrize("cut", [1, 8, 30, 70])
def test_truncated(tmp_path: Path, cut: int) -> None:
    with pytest.raises(DataError, match=r"w\.safetensors is truncated") as reported:
        check(safetensors(tmp_path / "w.safetensors", cut=cut))
    assert (reported.value.run or "").startswith("ls -l ")
    whole = zipped(tmp_path / "n.pt2", "n/models/model.json").read_bytes()
    (tmp_path / "n.pt2").write_bytes(whole[:-cut])
    with pytest.raises(DataError, match=r"n\.pt2 is truncated"):
        check(tmp_path / "n.pt2")


def test_pickles_and_weights_alone(tmp_path: Path) -> None:
    (tmp_path / "old.pt").write_bytes(b"\x80\x02}q\x00.")
    for path in (zipped(tmp_path / "w.pt", "w/data.pkl", "w/data/0"), tmp_path / "old.pt"):
        with pytest.raises(UsageError, match="a pickle"):
            check(path)
    with pytest.raises(UsageError, match="holds weights without their network") as reported:
        check(safetensors(tmp_path / "w.safetensors"))
    assert (reported.value.run or "").endswith("w.safetensors --to pt2 --model MODULE:FUNCTION")


def test_an_export_reports_as_early_what_it_lacks(tmp_path: Path) -> None:
    for name in ("w.pt", "last.ckpt", "model_best.pth.tar", "pytorch_model.bin"):
        model = of_file(zipped(tmp_path / name, "w/data.pkl", "w/data/0"), EXPORT)
        with pytest.raises(UsageError, match=f"{name} holds weights without their network") as reported:
            check_model_file(model, EXPORT)
        assert (reported.value.run or "").endswith(f"{name} --to onnx --model MODULE:FUNCTION")
        check_model_file(model, EXPORT, with_network=True)
    assert of_file(tmp_path / "model_best.pth.tar", EXPORT).name == "model_best"
    (tmp_path / "w.pt").write_bytes((tmp_path / "w.pt").read_bytes()[:-30])
    with pytest.raises(DataError, match=r"w\.pt is truncated"):
        check_model_file(of_file(tmp_path / "w.pt", EXPORT), EXPORT, with_network=True)
