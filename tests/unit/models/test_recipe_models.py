"""A recipe's saved model is read back with the same outputs; other files are refused in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file  # noqa: E402

from own_models import save_recipe  # noqa: E402
from seatrial.models.recipe_models import read_saved  # noqa: E402
from seatrial.recipes import cifar10, mnist, mnist_deep, spam  # noqa: E402
from seatrial.train.data.texts import TextSet  # noqa: E402
from seatrial.train.errors import ModelFileError  # noqa: E402
from seatrial.train.saving.examples import examples_path, read_examples, save_examples  # noqa: E402
from seatrial.train.saving.model_files import read_tensors, save_model  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("recipe", "model", "channels", "pixels"),
    [
        ("mnist", mnist.network(28, 28, 10), 1, 28),
        ("digits", mnist.network(28, 28, 10), 1, 28),
        ("mnist", mnist.network(12, 12, 10), 1, 12),
        ("mnist-deep", mnist_deep.network(3, 10), 3, 32),
        ("mnist-deep", mnist_deep.network(1, 10), 1, 28),
        ("cifar10", cifar10.Network(widths=(8, 16, 24)), 3, 32),
    ],
)
def test_reads_what_was_saved(tmp_path: Path, recipe: str, model: torch.nn.Module, channels: int, pixels: int) -> None:
    model(torch.randn(4, channels, pixels, pixels))  # moves the statistics of batch normalisation
    save_recipe(tmp_path, recipe, model, channels, pixels)
    saved = read_saved(tmp_path, recipe)
    examples = saved.examples
    assert examples.kind == "image" and len(examples.labels) == 10 and len(examples) == 16
    assert saved.inputs["images"].shape[1:] == (channels, pixels, pixels)
    with torch.no_grad():
        again = saved.module(*saved.inputs.values())
    assert torch.allclose(again, saved.examples.outputs["logits"], atol=1e-5)
    assert model.training, "the model that was saved stays as it was"


def test_examples_are_of_the_same_weights_or_none(tmp_path: Path) -> None:
    _, _, weights = save_recipe(tmp_path, "mnist")
    save_model(mnist.network(28, 28, 10), tmp_path, "mnist")
    with pytest.raises(ModelFileError, match=r"to other weights than mnist\.safetensors") as refused:
        read_saved(tmp_path, "mnist")
    assert refused.value.fix and "delete" in refused.value.fix
    save_file({"input.images": torch.zeros(2, 1)}, examples_path(weights))
    with pytest.raises(ModelFileError, match="holds no examples of a model"):
        read_examples(examples_path(weights))
    examples_path(weights).unlink()  # an older version wrote none
    saved = read_saved(tmp_path, "mnist")
    assert (
        not saved.examples.real and saved.examples.labels[9] == "9" and saved.inputs["images"].shape[1:] == (1, 28, 28)
    )


def test_nothing_saved(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"no model of mnist: .*mnist\.safetensors does not exist") as refused:
        read_saved(tmp_path, "mnist")
    assert refused.value.fix == "seatrial run mnist"
    (tmp_path / "mnist.pth").write_bytes(b"")
    with pytest.raises(ModelFileError, match=r"mnist\.pth is a pickle, which is not read"):
        read_saved(tmp_path, "mnist")


@pytest.mark.parametrize("length", [0, 5, 8, 60, 5000, -1])
def test_truncated_file_is_refused(tmp_path: Path, length: int) -> None:
    _, _, weights = save_recipe(tmp_path, "mnist")
    weights.write_bytes(weights.read_bytes()[:length])
    with pytest.raises(ModelFileError, match="truncated, damaged or no safetensors file"):
        read_saved(tmp_path, "mnist")


@pytest.mark.parametrize(
    ("recipe", "model", "other", "reason"),
    [
        (
            "mnist-deep",
            mnist_deep.network(1, 10),
            "mnist",
            r"than mnist's: it holds 0\.weight \(32, 1, 5, 5\)",
        ),
        ("mnist", mnist.network(28, 28, 10), "mnist-deep", r"belongs to another model: 1\.weight is missing"),
    ],
)
def test_another_recipes_file_is_refused(
    tmp_path: Path, recipe: str, model: torch.nn.Module, other: str, reason: str
) -> None:
    _, _, weights = save_recipe(tmp_path, recipe, model)
    weights.rename(tmp_path / f"{'trained-model' if other == 'mnist-deep' else other}.safetensors")
    with pytest.raises(ModelFileError, match=reason):
        read_saved(tmp_path, other)


def test_header_whose_length_looks_like_a_pickle_is_read(tmp_path: Path) -> None:
    """0x80 is the first byte of a pickle, and of the length of one header in 256."""
    from safetensors.torch import save as to_bytes

    written = (to_bytes({"a": torch.ones(2)}, metadata={"pad": "x" * padding}) for padding in range(300))
    (tmp_path / "x.safetensors").write_bytes(next(data for data in written if data[0] == 0x80))
    assert torch.equal(read_tensors(tmp_path / "x.safetensors")[0]["a"], torch.ones(2))


def test_model_of_texts_is_read_and_a_damaged_one_refused(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.BertConfig(
        vocab_size=50, id2label=dict(enumerate(spam.LABELS)), **{**spam.SHAPES["small"], "num_hidden_layers": 1}
    )
    model = transformers.BertForSequenceClassification(config)
    folder = tmp_path / "spam"
    model.save_pretrained(folder, safe_serialization=True)
    from tokenizers import BertWordPieceTokenizer

    pieces = BertWordPieceTokenizer()
    pieces.train_from_iterator(["see you at noon"], vocab_size=50, special_tokens=list(spam.SPECIAL_TOKENS))
    transformers.PreTrainedTokenizerFast(tokenizer_object=pieces._tokenizer, pad_token="[PAD]").save_pretrained(folder)
    test_set = TextSet.of([[2, 7, 9, 3], [2, 3], [2, 8, 8, 8, 8, 3]] * 7, torch.arange(21) % 2)
    weights = folder / "model.safetensors"
    save_examples(spam.examples(model, test_set), weights)

    saved = read_saved(tmp_path, "spam")
    assert saved.examples.kind == "text" and saved.examples.labels == ("ham", "spam")
    assert saved.inputs["input_ids"].shape == (16, 6)
    with torch.no_grad():
        again = saved.module(*saved.inputs.values())
    assert torch.allclose(again, saved.examples.outputs["logits"], atol=1e-5)

    tensors = load_file(weights)
    tensors.pop("classifier.bias")
    save_file(tensors, weights, metadata={"format": "pt"})
    with pytest.raises(ModelFileError, match=r"classifier\.bias is missing"):
        read_saved(tmp_path, "spam")
    weights.write_bytes(weights.read_bytes()[:-7])
    with pytest.raises(ModelFileError, match="truncated"):
        read_saved(tmp_path, "spam")
    assert examples_path(weights).is_file()
