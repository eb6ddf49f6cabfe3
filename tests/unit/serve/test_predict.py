"""predict prints a line for each input, with the answer that the server would give."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from own_models import save_recipe  # noqa: E402
from seatrial.recipes import mnist_deep  # noqa: E402
from seatrial.serve import predict  # noqa: E402
from seatrial.train.errors import DataError, InputError, ModelFileError  # noqa: E402
from seatrial.train.saving.examples import examples_path, read_examples  # noqa: E402

pytestmark = pytest.mark.torch


def test_image_gets_the_answer_of_the_saved_example_from_the_recipe_and_from_an_exported_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import Image

    from seatrial.export.__main__ import main as export

    def predicted(*words: str) -> list[list[str]]:
        assert predict.main([*words, "--models", str(tmp_path)]) == 0
        return [line.split("\t") for line in capsys.readouterr().out.splitlines()]

    _, pixels, weights = save_recipe(tmp_path, "mnist-deep", mnist_deep.network(3, 10), 3, 32)
    image, exported = str(tmp_path / "0.png"), str(tmp_path / "d.pt2")
    Image.fromarray(pixels[0].permute(1, 2, 0).numpy()).save(image)
    expected = read_examples(examples_path(weights)).outputs["logits"][0].softmax(0)
    answer = [str(int(expected.argmax())), f"{float(expected.max()):.4f}", image]
    assert predicted("mnist-deep", *[image] * 2) == [answer] * 2
    monkeypatch.setenv("SEATRIAL_MODELS_DIR", str(tmp_path))
    assert export(["--model", "mnist-deep", "--to", "pt2", "--out", exported]) == 0
    capsys.readouterr()
    assert predicted(exported, image)[0][:2] == answer[:2]
    (tmp_path / "x.png").write_text("no image")
    for name in ("x.png", "missing.png"):
        with pytest.raises(DataError, match=rf"cannot read the image .*{name}"):
            predict.main(["mnist-deep", str(tmp_path / name), "--models", str(tmp_path)])
    examples_path(weights).unlink()
    with pytest.raises(ModelFileError, match="how its images are normalised"):
        predict.main(["mnist-deep", image, "--models", str(tmp_path)])


def test_predict_without_input_or_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n  \n"))
    for words, reason in (([], "no input"), (["hello"], "no model of spam")):
        with pytest.raises(InputError, match=reason) as refused:
            predict.main(["spam", "--models", str(tmp_path), *words])
        assert refused.value.exit_code == 2
