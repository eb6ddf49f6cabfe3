"""Models that can be served, and files that are refused."""

import io
import json
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from own_models import save_recipe  # noqa: E402
from seatrial.serve.errors import BadInputError  # noqa: E402
from seatrial.serve.runners.open import open_model  # noqa: E402
from seatrial.train.errors import TrainError  # noqa: E402
from seatrial.train.saving.examples import Examples, Normalisation, examples_path, save_examples  # noqa: E402
from seatrial.train.saving.model_files import weights_digest  # noqa: E402

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")


@pytest.fixture
def models(tmp_path, monkeypatch):
    monkeypatch.setenv("SEATRIAL_MODELS_DIR", str(tmp_path))
    return tmp_path


def test_recipes_model_answers_as_the_trained_one(models):
    model, images, _ = save_recipe(models)
    served = open_model("digits", CPU, max_batch=8)
    warm = served.warm_up()
    assert warm.examples == 16 and warm.largest_difference < 1e-5
    with torch.no_grad():
        expected = model.eval()(Normalisation.of(images)(images.float())).softmax(1)
    rows, _ = served.reader.rows({"inputs": images[:, 0].tolist()})
    for first in range(0, 20, 8):
        answers = served.predict(rows[first : first + 8])
        np.testing.assert_allclose(np.stack([a[0] for a in answers]), expected[first : first + 8], atol=1e-5)


def test_damaged_other_and_bare_weights_are_refused_before_the_first_request(models):
    model, _, weights = save_recipe(models)
    whole = weights.read_bytes()
    for cut in (0, 5, 100, len(whole) // 2, len(whole) - 1):
        weights.write_bytes(whole[:cut])
        with pytest.raises(TrainError):
            open_model("digits", CPU)
    weights.write_bytes(whole)
    (models / "trained-model.safetensors").write_bytes(whole)
    examples_path(weights).unlink()
    for name, reason in (("mnist-deep", "another model"), ("digits", "normalised"), ("spam", "spam")):
        with pytest.raises(TrainError, match=reason):
            open_model(name, CPU)
    with torch.no_grad():
        model[0].weight[0, 0, 0, 0] = float("nan")
    save_recipe(models, model=model)
    with pytest.raises(TrainError, match="not finite"):
        open_model("digits", CPU).warm_up()


MARK = Path("/tmp/seatrial-was-run-by-a-pickle")


class Evil:
    def __reduce__(self):
        return os.mkdir, (str(MARK),)


@pytest.mark.parametrize("name", ["m.pt", "m.pth", "m.pt2", "m.onnx", "m.safetensors", "m.pkl", "m.bin"])
@pytest.mark.parametrize("how", ["zip", "bare"])
def test_pickle_is_refused_under_any_name_and_runs_nothing(tmp_path, name, how):
    path = tmp_path / name
    torch.save(Evil(), path) if how == "zip" else path.write_bytes(pickle.dumps(Evil()))
    with pytest.raises(TrainError, match="any code") as caught:
        open_model(str(path), CPU)
    assert caught.value.fix and not MARK.exists()


def test_pickle_among_a_programs_example_inputs_runs_nothing(tmp_path):
    program, evil, file = tmp_path / "m.pt2", tmp_path / "evil.pt2", io.BytesIO()
    torch.export.save(torch.export.export(torch.nn.Linear(2, 2), (torch.zeros(1, 2),)), program)
    assert open_model(str(program), CPU)
    torch.save(Evil(), file)
    with zipfile.ZipFile(program) as source, zipfile.ZipFile(evil, "w", zipfile.ZIP_STORED) as made:
        for name in source.namelist():
            made.writestr(name, file.getvalue() if "/sample_inputs/" in name else source.read(name))
        assert any("/sample_inputs/" in name for name in source.namelist())
    with pytest.raises(TrainError):
        open_model(str(evil), CPU)
    assert not MARK.exists()


def _headers():
    whole = {"w": {"dtype": "F32", "shape": [10**10], "data_offsets": [0, 4 * 10**10]}}
    others = ({"w": {**whole["w"], **change}} for change in ({"shape": [-1]}, {"data_offsets": [8, 0]}))
    for header in (whole, *others, [], {"w": 1}):
        data = json.dumps(header).encode()
        yield len(data).to_bytes(8, "little") + data
    yield (2**63).to_bytes(8, "little")
    yield (10**7).to_bytes(8, "little") + b"[" * 10**7


@pytest.mark.parametrize("name", ["m.safetensors", "m.onnx", "m.pt2", "m.pt", "m.txt"])
def test_files_that_are_no_models_or_promise_what_they_have_not_are_refused(tmp_path, name):
    onnx = b"\x08\x08\x3a" + b"\xff" * 8 + b"\x7f"  # a graph of 2^62 bytes
    others = (onnx, b"\x3a\xff\xff\xff\xff\x07" + bytes(100), b"", b"PK\x03\x04" + bytes(50), b"hello" * 100)
    for data in (*_headers(), *others):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(TrainError) as caught:
            open_model(str(tmp_path / name), CPU)
        assert "Traceback" not in caught.value.message


class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(5, 3)

    def forward(self, x, y):
        return {"sum": self.linear(x) + y[:, None], "twice": y * 2}


def export(path, batch=None):
    model = Two().eval()
    rows = batch or 3
    shapes = {"x": {0: torch.export.Dim("b", min=1, max=64)}, "y": {0: torch.export.Dim("b", min=1, max=64)}}
    inputs = (torch.randn(rows, 5), torch.randn(rows))
    torch.export.save(torch.export.export(model, inputs, dynamic_shapes=None if batch else shapes), path)
    return model


@pytest.mark.parametrize("batch", [None, 4])
def test_a_pt2_file_of_two_inputs_by_any_batch_and_by_its_own(tmp_path, batch):
    model = export(tmp_path / "m.pt2", batch)
    served = open_model(str(tmp_path / "m.pt2"), CPU, max_batch=8)
    served.warm_up()
    assert served.max_batch == (batch or 8)
    given = [{"x": [float(n)] * 5, "y": n} for n in range(3)]
    answers = served.predict(served.reader.rows({"inputs": given})[0])
    with torch.no_grad():
        expected = model(torch.arange(3.0)[:, None].expand(3, 5), torch.arange(3.0))
    for number, answer in enumerate(answers):
        np.testing.assert_allclose(answer[0], expected["sum"][number], atol=1e-5)
        assert set(served.reader.answer(answer)["outputs"]) == {"sum", "twice"}
    with pytest.raises(BadInputError):
        served.predict([(np.zeros(4, np.float32), np.zeros((), np.float32))])
    for wrong in ({"x": [1] * 5}, {"x": [1] * 4, "y": 1}, {"x": [1e39] * 5, "y": 1}, [1] * 5, {"x": ["a"] * 5, "y": 1}):
        with pytest.raises(BadInputError):
            served.reader.rows({"inputs": [wrong]})


def test_examples_of_several_outputs_name_and_prove_them(tmp_path):
    model, path = export(tmp_path / "m.pt2"), tmp_path / "m.pt2"
    inputs = {"left": torch.randn(3, 5), "right": torch.randn(3)}
    with torch.no_grad():
        found = model(*inputs.values())
    named = {"a": found["sum"], "b": found["twice"]}
    save_examples(Examples("", "tensors", weights_digest(model.state_dict()), inputs, named), path)
    served = open_model(str(path), CPU)
    assert [each.name for each in served.description.outputs] == ["a", "b"]
    assert [each.name for each in served.description.inputs] == ["left", "right"]
    assert served.warm_up().examples == 3
    named["b"] = named["b"] + 1
    save_examples(Examples("", "tensors", weights_digest(model.state_dict()), inputs, named), path)
    with pytest.raises(TrainError):
        open_model(str(path), CPU).warm_up()


def test_an_onnx_file(tmp_path):
    pytest.importorskip("onnxruntime")
    linear = torch.nn.Linear(5, 3).eval()
    path = tmp_path / "m.onnx"
    names = {"input_names": ["x"], "output_names": ["z"]}
    torch.onnx.export(linear, (torch.randn(2, 5),), path, dynamic_axes={"x": {0: "b"}}, dynamo=False, **names)
    served = open_model(str(path), CPU)
    served.warm_up()
    (answer,) = served.predict(served.reader.rows({"input": [1, 2, 3, 4, 5]})[0])
    with torch.no_grad():
        np.testing.assert_allclose(answer[0], linear(torch.tensor([1.0, 2, 3, 4, 5])), atol=1e-5)
    with pytest.raises(TrainError, match="CPU"):  # this onnxruntime has no CUDA: never silently elsewhere
        open_model(str(path), torch.device("cuda"))


def test_a_file_that_its_card_was_not_written_for(tmp_path):
    export(tmp_path / "m.pt2")
    card = {
        "format": "pt2", "file": "m.pt2", "sha256": "0" * 64, "kind": "tensors", "recipe": "", "inputs": [],
        "outputs": [], "labels": [], "scale": [], "shift": [], "weights": "", "examples": 0, "real": False,
        "batches": [], "largest_difference": 0.0, "largest_absolute_difference": 0.0, "tolerance": 0.0, "version": 1,
    }  # fmt: skip
    (tmp_path / "m.json").write_text(json.dumps(card))
    with pytest.raises(TrainError, match="changed or cut short"):
        open_model(str(tmp_path / "m.pt2"), CPU)
