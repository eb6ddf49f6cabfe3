"""Stages as people write them, and the one sentence that names the field where they cannot be meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.errors import ConfigError, DataError, TargetError, UsageError
from seatrial.pipelines.stages.graph import Graph, read_graph

A = '[stages.a]\ntarget = "a.py"\n'
B = '[stages.b]\ntarget = "a.py"\n'


def read(folder: Path, text: str, **flags: str) -> Graph:
    (folder / "a.py").write_text("print(1)\n")
    (folder / "seatrial.toml").write_text(text)
    return read_graph(folder, flags, without_container=lambda name: name == "local", recipes=["digits"])


def test_a_stage_inherits_what_stands_outside_and_says_the_rest_itself(tmp_path: Path) -> None:
    text = f"""
name = "other"
target = "other.py"
args = ["--other"]
gpus = 2
timeout = "1h"
[env]
A = "1"
B = "1"
[image]
base = "debian:bookworm-slim"
system_packages = ["gcc"]
{A}args = ["--own"]
needs = ["b"]
env = {{B = 2}}
image = {{system_packages = ["git"]}}
{B}gpus = "none"
"""
    graph = read(tmp_path, text)
    assert list(graph.stages) == ["b", "a"], "what is needed comes first"
    a, b = (graph.job(graph.stages[name]) for name in "ab")
    assert (a.target.value, a.target.args, a.name, a.timeout_s) == ("a.py", ("--own",), None, 3600.0)
    assert a.env == {"A": "1", "B": "2"} and str(a.gpus) == "2" and str(b.gpus) == "none"
    assert a.image.base == "debian:bookworm-slim" and a.image.system_packages == ("gcc", "git")
    assert b.target.args == ()
    by_flag = read(tmp_path, text, gpus="none")
    assert str(by_flag.job(by_flag.stages["a"]).gpus) == "none"


def test_equals_keep_the_order_of_the_file(tmp_path: Path) -> None:
    text = "".join(f'[stages.{name}]\ntarget = "a.py"\n' for name in ("z", "m", "a"))
    assert list(read(tmp_path, text).stages) == ["z", "m", "a"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (A + 'needs = ["bb"]\n' + B, 'stages.a.needs: there is no stage "bb"; did you mean b?'),
        (A + 'needs = ["xyz"]\n' + B, 'stages.a.needs: there is no stage "xyz"; there are a, b'),
        (A + 'needs = ["a"]\n', "stages.a.needs: the stage needs itself"),
        (A + 'needs = ["b"]\n' + B + 'needs = ["a"]\n', "stages need each other in a circle: "),
        (A + 'outputs = ["x"]\n' + B + 'outputs = ["x/"]\n', "stages.b.outputs: x is written by the stage a, too"),
        (A + 'outputs = ["x/y"]\n' + B + 'outputs = ["x"]\n', "stages.b.outputs: x, which overlaps x/y"),
        (A + 'outputs = ["x"]\n' + B + 'inputs = ["x/y"]\n', 'stages.b.needs: add "a", which writes the input x/y'),
        (A + 'outputs = ["x"]\ninputs = ["x"]\n', "stages.a.inputs: x is an output of the same stage"),
        (A + 'outputs = ["link/x"]\n', "stages.a.outputs: link is a symlink; an output must be a real path"),
        (A + 'outputs = [".seatrial/x"]\n', "stages.a.outputs: '.seatrial/x' cannot be a stage's"),
        (A + 'outputs = ["."]\n', "stages.a.outputs: expected a path below the project's folder"),
        ("[stages.a]\ngpus = 1\n", "stages.a: nothing to run: set target, module or image.ready"),
        ('[stages.a]\ntarget = "export:onnx"\n', "stages.a.needs: one stage whose model is exported"),
        (A + '[stages.s]\nserve = "b"\n', 'stages.s.serve: there is no stage "b"'),
        (A + 'need = ["b"]\n', "stages.a.need: unknown key; did you mean needs?"),
        ("[stages.a.image]\nbas = 'x'\n", "stages.a.image.bas: unknown key; did you mean base?"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence_with_the_field(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "link").symlink_to("/tmp")
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, text)
    assert raised.value.message.startswith("seatrial.toml: ") and sentence in raised.value.message
    assert (raised.value.run or "").startswith("${EDITOR:-vi} ") and raised.value.exit_code == 2


def test_a_circle_of_three_is_named_in_order(tmp_path: Path) -> None:
    c = '[stages.c]\ntarget = "a.py"\nneeds = ["b"]\n'
    with pytest.raises(ConfigError, match="circle: "):
        read(tmp_path, A + 'needs = ["c"]\n' + B + 'needs = ["a"]\n' + c)


def test_data_that_another_stage_writes_need_not_be_there_yet(tmp_path: Path) -> None:
    graph = read(tmp_path, A + 'outputs = ["made"]\n' + B + 'needs = ["a"]\ndata = "made/train"\n')
    assert graph.job(graph.stages["b"], planning=True).data is not None
    with pytest.raises(DataError, match=r"stages\.b: data folder .*made/train does not exist"):
        graph.job(graph.stages["b"])


def test_a_script_that_is_missing_is_told_with_its_stage(tmp_path: Path) -> None:
    graph = read(tmp_path, '[stages.a]\ntarget = "b.py"\n')
    with pytest.raises(TargetError, match=r"stages\.a: there is no script b\.py"):
        graph.job(graph.stages["a"])


def test_chosen_stages_bring_what_they_need(tmp_path: Path) -> None:
    graph = read(tmp_path, A + 'needs = ["b"]\n' + B + '[stages.c]\ntarget = "a.py"\n')
    assert [stage.name for stage in graph.chosen(["a"])] == ["b", "a"]
    assert len(graph.chosen([])) == 3
    with pytest.raises(UsageError, match='There is no stage "aa"'):
        graph.chosen(["aa"])


S = '[stages.s]\nserve = "a"\n'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (A + S + 'target = "b.py"\n', "stages.s: it serves the model of a, and has no target of its own"),
        (A + S + "port = 70000\n", "stages.s.port: expected a port from 1 to 65535, got 70000"),
        (A + "port = 8000\n", "stages.a.port: it belongs to a stage that serves"),
        (A + S + '[stages.t]\nserve = "s"\n', "stages.t.serve: s serves, too; name the stage that makes the model"),
        (A + S + '[stages.t]\nserve = "a"\n', "stages.t.port: s serves on 8000, too"),
        (A + S + B + 'needs = ["s"]\n', "stages.b.needs: s serves until it is stopped; nothing can wait for its end"),
    ],
)
def test_what_cannot_be_served_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, text)
    assert sentence in raised.value.message


def test_a_stage_that_serves_waits_for_its_model_and_is_a_server(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    graph = read(tmp_path, A + 'outputs = ["made"]\n' + S + "port = 8123\n")
    stage = graph.stages["s"]
    assert (stage.needs, stage.target, [each.name for each in graph.chosen(["s"])]) == (("a",), "serve a", ["a", "s"])
    planned = graph.job(stage, planning=True)
    assert planned.serve is not None and planned.serve.port == 8123 and planned.watch.hang_after_s is None
    with pytest.raises(DataError, match=r"stages\.s\.serve: there is no model among the outputs made"):
        graph.job(stage)
    (tmp_path / "made" / "net.pt2").write_bytes(b"a program")
    job = graph.job(stage)
    assert job.serve is not None and job.models is not None and job.models.read_only
    assert (job.serve.kind, job.serve.model, job.models.source) == ("file", "net.pt2", tmp_path / "made")
    (tmp_path / "made" / "net.examples.safetensors").write_bytes(b"no model")
    assert graph.job(stage).serve == job.serve
    (tmp_path / "made" / "other.onnx").write_bytes(b"another")
    with pytest.raises(UsageError, match="2 models are among the outputs"):
        graph.job(stage)
