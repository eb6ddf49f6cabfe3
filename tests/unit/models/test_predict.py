"""predict answers for images of a recipe's model; test_spam.py has texts."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")

from seatrial.models import predict  # noqa: E402
from seatrial.recipes import mnist  # noqa: E402
from seatrial.train.errors import DataError, ModelFileError  # noqa: E402
from seatrial.train.saving.examples import (  # noqa: E402
    Normalisation,
    image_examples,
    numbered,
    save_examples,
)
from seatrial.train.saving.model_files import save_model  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder with an untrained model of digits, and one image that it was given as 0.png."""
    torch.manual_seed(0)
    network, pixels = mnist.network(28, 28, 10), torch.randint(0, 256, (20, 1, 28, 28)).to(torch.uint8)
    weights = save_model(network, tmp_path, "digits")[-1]
    save_examples(image_examples("digits", network, pixels, Normalisation.of(pixels), numbered(10)), weights)
    Image.fromarray(pixels[0, 0].numpy()).save(tmp_path / "0.png")
    return tmp_path


def test_image_gets_the_answer_of_the_saved_example(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from seatrial.train.saving.examples import read_examples

    image = str(models / "0.png")
    assert predict.main(["digits", image, image, "--models", str(models)]) == 0
    expected = read_examples(models / "digits.examples.safetensors").outputs["logits"][0].softmax(0)
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert lines == [[str(int(expected.argmax())), f"{float(expected.max()):.4f}", image]] * 2


def test_exported_file_gives_the_same_answer_as_the_recipes_model(
    models: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from seatrial.export.__main__ import main as export

    monkeypatch.setenv("SEATRIAL_MODELS_DIR", str(models))
    assert export(["--model", "digits", "--to", "pt2", "--out", str(models / "d.pt2")]) == 0
    capsys.readouterr()
    for model in ("digits", str(models / "d.pt2")):
        assert predict.main([model, str(models / "0.png"), "--models", str(models)]) == 0
    first, second = (line.split("\t")[:2] for line in capsys.readouterr().out.splitlines())
    assert first == second


def test_file_that_is_no_image_is_refused(models: Path) -> None:
    (models / "x.png").write_text("no image")
    with pytest.raises(DataError, match=r"cannot read the image .*x\.png"):
        predict.main(["digits", str(models / "x.png"), "--models", str(models)])


def test_model_without_its_examples_is_refused(models: Path) -> None:
    (models / "digits.examples.safetensors").unlink()
    with pytest.raises(ModelFileError, match="how its images are normalised"):
        predict.main(["digits", str(models / "0.png"), "--models", str(models)])
