"""Stages that export: which model, which outputs, and what is wrong in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.errors import ConfigError, DataError, UsageError
from seatrial.images.recipes import RECIPES
from seatrial.pipelines.stages.graph import Graph, read_graph


def graph(project: Path, text: str) -> Graph:
    (project / "seatrial.toml").write_text(text)
    (project / "train.py").write_text("")
    return read_graph(project, {}, without_container=lambda name: name == "local", recipes=RECIPES)


TRAIN = '[stages.train]\ntarget = "digits"\noutputs = ["models"]\n'


def test_of_a_recipe(tmp_path: Path) -> None:
    made = graph(tmp_path, TRAIN + '[stages.onnx]\ntarget = "export:onnx"\nneeds = ["train"]\n')
    stage = made.stages["onnx"]
    assert stage.target == "export:onnx"
    assert stage.outputs == ("exports/digits.onnx", "exports/digits.json", "exports/digits.examples.safetensors")
    job = made.job(stage, planning=True)
    assert job.target.args == ("--model", "digits", "--to", "onnx", "--out", "exports/digits.onnx")
    assert job.models is not None and job.models.source == tmp_path / "models" and job.gpus.kind == "none"
    assert job.outputs == stage.outputs


def test_of_a_script_with_a_factory(tmp_path: Path) -> None:
    train = '[stages.train]\ntarget = "train.py"\noutputs = ["models/best.pth", "curve.png"]\n'
    export = '[stages.e]\ntarget = "export:pt2"\nneeds = ["train"]\nargs = ["--model-factory", "net:make"]\n'
    made = graph(tmp_path, train + export + 'outputs = ["deploy"]\n')
    stage = made.stages["e"]
    assert stage.outputs == ("deploy",)
    args = made.job(stage, planning=True).target.args
    assert args == ("--model", "best.pth", "--to", "pt2", "--out", "deploy/best.pt2", "--model-factory", "net:make")
    named = export.replace('["--model-factory"', '["--model", "models/last.pth", "--model-factory"')
    train = train.replace("models/best.pth", "models")
    made = graph(tmp_path, train + named + 'outputs = ["deploy/m.pt2"]\n')
    assert made.job(made.stages["e"], planning=True).target.args[:6] == (
        *("--model", "last.pth", "--to", "pt2"),
        *("--out", "deploy/m.pt2"),
    )
    assert made.stages["e"].outputs == ("deploy/m.pt2", "deploy/m.json", "deploy/m.examples.safetensors")


def test_the_model_in_a_folder_is_found_when_it_is_there(tmp_path: Path) -> None:
    train = '[stages.train]\ntarget = "train.py"\noutputs = ["models"]\n'
    serve = '[stages.serve]\nserve = "onnx"\n'
    made = graph(tmp_path, train + '[stages.onnx]\ntarget = "export:onnx"\nneeds = ["train"]\n' + serve)
    stage = made.stages["onnx"]
    assert stage.outputs[0] == "exports/train.onnx" and made.job(stage, planning=True)
    with pytest.raises(DataError, match=r"stages.onnx.needs: there is no model among the outputs models"):
        made.job(stage)
    (tmp_path / "models").mkdir()
    (tmp_path / "models/net.pt2").write_text("")
    assert made.job(stage).target.args[:2] == ("--model", "net.pt2")
    (tmp_path / "models/other.pt2").write_text("")
    with pytest.raises(UsageError, match=r"stages.onnx.needs: 2 models are among the outputs") as told:
        made.job(stage)
    assert "seatrial export" in (told.value.run or "")
    for suffix in ("onnx", "json", "examples.safetensors"):
        (tmp_path / "exports").mkdir(exist_ok=True)
        (tmp_path / f"exports/train.{suffix}").write_text("")
    served = made.job(made.stages["serve"]).serve
    assert served is not None and (served.kind, served.model) == ("file", "train.onnx")


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        ('target = "export:tflite"\nneeds = ["train"]', "no format 'tflite'; expected export:onnx"),
        ('target = "export:"\nneeds = ["train"]', "no format ''"),
        ('target = "export:onnx"', "one stage whose model is exported"),
        ('target = "export:onnx"\nneeds = ["train", "more"]', "there are 2"),
        (
            'target = "export:onnx"\nneeds = ["more"]',
            "stages.more.outputs: no model and no folder is among them for e: name the file",
        ),
        ('target = "export:onnx"\nneeds = ["nobody"]', 'needs: there is no stage "nobody"'),
        ('target = "export:onnx"\nneeds = ["train"]\noutputs = ["models/d.onnx"]', "overlaps models"),
    ],
)
def test_what_cannot_be_meant(tmp_path: Path, stage: str, said: str) -> None:
    more = '[stages.more]\ntarget = "train.py"\noutputs = ["a.txt"]\n'
    with pytest.raises(ConfigError) as told:
        graph(tmp_path, f"{TRAIN}{more}[stages.e]\n{stage}\n")
    assert said in f"{told.value.message} {told.value.cause}"
