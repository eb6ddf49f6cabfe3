"""Serve a class of the user's, ``serve.py:Model``.

    class Model:
        max_batch = 32                      # optional

        def load(self, device, folder): ... # optional; by their names: torch's device, the folder of models
        def predict(self, batch): ...       # a list of inputs, as JSON or as bytes of a file → as many answers
        def example(self): ...              # optional: an input to warm up with

A batch that fails is given again in halves, so that one bad input spoils no other: predict has to bear that.
An answer is any value that JSON can hold; arrays and tensors become lists. If ``predict`` raises, the client gets 500
without the text, except for ``seatrial.serve.errors.BadInputError``, whose text is the client's 400.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from seatrial.serve.errors import DeviceLostError, ServeError
from seatrial.serve.readers.others import UserReader, input_of
from seatrial.serve.runners.graphs import watched
from seatrial.serve.served_model import Answer, Description, Reader, Row, WarmUp
from seatrial.train.errors import type_and_line
from seatrial.train.saving.model_card import TensorSpec

_BYTES = (TensorSpec("input", "BYTES", (-1,)),)


class UserModel:
    """An instance of the user's class, loaded."""

    def __init__(
        self, spec: str, device: torch.device, *, folder: Path, max_batch: int | None, name: str | None
    ) -> None:
        file, _, wanted = spec.rpartition(":")
        self._spec, self._device = spec, device
        made = self._guarded("cannot be made", _class_of(Path(file), wanted))
        if not callable(getattr(made, "predict", None)):
            raise ServeError(f"{spec} has no method predict(self, batch)", f"give {wanted} one that returns a list")
        self._model, own = made, getattr(made, "max_batch", None)
        if own is not None and (not isinstance(own, int) or own < 1):
            raise ServeError(f"{spec}.max_batch is {own!r}: it has to be a whole number of at least 1")
        self.max_batch = min(max_batch or own or 32, own or max_batch or 32)
        if callable(load := getattr(made, "load", None)):
            given = {"device": device, "folder": folder}
            arguments = {key: value for key, value in given.items() if key in inspect.signature(load).parameters}
            self._guarded("failed to load", lambda: load(**arguments))
        self.description = Description(name or wanted, "tensors", _BYTES, (TensorSpec("output", "BYTES", (-1,)),))
        self.reader: Reader = UserReader(self.description)

    def warm_up(self) -> WarmUp:
        """Predict for the class's own example, if it has one."""
        began = time.perf_counter()
        if callable(example := getattr(self._model, "example", None)):
            one = self._guarded("has an example that fails", example)
            for size in sorted({1, self.max_batch}):
                self._guarded("failed on its own example", lambda size=size: self._answers([one] * size))  # type: ignore[misc]
        return WarmUp(0, 0.0, time.perf_counter() - began)

    def predict(self, rows: Sequence[Row]) -> list[Answer]:
        """Return JSON in bytes for each row. Raises the errors of the user's code."""
        return self._answers([input_of(row) for row in rows])

    def _answers(self, batch: list[Any]) -> list[Answer]:
        with watched(self._device), torch.inference_mode():
            try:
                found = self._model.predict(batch)
            except Exception:
                raise
            except BaseException as error:  # exit(), or asyncio's CancelledError: the server's end is not theirs
                raise RuntimeError(f"{self._spec}.predict ended with {error!r}") from error
            answers = list(found) if not isinstance(found, (str, bytes, dict)) and hasattr(found, "__iter__") else None
            if answers is None or len(answers) != len(batch):
                count = type(found).__name__ if answers is None else f"{len(answers)} answers"
                raise RuntimeError(
                    f"{self._spec}.predict gave {count} to a batch of {len(batch)}: one for each is needed"
                )
            return [(np.frombuffer(json.dumps(_plain(each)).encode(), np.uint8),) for each in answers]

    def _guarded(self, what: str, act: Callable[[], Any]) -> Any:
        """Call ``act``; an error of the user's code becomes a ServeError, with its traceback in the log."""
        try:
            return act()
        except (ServeError, DeviceLostError):
            raise
        except (Exception, SystemExit) as error:
            raise _failed(f"{self._spec} {what}", error) from error


def _failed(what: str, error: BaseException) -> ServeError:
    """Make an error of the one that is handled, and print its traceback."""
    traceback.print_exc()
    sys.stderr.flush()
    return ServeError(f"{what}: {type_and_line(error)}", "the traceback above names the line")


def _class_of(file: Path, wanted: str) -> Callable[[], Any]:
    """Import the file, with its folder on the path. Raises ServeError."""
    if not file.is_file():
        raise ServeError(f"{file} does not exist", "name one as serve.py:Model")
    sys.path.insert(0, str(file.resolve().parent))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module  # so that its classes can be pickled
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise _failed(f"{file.name} cannot be imported", error) from error
    made = getattr(module, wanted, None)
    if not isinstance(made, type):
        found = [name for name, each in vars(module).items() if isinstance(each, type) and hasattr(each, "predict")]
        also = f"; it has {', '.join(found)}" if found else ""
        raise ServeError(
            f"{file.name} has no class {wanted}{also}", f"name one as {file.name}:{(found or ['Model'])[0]}"
        )
    return made


def _plain(value: Any) -> Any:
    """Convert to JSON's types: arrays and tensors are lists, NaN and infinity null."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().float().numpy() if value.dtype == torch.bfloat16 else value.detach().cpu().numpy()
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if value is None or isinstance(value, (str, int, bool)):
        return value
    raise RuntimeError(f"predict gave a {type(value).__name__}, which JSON cannot hold")
