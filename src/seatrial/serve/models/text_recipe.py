"""The recipe spam: texts packed into rows, classified in one graph for each number of rows.

Shapes: N texts, R rows, W places a row, K classes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from seatrial.serve.errors import BadInputError
from seatrial.serve.models.batches import capture, watched
from seatrial.serve.models.bert import Bert
from seatrial.serve.models.comparison import WARM_UP_SEED, compare
from seatrial.serve.models.packing import POSITIONS, TEXTS, TOKENS, pack, rows_of
from seatrial.serve.models.text_reader import TextReader
from seatrial.serve.served_model import Answer, Description, Reader, Row, TensorSpec, WarmUp

#: Rows that are captured: 8,192 tokens are 1.4 TFLOP at BERT-base's shape, a few ms of an H200.
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
#: Places that texts are padded to on a CPU, where rows hold one text each.
LENGTHS = (8, 16, 24, 32, 48, 64, 96, 128)


class TextModel:
    """A BERT classifier with its tokenizer."""

    def __init__(
        self,
        name: str,
        tensors: Mapping[str, Tensor],
        config: Mapping[str, Any],
        tokenizer: str,
        labels: Sequence[str],
        device: torch.device,
        *,
        max_batch: int,
        longest: int,
    ) -> None:
        self.description = Description(
            name,
            "text",
            (TensorSpec("text", "BYTES", (1,)),),
            (TensorSpec("probabilities", "FP32", (len(labels),)),),
            tuple(labels),
        )
        self.reader: Reader = TextReader(self.description, tokenizer, longest)
        self.max_batch, self._device, self._longest = max_batch, device, longest
        self._weights = tensors, config
        self._examples: tuple[list[np.ndarray], np.ndarray] | None = None
        self._check: Callable[[], None] = lambda: None
        self._run: Callable[[list[np.ndarray]], np.ndarray] = lambda texts: np.empty(0)

    def with_examples(
        self, texts: Sequence[np.ndarray], probabilities_NK: np.ndarray, check: Callable[[], None]
    ) -> TextModel:
        """Compare with these at warm-up, and make ``check``, which raises ServeError."""
        self._examples, self._check = (list(texts), probabilities_NK), check
        return self

    def warm_up(self) -> WarmUp:
        """In half precision on a GPU where its answers agree with the saved ones, else in fp32."""
        began = time.perf_counter()
        on_gpu = self._device.type == "cuda"
        bert = Bert(*self._weights, self._device, torch.float16 if on_gpu else torch.float32)
        texts = self._examples[0] if self._examples else self._own_texts(bert.vocabulary)
        self._take(bert)
        expected = self._examples[1] if self._examples else self._plain(texts)
        difference = compare(self._all(texts), expected, last=not on_gpu)
        if difference is None:
            self._take(Bert(*self._weights, self._device, torch.float32))
            difference = compare(self._all(texts), expected, last=True)
        assert difference is not None
        self._check()
        self._all([texts[0]] * self.max_batch)
        self._weights = {}, {}
        return WarmUp(len(texts) if self._examples else 0, difference, time.perf_counter() - began)

    def predict(self, rows: Sequence[Row]) -> list[Answer]:
        """Probabilities [K] of each text."""
        for (tokens,) in rows:
            if not 0 < len(tokens) <= self._longest:
                raise BadInputError(f"A text has 1 to {self._longest} tokens, not {len(tokens)}.")
        return [(probabilities_K,) for probabilities_K in self._run([row[0] for row in rows])]

    def _take(self, bert: Bert) -> None:
        if self._device.type == "cuda":
            graphs = PackedGraphs(bert, self.max_batch, self._longest, self._device)
            graphs.prepare()
            self._run = graphs
        else:
            self._run = Bucketed(bert, self._device)

    def _plain(self, texts: list[np.ndarray]) -> np.ndarray:
        """Eagerly, in fp32, each text alone: what graphs and packing are compared with where nothing was saved."""
        run = Bucketed(Bert(*self._weights, self._device, torch.float32), self._device)
        return np.concatenate([run([text]) for text in texts])

    def _all(self, texts: list[np.ndarray]) -> np.ndarray:
        return np.concatenate([self._run(texts[i : i + self.max_batch]) for i in range(0, len(texts), self.max_batch)])

    def _own_texts(self, vocabulary: int) -> list[np.ndarray]:
        drawn = np.random.default_rng(WARM_UP_SEED)
        lengths = [min(length, self._longest) for length in (2, 5, 17, 22, 40, self._longest)]
        return [drawn.integers(0, vocabulary, length, dtype=np.int32) for length in lengths]


class Bucketed:
    """Eagerly: a batch for each of LENGTHS, as wide as its longest text. For a CPU."""

    def __init__(self, bert: Bert, device: torch.device) -> None:
        self._bert, self._device = bert, device

    def __call__(self, texts: list[np.ndarray]) -> np.ndarray:
        """Probabilities [N, K]. Raises DeviceLostError."""
        answers: list[np.ndarray | None] = [None] * len(texts)
        order = sorted(range(len(texts)), key=lambda text: len(texts[text]))
        for _, together in groupby(order, key=lambda text: next((n for n in LENGTHS if n >= len(texts[text])), 0)):
            members = list(together)
            group = [texts[text] for text in members]
            planes = np.zeros((3, len(group), len(group[-1])), np.int32)
            firsts = np.zeros(len(group), np.int32)
            pack(group, range(len(group)), [0] * len(group), planes, firsts)
            with torch.inference_mode(), watched(self._device):
                inputs = [torch.from_numpy(each).to(self._device) for each in (*planes, firsts)]
                found = self._bert(*inputs).softmax(1).cpu().numpy()
            for text, answer in zip(members, found, strict=True):
                answers[text] = answer
        return np.stack([answer for answer in answers if answer is not None])


class PackedGraphs:
    """A graph for each number of ROWS; one copy to the device, one replay and one copy back for each batch."""

    def __init__(self, bert: Bert, max_batch: int, width: int, device: torch.device) -> None:
        self._bert, self._device, self._width = bert, device, width
        self._sizes = tuple(rows for rows in ROWS if rows < max_batch) + ((max_batch,) if max_batch < ROWS[-1] else ())
        self._sizes = self._sizes or (1,)
        # In one buffer: where texts begin, then the three planes, as many rows as a batch has.
        places = max_batch + 3 * self._sizes[-1] * width
        self._pinned = torch.zeros(places, dtype=torch.int32, pin_memory=True)
        self._host, self._input = self._pinned.numpy(), torch.zeros(places, dtype=torch.int32, device=device)
        self._texts = max_batch
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}

    def prepare(self) -> None:
        """Capture, the most rows first: the others fit into its memory."""
        pool: Any = None
        # The same kernel for every number of rows; with so few places a row all of them are quick.
        attention = sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])
        with torch.inference_mode(), watched(self._device), attention:
            for rows in reversed(self._sizes):
                graph, (output,) = capture(lambda rows=rows: (self._forward(rows),), pool)  # type: ignore[misc]
                pool = pool or graph.pool()
                self._graphs[rows] = graph, output
            self._answer = torch.empty_like(output, device="cpu").pin_memory()
            torch.cuda.synchronize(self._device)

    def __call__(self, texts: list[np.ndarray]) -> np.ndarray:
        """Probabilities [N, K]. Raises DeviceLostError."""
        row_of, place_of, rows = rows_of([len(text) for text in texts], self._width)
        if rows <= self._sizes[-1]:
            return self._replay(texts, row_of, place_of, rows)
        half = len(texts) // 2  # many long texts: more rows than the largest graph has
        return np.concatenate([self(texts[:half]), self(texts[half:])])

    def _replay(self, texts: list[np.ndarray], row_of: list[int], place_of: list[int], rows: int) -> np.ndarray:
        rows = next(size for size in self._sizes if size >= rows)
        used = self._texts + 3 * rows * self._width
        planes = self._host[self._texts : used].reshape(3, rows, self._width)
        pack(texts, row_of, place_of, planes, self._host[: self._texts])
        graph, output = self._graphs[rows]
        with torch.inference_mode(), watched(self._device):
            self._input[:used].copy_(self._pinned[:used], non_blocking=True)
            graph.replay()
            self._answer.copy_(output, non_blocking=True)
            torch.cuda.current_stream(self._device).synchronize()
        answers: np.ndarray = self._answer[: len(texts)].numpy().copy()
        return answers

    def _forward(self, rows: int) -> Tensor:
        planes = self._input[self._texts : self._texts + 3 * rows * self._width].view(3, rows, self._width)
        logits_NK = self._bert(planes[TOKENS], planes[POSITIONS], planes[TEXTS], self._input[: self._texts])
        return logits_NK.softmax(1)
