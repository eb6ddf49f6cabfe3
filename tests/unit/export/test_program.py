"""The export program run whole: each format is written, loaded back and compared, or nothing is left at its place."""

from __future__ import annotations

import importlib
import os
import pickle
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import save_file  # noqa: E402
from torch import nn  # noqa: E402

from seatrial import events  # noqa: E402
from seatrial.export import formats  # noqa: E402
from seatrial.export.__main__ import main  # noqa: E402
from seatrial.export.formats import FORMATS, DisagreesError  # noqa: E402
from seatrial.models.model import Original  # noqa: E402
from seatrial.models.open import make_network, open_model  # noqa: E402
from seatrial.recipes import mnist  # noqa: E402
from seatrial.train.errors import InputError, ModelFileError, TrainError  # noqa: E402
from seatrial.train.saving.examples import (  # noqa: E402
    Examples,
    Normalisation,
    image_examples,
    numbered,
    read_examples,
    save_examples,
)
from seatrial.train.saving.model_card import read_card  # noqa: E402
from seatrial.train.saving.model_files import read_tensors, save_model, weights_digest  # noqa: E402
from tables import cases, constant  # noqa: E402

pytestmark = pytest.mark.torch

NET = constant(__file__, "scripts")["net"]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project, with its models folder and a module of networks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEATRIAL_MODELS_DIR", str(tmp_path / "models"))
    monkeypatch.setenv("SEATRIAL_EVENTS", str(tmp_path / "events.jsonl"))
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"net_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(NET)
    monkeypatch.setenv("NET", name)
    return tmp_path


def net(name: str) -> str:
    return f"{os.environ['NET']}:{name}"


def made(name: str) -> nn.Module:
    result = getattr(importlib.import_module(os.environ["NET"]), name)()
    return result[0] if isinstance(result, tuple) else result


def saved_digits(place: Path) -> None:
    torch.manual_seed(0)
    model, pixels = mnist.network(12, 12, 10), torch.randint(0, 256, (20, 1, 12, 12)).to(torch.uint8)
    weights = save_model(model, place / "models", "digits")[-1]
    save_examples(image_examples("digits", model, pixels, Normalisation.of(pixels), numbered(10)), weights)


def reported(place: Path) -> dict[str, float]:
    lines, _ = events.read(str(place / "events.jsonl"))
    return {key: value for line in lines for key, value in line.items()}


@pytest.mark.parametrize("to", [*FORMATS])
def test_a_recipes_model(place: Path, to: str, capsys: pytest.CaptureFixture[str]) -> None:
    if to == "onnx":
        pytest.importorskip("onnxruntime")
    saved_digits(place)
    out = place / "exports" / f"digits.{to}"
    assert main(["--model", "digits", "--to", to, "--out", str(out)]) == 0
    names = {path.name for path in out.parent.iterdir()}
    assert names == {out.name, "digits.json", "digits.examples.safetensors"}, "and nothing is left aside"
    card = read_card(out.with_name("digits.json"))
    assert card.format == to and card.recipe == "digits" and card.kind == "image" and card.labels == numbered(10)
    assert card.inputs[0].shape == (-1, 1, 12, 12) and card.outputs[0].shape == (-1, 10) and len(card.scale) == 1
    assert card.real and card.batches == (1, 16, 37) and card.largest_difference <= card.tolerance == 1e-4
    assert read_examples(out.with_name("digits.examples.safetensors")).weights == card.weights
    assert reported(place)["largest_difference"] == pytest.approx(card.largest_difference)
    assert "16 real inputs" in capsys.readouterr().out
    if to == "safetensors":
        assert weights_digest(read_tensors(out)[0]) == card.weights


def test_weights_with_a_factory(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(made("make").state_dict(), place / "best.pth")
    options = ["--to", "pt2", "--out", "out/best.pt2"]
    assert main(["--model", "best.pth", "--model-factory", net("make"), *options]) == 0
    assert "drawn from a fixed seed" in capsys.readouterr().out
    card = read_card(place / "out/best.json")
    assert not card.real and card.kind == "tensors" and card.inputs[0].shape == (-1, 6)
    save_file(made("make").state_dict(), place / "best.safetensors")
    assert main(["--model", "best.safetensors", "--model-factory", net("with_inputs"), *options]) == 0
    assert read_card(place / "out/best.json").real and read_card(place / "out/best.json").examples == 4
    nested = {"epoch": 3, "state_dict": {f"module.{name}": each for name, each in made("make").state_dict().items()}}
    torch.save(nested, place / "of-ddp.pt")
    assert main(["--model", "of-ddp.pt", "--model-factory", net("make"), *options]) == 0


def test_inputs_by_name_go_where_the_network_takes_them(place: Path) -> None:
    original = open_model_of(place, "named")
    assert original.outputs == ("output",) and original.inputs.keys() == {"mask", "x"}
    mask, x = original.inputs.values()
    assert torch.equal(original.module(mask, x), x * 2 + mask)
    with pytest.raises(InputError, match="the inputs are called mask, y, and the network takes x, past, mask"):
        open_model_of(place, "misnamed")


def open_model_of(place: Path, name: str) -> Original:
    """A network without weights of its own, next to one that has some."""
    module = importlib.import_module(os.environ["NET"])
    network, inputs = getattr(module, name)()
    network.unused = nn.Parameter(torch.zeros(1))
    torch.save(network.state_dict(), place / "n.pth")
    module.made_here = lambda: (network, inputs)  # type: ignore[attr-defined]
    return open_model("n.pth", f"{os.environ['NET']}:made_here")


def test_from_one_program_to_another(place: Path) -> None:
    pytest.importorskip("onnxruntime")
    torch.save(made("several").state_dict(), place / "s.pth")
    first = ["--model", "s.pth", "--model-factory", net("several"), "--to"]
    assert main([*first, "pt2", "--out", "s.pt2"]) == 0
    assert [each.name for each in read_card(place / "s.json").outputs] == ["classes", "value"]
    assert main(["--model", "s.pt2", "--to", "pt2", "--out", "again.pt2"]) == 0
    assert [each.name for each in read_card(place / "again.json").outputs] == ["classes", "value"]


@pytest.mark.slow  # the exporter of programs takes ten seconds
def test_a_program_to_onnx(place: Path) -> None:
    pytest.importorskip("onnxscript")
    torch.save(made("make").state_dict(), place / "s.pth")
    assert main(["--model", "s.pth", "--model-factory", net("make"), "--to", "pt2", "--out", "s.pt2"]) == 0
    assert main(["--model", "s.pt2", "--to", "onnx", "--out", "s.onnx"]) == 0
    assert read_card(place / "s.json").opset == formats.PROGRAM_OPSET


def test_beyond_the_tolerance_nothing_is_left(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved_digits(place)

    def another(original: object, path: Path) -> None:
        any_batch = ({0: torch.export.Dim("batch")},)
        inputs = (torch.zeros(16, 1, 12, 12),)
        torch.export.save(torch.export.export(mnist.network(12, 12, 10), inputs, dynamic_shapes=any_batch), path)

    monkeypatch.setitem(FORMATS, "pt2", (another, formats.load_pt2))
    options = ["--model", "digits", "--to", "pt2", "--out", "exports/digits.pt2"]
    (place / "exports").mkdir()
    (place / "exports/digits.pt2").write_text("of yesterday")
    with pytest.raises(
        DisagreesError, match=r"differs from the original by .*more than the tolerance 0\.0001"
    ) as shown:
        main(options)
    assert shown.value.exit_code == 1 and shown.value.fix and "--tolerance" in shown.value.fix
    assert [path.name for path in (place / "exports").iterdir()] == ["digits.pt2"]
    assert (place / "exports/digits.pt2").read_text() == "of yesterday"
    assert reported(place)["largest_difference"] > 1e-4, "the receipt shows by how much"
    assert main([*options, "--tolerance", "1e6"]) == 0


def test_a_network_that_fixes_its_batch(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced with 16 rows, it would answer 16 rows alone: the comparison at batch 1 finds that."""
    pytest.importorskip("onnxruntime")
    torch.save(made("make").state_dict(), place / "f.pth")
    module = importlib.import_module(net("x").partition(":")[0])
    monkeypatch.setattr(module, "make", lambda: _as_fixed(module))
    torch.save(_as_fixed(module).state_dict(), place / "f.pth")
    with pytest.raises(TrainError):
        main(["--model", "f.pth", "--model-factory", net("make"), "--to", "onnx", "--out", "f.onnx"])
    assert not (place / "f.onnx").exists()


def _as_fixed(module: object) -> nn.Module:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.a(x) + torch.ones(len(x), 3) * len(x)

    return Fixed()


@cases("name", "factory", "message")
def test_files_that_cannot_be_exported(place: Path, name: str, factory: str | None, message: str) -> None:
    (place / "empty.pth").write_bytes(b"")
    (place / "text.pt2").write_text("hello")
    (place / "model.onnx").write_bytes(b"x")
    torch.save(made("make").state_dict(), place / "good.pth")
    (place / "cut.pth").write_bytes((place / "good.pth").read_bytes()[:-300])
    (place / "bare.pth").write_bytes(pickle.dumps({"a": 1}))
    torch.save([1, 2], place / "list.pth")
    torch.save({"w": torch.zeros(1)}, place / "other.pth")
    torch.save({"scale": torch.ones(1)}, place / "scale.pth")
    torch.jit.save(torch.jit.script(nn.Conv2d(1, 1, 3)), place / "script.pt")
    words = ["--model", name, "--to", "pt2", "--out", "out/x.pt2"]
    with pytest.raises((InputError, ModelFileError), match=message) as shown:
        main([*words, *(["--model-factory", net(factory)] if factory else [])])
    assert shown.value.fix and shown.value.exit_code == 2
    assert not (place / "out").exists()


@pytest.mark.parametrize(("typed", "advised"), [("absent", "Scale"), ("mak", "make")])
def test_a_factory_that_is_not_there_gives_way_to_one_like_it_or_a_network(
    place: Path, typed: str, advised: str
) -> None:
    with pytest.raises(InputError, match="has no function") as shown:
        make_network(net(typed))
    assert shown.value.fix == f"--model {net(advised)}"


def test_shapes_by_hand(place: Path) -> None:
    torch.save(made("convolution").state_dict(), place / "c.pt")
    words = ["--model", "c.pt", "--model-factory", net("convolution"), "--to", "pt2", "--out", "c.pt2"]
    assert main([*words, "--input-shape", "1,5,5"]) == 0
    with pytest.raises(InputError, match="the model fails on inputs input") as shown:
        main([*words, "--input-shape", "2,5,5"])
    assert shown.value.fix == "--input-shape 1,5,5"
    with pytest.raises(SystemExit):
        main([*words, "--input-shape", "2x5"])


def test_a_folder_that_cannot_be_written(place: Path) -> None:
    saved_digits(place)
    (place / "exports").write_text("a file")
    with pytest.raises(TrainError, match=r"cannot write exports/d\.pt2"):
        main(["--model", "digits", "--to", "pt2", "--out", "exports/d.pt2"])


def test_examples_of_a_users_model_give_names_and_labels(place: Path) -> None:
    model = made("make")
    weights = place / "m.pth"
    torch.save(model.state_dict(), weights)
    inputs = torch.randn(5, 6)
    with torch.no_grad():
        outputs = model(inputs)
    digest = weights_digest(model.state_dict())
    save_examples(Examples("", "tensors", digest, {"x": inputs}, {"scores": outputs}, ("a", "b", "c")), weights)
    main(["--model", "m.pth", "--model-factory", net("make"), "--to", "pt2", "--out", "out/m.pt2"])
    card = read_card(place / "out/m.json")
    assert (card.inputs[0].name, card.outputs[0].name, card.labels, card.real) == ("x", "scores", ("a", "b", "c"), True)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 99}', "\x00", '{"version": 1, "inputs": 3}'])
def test_a_card_that_is_none(place: Path, text: str) -> None:
    (place / "x.json").write_text(text)
    with pytest.raises(ModelFileError):
        read_card(place / "x.json")
