"""predict: open a trained model and print its answer for each input.

    seatrial run predict -- spam "WINNER!! Call now to claim your prize"
    seatrial run predict -- spam < messages.txt
    seatrial run predict -- mnist digit.png another.png
    seatrial run predict -- exports/mnist.pt2 digit.png

The model is one that a recipe saved in the models folder, or the file of a model of images with its examples. Texts are
arguments or lines of standard input; images are files. Each line of the output is the likeliest label, its probability
and the input. Shapes: N inputs, C channels, H and W pixels, L tokens, K classes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seatrial.models.open import open_model
from seatrial.models.recipe_models import WEIGHTS, read_saved
from seatrial.recipes.spam import LONGEST
from seatrial.train import options
from seatrial.train.errors import DataError, InputError, ModelFileError, first_line
from seatrial.train.saving.examples import Normalisation

BATCH = 64
#: Inputs as typed → what the network takes.
Reader = Callable[[Sequence[str]], tuple[Tensor, ...]]


def main(argv: Sequence[str]) -> int:
    """Print the predictions; return the exit code."""
    parser = argparse.ArgumentParser(prog="seatrial run predict --", description="Ask a trained model.")
    parser.add_argument("model", help=f"the recipe that trained it ({', '.join(WEIGHTS)}), or a file")
    parser.add_argument("inputs", nargs="*", metavar="INPUT", help="a text or an image file; default: lines of stdin")
    parser.add_argument("--models", type=Path, default=options.default_folder("models"), metavar="DIR")
    arguments = parser.parse_intermixed_args(argv)
    inputs = [line for line in arguments.inputs or options.input_lines() if line.strip()]
    if not inputs:
        raise InputError("no input", fix=f"seatrial run predict -- {arguments.model} INPUT…")
    network, reader, labels = _opened(arguments.model, arguments.models)
    for text, (label, probability) in zip(inputs, predict(network, reader, inputs), strict=True):
        print(f"{labels[label] if labels else label}\t{probability:.4f}\t{text}", flush=True)
    return 0


@torch.no_grad()
def predict(network: Any, reader: Reader, inputs: Sequence[str]) -> Iterator[tuple[int, float]]:
    """Yield the likeliest class of each input and its probability. Raises DataError for an unreadable image."""
    for first in range(0, len(inputs), BATCH):
        logits_NK: Tensor = network(*reader(inputs[first : first + BATCH]))
        for probability, label in zip(*(each.tolist() for each in logits_NK.float().softmax(1).max(1)), strict=True):
            yield label, probability


def _opened(model: str, folder: Path) -> tuple[Any, Reader, Sequence[str]]:
    """Return the network, the reader of its inputs and the labels. Raises ModelFileError, InputError."""
    opened, device = read_saved(folder, model) if model in WEIGHTS else open_model(model), torch.device("cpu")
    network, labels, normalise = opened.module, opened.examples.labels, opened.examples.normalise
    if model in WEIGHTS and torch.cuda.is_available():
        device = torch.device("cuda")
        network = network.to(device)
    if opened.tokenizer is not None:
        return network, _text_reader(opened.tokenizer, device), labels
    if normalise is None:
        raise ModelFileError(
            f"no examples saved with {model} hold how its images are normalised",
            fix="train it again: seatrial run RECIPE; or export it again: seatrial export RECIPE --to pt2",
        )
    return network, _image_reader(normalise, next(iter(opened.inputs.values())).shape[1:], device), labels


def _text_reader(tokenizer: Any, device: torch.device) -> Reader:
    """Return a reader that gives input_ids and attention_mask, [N, L] each."""

    def read(texts: Sequence[str]) -> tuple[Tensor, ...]:
        encoded = tokenizer([*texts], truncation=True, max_length=LONGEST, padding=True, return_tensors="pt")
        return tuple(encoded[name].to(device) for name in ("input_ids", "attention_mask"))

    return read


def _image_reader(normalise: Normalisation, shape: Sequence[int], device: torch.device) -> Reader:
    """Return a reader that gives normalised images [N, C, H, W], scaled to the size that the network takes."""
    try:
        from PIL import Image
    except ImportError as error:
        raise InputError("reading images needs pillow", fix="pip install pillow") from error
    channels, height, width = shape

    def read(paths: Sequence[str]) -> tuple[Tensor, ...]:
        images = []
        for path in paths:
            try:
                with Image.open(path) as opened:
                    image = opened.convert("L" if channels == 1 else "RGB").resize((width, height))
            except (OSError, ValueError, Image.DecompressionBombError) as error:
                raise DataError(f"cannot read the image {path}: {first_line(error)}") from error
            pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
            images.append(pixels.reshape(height, width, channels).permute(2, 0, 1))
        return (normalise(torch.stack(images).float()).to(device),)

    return read


if __name__ == "__main__":
    options.run(main)
