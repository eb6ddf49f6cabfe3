"""A recipe's saved model is read back with the same outputs; other files are refused in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file  # noqa: E402

from seatrial.models.recipe_models import read_saved  # noqa: E402
from seatrial.recipes import cifar10, mnist, mnist_deep, spam  # noqa: E402
from seatrial.train.data.images import ImageSet  # noqa: E402
from seatrial.train.data.texts import TextSet  # noqa: E402
from seatrial.train.errors import InputError, ModelFileError  # noqa: E402
from seatrial.train.saving.examples import (  # noqa: E402
    Normalisation,
    examples_path,
    image_examples,
    numbered,
    read_examples,
    save_examples,
)
from seatrial.train.saving.model_files import save_model  # noqa: E402

pytestmark = pytest.mark.torch


def images(channels: int, pixels: int, count: int = 20) -> ImageSet:
    generator = torch.Generator().manual_seed(1)
    made = torch.randint(0, 256, (count, channels, pixels, pixels), generator=generator).to(torch.uint8)
    return ImageSet(made, torch.arange(count) % 10, 10)


def save(folder: Path, recipe: str, model: torch.nn.Module, channels: int = 1, pixels: int = 28) -> Path:
    test_set = images(channels, pixels)
    name = "trained-model" if recipe == "mnist-deep" else recipe
    weights = save_model(model, folder, name)[-1]
    images_NCHW = test_set.images_NCHW
    normalise = Normalisation.of(images_NCHW)
    return save_examples(image_examples(recipe, model, images_NCHW, normalise, numbered(10)), weights)


@pytest.mark.parametrize(
    ("recipe", "make", "channels", "pixels"),
    [
        ("mnist", lambda: mnist.network(28, 28, 10), 1, 28),
        ("digits", lambda: mnist.network(28, 28, 10), 1, 28),
        ("mnist", lambda: mnist.network(12, 12, 10), 1, 12),
        ("mnist-deep", lambda: mnist_deep.network(3, 10), 3, 32),
        ("mnist-deep", lambda: mnist_deep.network(1, 10), 1, 28),
        ("cifar10", lambda: cifar10.Network(widths=(8, 16, 24)), 3, 32),
    ],
)
def test_reads_what_was_saved(tmp_path: Path, recipe: str, make, channels: int, pixels: int) -> None:
    model = make()
    model(torch.randn(4, channels, pixels, pixels))  # moves the statistics of batch normalisation
    save(tmp_path, recipe, model, channels, pixels)
    saved = read_saved(tmp_path, recipe)
    assert saved.kind == "image" and saved.inputs == {"images": (channels, pixels, pixels)} and len(saved.labels) == 10
    assert saved.examples is not None and len(saved.examples) == 16
    with torch.no_grad():
        again = saved.network(*saved.examples.inputs.values())
    assert torch.allclose(again, saved.examples.outputs["logits"], atol=1e-5)
    assert model.training, "the model that was saved stays as it was"


def test_a_model_of_an_older_version_has_no_examples(tmp_path: Path) -> None:
    examples_of = save(tmp_path, "mnist", mnist.network(28, 28, 10))
    examples_of.unlink()
    saved = read_saved(tmp_path, "mnist")
    assert saved.examples is None and saved.inputs == {"images": (1, 28, 28)} and saved.labels[9] == "9"


def test_examples_of_other_weights(tmp_path: Path) -> None:
    save(tmp_path, "mnist", mnist.network(28, 28, 10))
    save_model(mnist.network(28, 28, 10), tmp_path, "mnist")
    with pytest.raises(ModelFileError, match=r"of other weights than mnist\.safetensors") as refused:
        read_saved(tmp_path, "mnist")
    assert refused.value.fix and "delete" in refused.value.fix


def test_nothing_saved(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"no model of mnist: .*mnist\.safetensors does not exist") as refused:
        read_saved(tmp_path, "mnist")
    assert refused.value.fix == "seatrial run mnist"
    (tmp_path / "mnist.pth").write_bytes(b"")
    with pytest.raises(ModelFileError, match=r"mnist\.pth is a pickle, which is not read"):
        read_saved(tmp_path, "mnist")
    with pytest.raises(InputError, match="matmul saves no model"):
        read_saved(tmp_path, "matmul")


@pytest.mark.parametrize("length", [0, 5, 8, 60, 5000, -1])
def test_a_truncated_file(tmp_path: Path, length: int) -> None:
    save(tmp_path, "mnist", mnist.network(28, 28, 10))
    path = tmp_path / "mnist.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ModelFileError, match="truncated, damaged or no safetensors file"):
        read_saved(tmp_path, "mnist")


def test_another_recipes_file(tmp_path: Path) -> None:
    save(tmp_path, "mnist-deep", mnist_deep.network(1, 10))
    (tmp_path / "trained-model.safetensors").rename(tmp_path / "mnist.safetensors")
    with pytest.raises(ModelFileError, match=r"another model than mnist's: it holds 0\.weight \(32, 1, 5, 5\)"):
        read_saved(tmp_path, "mnist")
    (tmp_path / "mnist.safetensors").unlink()
    save(tmp_path, "mnist", mnist.network(28, 28, 10))
    (tmp_path / "mnist.safetensors").rename(tmp_path / "trained-model.safetensors")
    with pytest.raises(ModelFileError, match=r"belongs to another model: 1\.weight is missing"):
        read_saved(tmp_path, "mnist-deep")


def test_a_header_whose_length_looks_like_a_pickle(tmp_path: Path) -> None:
    """0x80 is the first byte of a pickle, and of the length of one header in 256."""
    from safetensors.torch import save as to_bytes

    from seatrial.train.saving.model_files import read_tensors

    path = tmp_path / "x.safetensors"
    for padding in range(300):
        data = to_bytes({"a": torch.ones(2)}, metadata={"pad": "x" * padding})
        if data[0] == 0x80:
            break
    else:
        pytest.fail("no such header")
    path.write_bytes(data)
    assert torch.equal(read_tensors(path)[0]["a"], torch.ones(2))


def test_a_file_that_holds_no_examples(tmp_path: Path) -> None:
    path = save(tmp_path, "mnist", mnist.network(28, 28, 10))
    save_file({"input.images": torch.zeros(2, 1)}, path)
    with pytest.raises(ModelFileError, match="holds no examples of a model"):
        read_examples(path)


def test_text(tmp_path: Path) -> None:
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
    assert saved.kind == "text" and saved.labels == ("ham", "spam") and saved.tokenizer is not None
    assert saved.examples is not None and saved.examples.inputs["input_ids"].shape == (16, 6)
    with torch.no_grad():
        again = saved.network(*saved.examples.inputs.values())
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
