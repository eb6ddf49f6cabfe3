"""predict: open a trained model as the server does, and print its answer for each input.

    seatrial run predict -- spam "WINNER!! Call now to claim your prize"
    seatrial run predict -- spam < messages.txt
    seatrial run predict -- mnist digit.png another.png

The model is one that a recipe saved in the models folder, or a file that can be served. Texts are arguments or lines of
standard input; images are files. Each line of the output is the likeliest label, its probability and the input.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from seatrial.recipe_names import WEIGHTS
from seatrial.serve.errors import BadInputError
from seatrial.serve.runners.open import open_model
from seatrial.serve.served_model import Reader, Row
from seatrial.train import options
from seatrial.train.errors import DataError, InputError, ModelFileError

BATCH = 64


def main(argv: Sequence[str]) -> int:
    """Print the predictions; return the exit code."""
    parser = argparse.ArgumentParser(prog="seatrial run predict --", description="Ask a trained model.")
    parser.add_argument("model", help=f"the recipe that trained it ({', '.join(WEIGHTS)}), or a file")
    parser.add_argument("inputs", nargs="*", metavar="INPUT", help="a text or an image file; default: lines of stdin")
    parser.add_argument("--models", type=Path, default=options.default_folder("models"), metavar="DIR")
    arguments = parser.parse_intermixed_args(argv)
    if not (inputs := [line for line in arguments.inputs or options.input_lines() if line.strip()]):
        raise InputError("no input", fix=f"seatrial run predict -- {arguments.model} INPUT…")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = open_model(arguments.model, device, folder=arguments.models, max_batch=min(BATCH, len(inputs)))
    if model.description.kind == "tensors":
        raise ModelFileError(
            f"no examples saved with {arguments.model} hold how its images are normalised",
            fix="train it again: seatrial run RECIPE; or export it again: seatrial export RECIPE --to pt2",
        )
    model.warm_up()
    for first in range(0, len(inputs), model.max_batch):
        batch = inputs[first : first + model.max_batch]
        for text, answer in zip(batch, model.predict([_row(model.reader, each) for each in batch]), strict=True):
            found = model.reader.answer(answer)
            print(f"{found['label']}\t{found['probability']:.4f}\t{text}", flush=True)
    return 0


def _row(reader: Reader, text: str) -> Row:
    """Read a text, or the image in a file. Raises DataError for one that cannot be read."""
    is_text = reader.description.kind == "text"
    try:
        return reader.rows(text)[0][0] if is_text else reader.row_of_file(Path(text).read_bytes(), "")
    except OSError as error:
        raise DataError(f"cannot read the image {text}: {error.strerror}") from error
    except BadInputError as error:
        raise DataError(f"cannot read the {'text' if is_text else 'image'} {text}: {error}") from error


if __name__ == "__main__":
    options.run(main)
