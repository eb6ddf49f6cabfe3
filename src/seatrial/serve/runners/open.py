"""Open the model that ``--model`` names: a recipe's, or a file."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seatrial.recipe_names import WEIGHTS
from seatrial.serve.errors import ServeError
from seatrial.serve.served_model import ServedModel
from seatrial.train.errors import ModelFileError

if TYPE_CHECKING:
    import torch

#: Rows of a batch at most by default: (on a GPU, elsewhere). On a CPU 64 images no longer fit into a core's cache: an
#: image of digits took 290 µs and not 138 (docs/benchmarks.md).
IMAGES_AT_ONCE, TEXTS_AT_ONCE, ROWS_AT_ONCE = (256, 32), (128, 32), (64, 32)
_COPY = "train the model again, or copy the whole folder"


def open_model(
    spec: str,
    device: torch.device,
    *,
    folder: Path | None = None,
    max_batch: int | None = None,
    name: str | None = None,
) -> ServedModel:
    """Open a recipe or a file. Raises TrainError: the model does not exist, cannot be read, or is refused.

    ``folder``: of recipes' models; None for $SEATRIAL_MODELS_DIR. ``max_batch``: rows of a batch at most; else what
    suits the kind of model. ``name``: in addresses; else the recipe's or the file's.
    """
    from seatrial.train.options import default_folder

    models, place = folder or default_folder("models"), 0 if device.type == "cuda" else 1
    if spec in WEIGHTS:
        path = models / WEIGHTS[spec]
        if not path.is_file():
            raise ModelFileError(f"no model of {spec}: {path} does not exist", fix=f"seatrial run {spec}")
        at_once = (TEXTS_AT_ONCE if spec == "spam" else IMAGES_AT_ONCE)[place]
        return _open_recipe(spec, path, device, max_batch or at_once, name or spec)
    return _open_file(Path(spec), device, max_batch or ROWS_AT_ONCE[place], name)


def _open_file(path: Path, device: torch.device, max_batch: int, name: str | None) -> ServedModel:
    if not path.is_file():
        message = f"{path} is neither a recipe ({', '.join(WEIGHTS)}) nor a model file"
        raise ServeError(message, fix="seatrial serve digits, or seatrial serve model.onnx")
    from seatrial.models.open import refuse_pickle
    from seatrial.train.saving.examples import examples_of

    refuse_pickle(path)
    name = name or path.stem
    if path.suffix in (".onnx", ".pt2"):
        from seatrial.serve.runners.programs import open_onnx, open_pt2

        opener = open_onnx if path.suffix == ".onnx" else open_pt2
        return opener(path, device, max_batch=max_batch, name=name)
    if path.suffix != ".safetensors":
        message = f"{path.name} cannot be served: expected .pt2, .onnx, or .safetensors of a recipe"
        raise ServeError(message, fix="seatrial export RUN --to pt2")
    examples = examples_of(path)
    recipe = examples.recipe if examples else ""
    if recipe not in WEIGHTS:
        message = f"{path.name} holds weights without their network"
        raise ServeError(message, fix="seatrial serve RECIPE, or seatrial export RUN --to pt2 and serve that")
    return _open_recipe(recipe, path, device, max_batch, name)


def _open_recipe(recipe: str, path: Path, device: torch.device, max_batch: int, name: str) -> ServedModel:
    from seatrial.models import recipe_models
    from seatrial.serve.runners.images import ImageModel
    from seatrial.train.saving.examples import examples_path

    if recipe == "spam":
        return _open_text(recipe, path, device, max_batch, name)
    saved = recipe_models.read_file(path, recipe)
    if saved.examples.normalise is None:
        raise ModelFileError(
            f"{path.name} has no {examples_path(path).name} in its folder, which holds how its images are normalised",
            fix=f"train it again with this version: seatrial run {recipe}",
        )
    return ImageModel(name, saved.module, saved.examples, saved.examples.labels, device, max_batch=max_batch)


def _open_text(recipe: str, path: Path, device: torch.device, max_batch: int, name: str) -> ServedModel:
    """Open BERT without transformers, whose import takes seconds."""
    from seatrial.recipes.spam import LONGEST
    from seatrial.serve.readers.others import open_tokenizer
    from seatrial.serve.runners.texts import TextModel
    from seatrial.train.saving.examples import examples_of, examples_path
    from seatrial.train.saving.model_files import read_tensors, weights_digest

    tensors, _ = read_tensors(path)
    config = _read_json(path.with_name("config.json"))
    names = config.get("id2label") or {}
    labels = [str(names.get(str(number), number)) for number in range(len(tensors.get("classifier.bias", ())))]
    tokenizer = _read_text(path.with_name("tokenizer.json"))
    words = tensors.get("bert.embeddings.word_embeddings.weight", ())
    if (known := open_tokenizer(tokenizer, LONGEST).get_vocab_size()) > len(words):
        message = f"the tokenizer of {path.name} knows {known:,} tokens, the model {len(words):,}"
        raise ServeError(message, fix=f"train it again, or copy the whole folder: seatrial run {recipe}")
    longest = min(LONGEST, int(config.get("max_position_embeddings", LONGEST)))
    model = partial(TextModel, name, tensors, config, tokenizer, labels, device, max_batch=max_batch, longest=longest)
    if (examples := examples_of(path)) is None:
        return model()
    # Half a second for BERT-base, while the GPU starts.
    digest = ThreadPoolExecutor(1).submit(weights_digest, tensors)
    rows = zip(examples.inputs["input_ids"], examples.inputs["attention_mask"].sum(1).tolist(), strict=True)
    texts = [tokens[:length].int().numpy() for tokens, length in rows]

    def same_weights() -> None:
        saved = examples_path(path)
        if digest.result() != examples.weights:
            message = f"{saved.name} belongs to other weights than {path.name}: they are from different trainings"
            raise ServeError(message, fix=f"seatrial run {recipe}, or delete {saved}")

    return model(examples=(texts, examples.outputs["logits"].softmax(1).numpy()), check=same_weights)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(_read_text(path))
    except ValueError as error:
        raise ServeError(f"{path} is not JSON", fix=_COPY) from error
    if not isinstance(found, dict):
        raise ServeError(f"{path} holds no settings of a model", fix=_COPY)
    return found


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ServeError(f"cannot read {path}", fix=_COPY) from error
