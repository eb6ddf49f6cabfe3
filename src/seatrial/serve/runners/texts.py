"""Classify texts with BERT, several texts in a row, in one graph for each number of rows; without transformers.

Texts of different lengths lie one behind the other in rows of W places, and attend to their own tokens only. So little
is padding (about a twentieth; a batch padded to its longest text would be four fifths), and a CUDA graph depends on the
number of rows alone. Shapes: N texts, R rows, W places a row, D hidden numbers, K classes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from seatrial.serve.errors import BadInputError, ServeError
from seatrial.serve.readers.others import TextReader
from seatrial.serve.runners.graphs import capture, watched
from seatrial.serve.served_model import Answer, Reader, Row, WarmUp, classifier, compare_in
from seatrial.train.saving.model_card import TensorSpec

#: Rows that are captured: 8,192 tokens are 1.4 TFLOP at BERT-base's shape, a few ms of an H200.
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
#: Places that texts are padded to on a CPU, where rows hold one text each.
LENGTHS = (8, 16, 24, 32, 48, 64, 96, 128)
#: Planes of a packed batch: the token, its position in its text, and which text it is of (0 is padding).
TOKENS, POSITIONS, TEXTS = 0, 1, 2
#: Seed of texts that are drawn for a model without saved examples.
WARM_UP_SEED = 0


class TextModel:
    """A BERT classifier with its tokenizer: compared with ``examples`` at warm-up, then ``check`` raises ServeError."""

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
        examples: tuple[list[np.ndarray], np.ndarray] | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.description = classifier(name, "text", TensorSpec("text", "BYTES", (1,)), labels)
        self.reader: Reader = TextReader(self.description, tokenizer, longest)
        self.max_batch, self._device, self._longest = max_batch, device, longest
        self._weights, self._examples, self._check = (tensors, config), examples, check
        self._run: Callable[[list[np.ndarray]], np.ndarray] = lambda texts: np.empty(0)

    def warm_up(self) -> WarmUp:
        """Compare in half precision on a GPU; take fp32 if those answers differ from the saved ones."""
        began = time.perf_counter()
        texts, expected = self._examples or self._own_examples()

        def answers(dtype: torch.dtype) -> np.ndarray:
            bert = Bert(*self._weights, self._device, dtype)
            if self._device.type == "cuda":
                self._run = graphs = PackedGraphs(bert, self.max_batch, self._longest, self._device)
                graphs.prepare()
            else:
                self._run = Bucketed(bert, self._device)
            return self._all(texts)

        formats = (torch.float16, torch.float32) if self._device.type == "cuda" else (torch.float32,)
        difference = compare_in(formats, answers, expected)
        self._check()
        self._all([texts[0]] * self.max_batch)
        self._weights = {}, {}
        return WarmUp(len(texts) if self._examples else 0, difference, time.perf_counter() - began)

    def predict(self, rows: Sequence[Row]) -> list[Answer]:
        """Return probabilities [K] of each text."""
        for (tokens,) in rows:
            if not 0 < len(tokens) <= self._longest:
                raise BadInputError(f"A text has 1 to {self._longest} tokens, not {len(tokens)}.")
        return [(probabilities_K,) for probabilities_K in self._run([row[0] for row in rows])]

    def _all(self, texts: list[np.ndarray]) -> np.ndarray:
        return np.concatenate([self._run(texts[i : i + self.max_batch]) for i in range(0, len(texts), self.max_batch)])

    def _own_examples(self) -> tuple[list[np.ndarray], np.ndarray]:
        """Return drawn texts, each computed eagerly in fp32 and alone, if nothing was saved to compare with."""
        bert, drawn = Bert(*self._weights, self._device, torch.float32), np.random.default_rng(WARM_UP_SEED)
        lengths = [min(length, self._longest) for length in (2, 5, 17, 22, 40, self._longest)]
        texts = [drawn.integers(0, len(bert.words), length, dtype=np.int32) for length in lengths]
        run = Bucketed(bert, self._device)
        return texts, np.concatenate([run([text]) for text in texts])


class EncoderLayer(NamedTuple):
    """Weights of one layer; the three projections of attention are one product."""

    qkv: tuple[Tensor, Tensor]
    mixed: tuple[Tensor, Tensor]
    mixed_norm: tuple[Tensor, Tensor]
    wide: tuple[Tensor, Tensor]
    narrow: tuple[Tensor, Tensor]
    norm: tuple[Tensor, Tensor]


class Bert:
    """A BertForSequenceClassification's state dict, ready to run in one number format."""

    def __init__(
        self, tensors: Mapping[str, Tensor], config: Mapping[str, Any], device: torch.device, dtype: torch.dtype
    ) -> None:
        def pair(name: str) -> tuple[Tensor, Tensor]:
            return put(tensors[f"{name}.weight"]), put(tensors[f"{name}.bias"])

        def put(tensor: Tensor) -> Tensor:
            return tensor.to(device, dtype)

        try:
            if config["hidden_act"] != "gelu" or config.get("position_embedding_type", "absolute") != "absolute":
                raise ServeError("this BERT has another activation or other positions than are served")
            self._heads, self._epsilon = int(config["num_attention_heads"]), float(config["layer_norm_eps"])
            self.words = put(tensors["bert.embeddings.word_embeddings.weight"])
            # Every token is of the first of BERT's two sentences.
            kinds = tensors["bert.embeddings.token_type_embeddings.weight"][0]
            self.positions = put(tensors["bert.embeddings.position_embeddings.weight"] + kinds)
            self._embedded = pair("bert.embeddings.LayerNorm")
            self._layers = []
            for number in range(int(config["num_hidden_layers"])):
                at = f"bert.encoder.layer.{number}"
                three = [pair(f"{at}.attention.self.{name}") for name in ("query", "key", "value")]
                self._layers.append(
                    EncoderLayer(
                        (torch.cat([weight for weight, _ in three]), torch.cat([bias for _, bias in three])),
                        pair(f"{at}.attention.output.dense"),
                        pair(f"{at}.attention.output.LayerNorm"),
                        pair(f"{at}.intermediate.dense"),
                        pair(f"{at}.output.dense"),
                        pair(f"{at}.output.LayerNorm"),
                    )
                )
            self._pooler, self._classifier = pair("bert.pooler.dense"), pair("classifier")
        except (KeyError, TypeError, ValueError) as error:
            raise ServeError(f"the model is not a BERT classifier: {error} is missing or wrong") from error

    def __call__(self, tokens_RW: Tensor, positions_RW: Tensor, texts_RW: Tensor, firsts_N: Tensor) -> Tensor:
        """Return logits [N, K] in fp32.

        ``texts_RW``: which text a token is of; padding is one. ``firsts_N``: where texts begin, in R × W counted along.
        """
        width = self.words.shape[1]
        hidden = F.embedding(tokens_RW, self.words) + F.embedding(positions_RW, self.positions)
        hidden = F.layer_norm(hidden, (width,), *self._embedded, self._epsilon)
        apart = texts_RW[:, None, :, None] != texts_RW[:, None, None, :]
        mask_R1WW = torch.zeros(apart.shape, dtype=hidden.dtype, device=hidden.device)
        mask_R1WW = mask_R1WW.masked_fill(apart, float("-inf"))
        for layer in self._layers:
            query, key, value = (
                part.unflatten(2, (self._heads, -1)).transpose(1, 2)  # type: ignore[no-untyped-call]
                for part in F.linear(hidden, *layer.qkv).chunk(3, 2)
            )
            mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask_R1WW)
            mixed = F.linear(mixed.transpose(1, 2).flatten(2), *layer.mixed)
            hidden = F.layer_norm(hidden + mixed, (width,), *layer.mixed_norm, self._epsilon)
            wide = F.gelu(F.linear(hidden, *layer.wide))
            hidden = F.layer_norm(hidden + F.linear(wide, *layer.narrow), (width,), *layer.norm, self._epsilon)
        firsts_ND = hidden.flatten(0, 1).index_select(0, firsts_N)
        return F.linear(F.linear(firsts_ND, *self._pooler).tanh(), *self._classifier).float()


class Bucketed:
    """Run eagerly, on a CPU: a batch for each of LENGTHS, as wide as its longest text."""

    def __init__(self, bert: Bert, device: torch.device) -> None:
        self._bert, self._device = bert, device

    def __call__(self, texts: list[np.ndarray]) -> np.ndarray:
        """Return probabilities [N, K]. Raises DeviceLostError."""
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
    """Run a graph for each number of ROWS; a batch is a copy to the device, a replay and a copy back."""

    def __init__(self, bert: Bert, max_batch: int, width: int, device: torch.device) -> None:
        self._bert, self._device, self._width = bert, device, width
        self._sizes = tuple(rows for rows in ROWS if rows < max_batch) + ((max_batch,) if max_batch < ROWS[-1] else ())
        self._sizes = self._sizes or (1,)
        # One buffer holds the places where texts begin, then the three planes, with as many rows as a batch has.
        places = max_batch + 3 * self._sizes[-1] * width
        self._pinned = torch.zeros(places, dtype=torch.int32, pin_memory=True)
        self._host, self._input = self._pinned.numpy(), torch.zeros(places, dtype=torch.int32, device=device)
        self._texts = max_batch
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}

    def prepare(self) -> None:
        """Capture, the most rows first: the others fit into its memory."""
        pool: Any = None
        # One kernel for every number of rows; with so few places a row all of them are quick.
        attention = sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])
        with torch.inference_mode(), watched(self._device), attention:
            for rows in reversed(self._sizes):
                graph, (output,) = capture(lambda rows=rows: (self._forward(rows),), pool)  # type: ignore[misc]
                pool = pool or graph.pool()
                self._graphs[rows] = graph, output
            self._answer = torch.empty_like(output, device="cpu").pin_memory()
            torch.cuda.synchronize(self._device)

    def __call__(self, texts: list[np.ndarray]) -> np.ndarray:
        """Return probabilities [N, K]. Raises DeviceLostError."""
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


def rows_of(lengths: Sequence[int], width: int) -> tuple[list[int], list[int], int]:
    """Return the row of each text, the place in it where the text begins, and the number of rows.

    The longest first, each into the row with the least capacity that is enough. Rows are kept by their capacity; a bit
    of ``capacities`` is set for each that exists.
    """
    row_of, place_of, rows, capacities = [0] * len(lengths), [0] * len(lengths), 0, 0
    with_capacity: list[list[int]] = [[] for _ in range(width + 1)]
    for text in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        length = lengths[text]
        if enough := capacities >> length:
            capacity = length + (enough & -enough).bit_length() - 1
            row = with_capacity[capacity].pop()
            if not with_capacity[capacity]:
                capacities ^= 1 << capacity
        else:
            capacity, row, rows = width, rows, rows + 1
        row_of[text], place_of[text] = row, width - capacity
        if left := capacity - length:
            with_capacity[left].append(row)
            capacities |= 1 << left
    return row_of, place_of, rows


def pack(
    texts: Sequence[np.ndarray],
    row_of: Sequence[int],
    place_of: Sequence[int],
    planes_3RW: np.ndarray,
    firsts: np.ndarray,
) -> None:
    """Write the texts' tokens, positions and numbers into ``planes_3RW``, and where each begins into ``firsts``."""
    width = planes_3RW.shape[2]
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    # A graph reads all of them: one left from a larger batch would point behind the rows of this one.
    firsts[len(texts) :] = 0
    firsts[: len(texts)] = begin = np.asarray(row_of) * width + np.asarray(place_of)
    positions = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    places = np.repeat(begin, lengths) + positions
    flat = planes_3RW.reshape(3, -1)
    flat[:] = 0
    flat[TOKENS, places] = np.concatenate(texts)
    flat[POSITIONS, places] = positions
    flat[TEXTS, places] = np.repeat(np.arange(1, len(texts) + 1), lengths)
