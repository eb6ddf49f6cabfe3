"""The program: open a model, write it in a format, load that back, compare, and only then put it in its place.

python -m seatrial.export --model digits --to onnx --out exports/digits.onnx
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from seatrial.events import EVENTS_VARIABLE, StepLog
from seatrial.export import formats
from seatrial.models.model import Original
from seatrial.models.open import open_model
from seatrial.train import options
from seatrial.train.errors import DiskFullError, InputError, TrainError, first_line
from seatrial.train.saving.examples import Examples, examples_path, save_examples
from seatrial.train.saving.model_card import ModelCard, TensorSpec, card_path, datatype, save_card


def main(argv: Sequence[str]) -> int:
    """Export a model; return the exit code."""
    arguments = parse(argv)
    torch.manual_seed(0)
    original = open_model(arguments.model, arguments.model_factory, arguments.input_shape)
    tolerance = arguments.tolerance or formats.TOLERANCES[original.dtype]
    of_what = f"{len(original.examples)} {'real' if original.examples.real else 'random'} inputs"
    print(f"{original.name}: comparing on {of_what}", flush=True)
    if not original.examples.real:
        print("no examples are saved with it: the inputs are drawn from a fixed seed", flush=True)
    began = time.perf_counter()
    found = export(original, arguments.to, arguments.out, tolerance)
    seconds, size = time.perf_counter() - began, arguments.out.stat().st_size
    _report(export_s=round(seconds, 3), file_bytes=size)
    print(
        f"agrees: largest difference {found.scaled:.3g}, tolerance {tolerance:g}, at batches "
        f"{', '.join(map(str, found.batches))}\nsaved {arguments.out}, {size:,} bytes, in {seconds:.1f} s",
        flush=True,
    )
    return 0


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(prog="seatrial.export", description="Write a trained model in another format.")
    parser.add_argument("--model", required=True, metavar="SPEC", help="a recipe's name or a file")
    parser.add_argument("--to", required=True, choices=tuple(formats.FORMATS))
    parser.add_argument("--out", required=True, type=Path, metavar="PATH")
    parser.add_argument("--model-factory", metavar="MODULE:FACTORY", help="makes the network that weights belong to")
    parser.add_argument("--tolerance", type=options.positive_float, metavar="X", help="of the largest difference")
    parser.add_argument("--input-shape", type=_shape, action="append", default=[], metavar="N,N", help="of one row")
    return parser.parse_args(argv)


def export(original: Original, to: str, out: Path, tolerance: float) -> formats.Difference:
    """Write the model, its examples and its card; all three are there afterwards, or none is new.

    Raises DisagreesError beyond the tolerance, TrainError for a network that has not this format, or a full disk.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".part", dir=out.parent))
    except OSError as error:
        problem = f"cannot write {out}: {error.strerror}"
        raise DiskFullError(problem, fix=f"--out elsewhere: ls -ld {out.parent}") from error
    try:
        written = aside / out.name
        found = _write_and_compare(original, to, written, tolerance)
        with torch.no_grad():
            outputs = formats.run_original(original)(tuple(original.inputs.values()))
        # For programs that load the exported file.
        examples = replace(original.examples, outputs=dict(zip(original.outputs, outputs, strict=True)))
        save_examples(examples, written)
        save_card(_card(original, examples, to, written, found, tolerance), card_path(written))
        for path in (examples_path(written), card_path(written), written):
            path.chmod(0o644)
            path.replace(out.with_name(path.name))
        return found
    except OSError as error:
        raise DiskFullError(f"cannot write {out}: {error.strerror or error}", fix=f"df -h {out.parent}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _write_and_compare(original: Original, to: str, written: Path, tolerance: float) -> formats.Difference:
    write, load = formats.FORMATS[to]
    try:
        with torch.no_grad():
            write(original, written)
            found = formats.compare(original, formats.run_original(original), load(written, original))
    except (TrainError, OSError):
        raise
    except ImportError as error:
        raise InputError(f"--to {to} needs {error.name}", fix=f"pip install {error.name}") from error
    except Exception as error:  # exporters raise what a network leads them to
        others = ", ".join(name for name in formats.FORMATS if name != to)
        traced = to == "onnx" and original.program is None  # the exporter for .pt2 files knows more operators
        fix = "--to pt2, and then that file --to onnx" if traced else f"another format: {others}"
        raise TrainError(f"{original.name} cannot be exported to {to}: {first_line(error)}", fix=fix) from error
    # Also of a model that is refused for it.
    _report(largest_difference=found.scaled, largest_absolute_difference=found.absolute, tolerance=tolerance)
    if not found.scaled <= tolerance:
        differs = f"differs from the original by {found.scaled:.3g}, more than the tolerance {tolerance:g}"
        fix = f"another format, or --tolerance {found.scaled * 2:.1g} if that is close enough for your use"
        raise formats.DisagreesError(f"the exported model {differs}: nothing was saved", fix=fix)
    return found


def _card(
    original: Original, examples: Examples, to: str, written: Path, found: formats.Difference, tolerance: float
) -> ModelCard:
    opset = {"onnx": formats.OPSET if original.program is None else formats.PROGRAM_OPSET}.get(to, 0)
    digest = hashlib.sha256(written.read_bytes()).hexdigest()
    normalise = examples.normalise
    return ModelCard(
        format=to,
        file=written.name,
        sha256=digest,
        kind=examples.kind,
        recipe=examples.recipe,
        inputs=_specs(original.inputs, original.dynamic),
        outputs=_specs(examples.outputs, {} if original.fixed_batch else dict.fromkeys(examples.outputs, (0,))),
        labels=examples.labels,
        scale=tuple(normalise.scale.flatten().tolist()) if normalise else (),
        shift=tuple(normalise.shift.flatten().tolist()) if normalise else (),
        weights=examples.weights,
        examples=len(examples),
        real=examples.real,
        batches=found.batches,
        largest_difference=found.scaled,
        largest_absolute_difference=found.absolute,
        tolerance=tolerance,
        opset=opset,
        torch=torch.__version__,
    )


def _specs(tensors: Mapping[str, Tensor], varying: Mapping[str, Collection[int]]) -> tuple[TensorSpec, ...]:
    """Describe tensors; ``varying``: name → places whose size varies."""
    shapes = {
        name: tuple(-1 if place in varying.get(name, ()) else size for place, size in enumerate(each.shape))
        for name, each in tensors.items()
    }
    return tuple(TensorSpec(name, str(datatype(each.dtype)), shapes[name]) for name, each in tensors.items())


def _report(**numbers: float) -> None:
    """Report numbers to the run's receipt, if there is one."""
    if path := os.environ.get(EVENTS_VARIABLE):
        log = StepLog(path)
        log.write({"step": 1, **numbers})
        log.close()


def _shape(text: str) -> tuple[int, ...]:
    sizes = text.split(",")
    if not all(size.strip().isdecimal() and int(size) > 0 for size in sizes):
        raise argparse.ArgumentTypeError(f"write the sizes of one row as 1,28,28, not {text}")
    return tuple(map(int, sizes))


if __name__ == "__main__":
    options.run(main)
