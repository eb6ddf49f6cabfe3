"""A server of a model without torch, for tests of serve/: python tests/served_echo.py --model echo …

Its rows are two numbers and its answer their sum and product. What the numbers are can make it slow, wrong or lost:
first -1 sleeps for the second's seconds, -2 raises, -3 loses the GPU, -4 refuses the row, -5 answers NaN, -6 dies, -7
is one call of the second's seconds that keeps Python's lock, -8 handles a signal and ends a process that it forked.
With ECHO_KIND=pictures its rows are images of 28 by 28 pixels.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from seatrial.serve.errors import BadInputError, DeviceLostError, ServeError
from seatrial.serve.readers.images import ImageReader
from seatrial.serve.served_model import Answer, Description, Row, WarmUp
from seatrial.train.saving.model_card import TensorSpec


@dataclass
class EchoReader:
    """{"input": [a, b]}, {"inputs": [[a, b], …]}, text "a b", or an image file of any kind: its size."""

    description: Description

    def rows(self, body: Any) -> tuple[list[Row], bool]:
        if isinstance(body, dict) and "input" in body:
            return [self._row(body["input"])], False
        if isinstance(body, dict) and isinstance(body.get("text"), str):
            return [self._row([len(body["text"]), 0])], False
        if isinstance(body, dict) and isinstance(body.get("inputs"), list):
            return [self._row(each) for each in body["inputs"]], True
        raise BadInputError('The body has to be an object with "input" or "inputs".')

    def row_of_file(self, data: bytes, media_type: str) -> Row:
        if media_type == "text/plain":
            try:
                return self._row([float(word) for word in data.decode().split()])
            except ValueError as error:
                raise BadInputError("The text is not a pair of numbers.") from error
        if media_type.startswith("image/") or not media_type:  # of a form
            return (np.array([len(data), 0], np.float32),)
        raise BadInputError(f"A file of type {media_type[:40]} is not taken.")

    def answer(self, answer: Answer) -> dict[str, Any]:
        total, product = answer[0].tolist()
        if self.description.kind != "tensors":  # for the page
            shares = {label: 1 / len(self.description.labels) for label in self.description.labels}
            return {"label": self.description.labels[0], "probability": 0.1, "probabilities": shares}
        return {"sum": total, "product": product}

    def _row(self, given: Any) -> Row:
        try:
            array = np.array(given, np.float32)
        except (ValueError, TypeError) as error:
            raise BadInputError("The input is not a pair of numbers.") from error
        if array.shape != (2,) or not np.isfinite(array).all():
            raise BadInputError("The input is not a pair of numbers.")
        return (array,)


class Echo:
    """See ServedModel."""

    max_batch = 8

    def __init__(self, kind: str) -> None:
        labels = {"image": tuple("0123456789"), "text": ("ham", "spam"), "pictures": ("light", "dark")}.get(kind, ())
        numbers = (TensorSpec("numbers", "FP32", (2,)),)
        self.description = Description("echo", kind, numbers, (TensorSpec("results", "FP32", (2,)),), labels)
        self.reader: Any = EchoReader(self.description)
        if kind == "pictures":
            pictures = (TensorSpec("image", "UINT8", (28, 28)),)
            self.reader = ImageReader(self.description._replace(kind="image", inputs=pictures))

    def warm_up(self) -> WarmUp:
        while (awaited := os.environ.get("ECHO_WAITS_FOR")) and not Path(awaited).exists():
            time.sleep(0.02)
        if os.environ.get("ECHO_DIFFERS"):
            raise ServeError("the outputs differ from the saved ones by 0.5", fix="seatrial run echo")
        return WarmUp(3, 0.001, 0.1)

    def predict(self, rows: list[Row]) -> list[Answer]:
        assert 0 < len(rows) <= self.max_batch
        if rows[0][0].dtype == np.uint8:
            return [(row[0].mean(0, dtype=np.float32)[:2],) for row in rows]
        return [(self._one(*row[0].tolist()),) for row in rows]

    def _one(self, first: float, second: float) -> np.ndarray:
        if first in (-1, -7):
            print("a slow row is computed", flush=True)
        if first == -1:
            time.sleep(second)
        elif first == -2:
            raise RuntimeError("secret path /home/somebody/model.py")
        elif first == -3:
            raise DeviceLostError("CUDA error: unspecified launch failure")
        elif first == -4:
            raise BadInputError("The first number must not be -4.")
        elif first == -5:
            return np.array([float("nan"), 0], np.float32)
        elif first == -6:
            os.kill(os.getpid(), 9)
        elif first == -7:
            end = time.monotonic() + second
            sum(itertools.takewhile(end.__gt__, iter(time.monotonic, None)))  # not one step of the interpreter
        elif first == -8:
            signal.signal(signal.SIGUSR1, lambda *_: None)
            signal.raise_signal(signal.SIGUSR1)
            process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
            process.start()
            process.terminate()
            process.join()
        return np.array([first + second, first * second], np.float32)


if __name__ == "__main__":
    import served_echo  # under this name the fronts find the reader
    from seatrial.serve.__main__ import end, main

    end(main(lambda options: served_echo.Echo(os.environ.get("ECHO_KIND", "tensors"))))
    sys.exit(1)
