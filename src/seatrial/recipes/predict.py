"""predict: open a trained model and print its answer for each input.

    seatrial run predict -- spam "WINNER!! Call now to claim your prize"
    seatrial run predict -- spam < messages.txt
    seatrial run predict -- mnist digit.png another.png

The model is one that a recipe saved in the models folder. Texts are arguments or lines of standard input; images are
files. Each line of the output is the likeliest label, its probability and the input.
Shapes: N inputs, C channels, H and W pixels, L tokens, K classes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from seatrial.recipe_names import TRAINED
from seatrial.recipes.saved import Saved, read_saved
from seatrial.recipes.spam import LONGEST
from seatrial.train import script
from seatrial.train.errors import DataError, InputError, ModelFileError, first_line

BATCH = 64


def main(argv: Sequence[str]) -> int:
    """Print the predictions; return the exit code."""
    parser = argparse.ArgumentParser(prog="seatrial run predict --", description="Ask a trained model.")
    parser.add_argument("model", choices=TRAINED, help="the recipe that trained it")
    parser.add_argument("inputs", nargs="*", metavar="INPUT", help="a text or an image file; default: lines of stdin")
    parser.add_argument("--models", type=Path, default=script.default_folder("models"), metavar="DIR")
    arguments = parser.parse_intermixed_args(argv)
    inputs = [line for line in arguments.inputs or script.input_lines() if line.strip()]
    if not inputs:
        raise InputError("no input", fix=f"seatrial run predict -- {arguments.model} INPUT…")
    saved = read_saved(arguments.models, arguments.model)
    for text, (label, probability) in zip(inputs, predict(saved, inputs), strict=True):
        print(f"{label}\t{probability:.4f}\t{text}", flush=True)
    return 0


@torch.no_grad()
def predict(saved: Saved, inputs: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Yield the likeliest label of each input and its probability. Raises DataError for an unreadable image."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network, read = saved.network.to(device), _tokens if saved.kind == "text" else _pixels
    for first in range(0, len(inputs), BATCH):
        batch = read(saved, inputs[first : first + BATCH])
        probabilities_NK = network(*(tensor.to(device) for tensor in batch)).float().softmax(1)
        for probability, label in zip(*(each.tolist() for each in probabilities_NK.max(1)), strict=True):
            yield saved.labels[label], probability


def _tokens(saved: Saved, texts: Sequence[str]) -> tuple[Tensor, ...]:
    """Return input_ids and attention_mask, [N, L] each."""
    encoded = saved.tokenizer([*texts], truncation=True, max_length=LONGEST, padding=True, return_tensors="pt")
    return tuple(encoded[name] for name in ("input_ids", "attention_mask"))


def _pixels(saved: Saved, paths: Sequence[str]) -> tuple[Tensor]:
    """Return normalised images [N, C, H, W], scaled to the size that the network was trained on."""
    if saved.examples is None or saved.examples.normalise is None:
        raise ModelFileError(
            f"no examples beside {saved.path}, which hold how its images are normalised",
            fix=f"train it again: seatrial run {saved.recipe}",
        )
    try:
        from PIL import Image
    except ImportError as error:
        raise InputError("reading images needs pillow", fix="pip install pillow") from error
    ((channels, height, width),) = saved.inputs.values()
    images = []
    for path in paths:
        try:
            with Image.open(path) as opened:
                image = opened.convert("L" if channels == 1 else "RGB").resize((width, height))
        except (OSError, ValueError, Image.DecompressionBombError) as error:
            raise DataError(f"cannot read the image {path}: {first_line(error)}") from error
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
        images.append(pixels.reshape(height, width, channels).permute(2, 0, 1))
    return (saved.examples.normalise(torch.stack(images).float()),)


if __name__ == "__main__":
    script.run(main)
