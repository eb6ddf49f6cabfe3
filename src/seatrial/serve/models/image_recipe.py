"""Recipes that classify images: bytes to the device, normalised and classified there in one graph.

Shapes: B rows, H and W pixels, C channels, K classes.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from seatrial.serve.models.batches import Eager, Forward, Graphed
from seatrial.serve.models.comparison import WARM_UP_SEED, compare
from seatrial.serve.models.image_reader import ImageReader
from seatrial.serve.served_model import Answer, Description, Reader, Row, TensorSpec, WarmUp
from seatrial.train.saving.examples import Normalisation

#: The longer side of a drawing, in pixels of the network's image: MNIST's digits, and scikit-learn's scaled up.
BOXES = {"mnist": 20, "mnist-deep": 20, "digits": 28}


@dataclass(frozen=True)
class Images:
    """What a model's images are.

    Attributes:
        shape: (C, H, W). normalise: how their bytes become numbers. box: see ImageReader.
    """

    shape: tuple[int, int, int]
    normalise: Normalisation
    labels: Sequence[str]
    box: int | None = None


class ImageModel:
    """A network for images with what turns bytes into its numbers.

    Args:
        network: from normalised images [B, C, H, W] to logits [B, K].
        way: ``network``: moved to the device, in half precision where that does; ``program``: captured as it is;
            ``eager``: run as it is.
    """

    def __init__(
        self,
        name: str,
        network: Callable[[Tensor], Tensor],
        images: Images,
        device: torch.device,
        *,
        max_batch: int,
        way: Literal["network", "program", "eager"] = "network",
    ) -> None:
        channels, height, width = images.shape
        shape = (height, width) if channels == 1 else (height, width, channels)
        self.description = Description(
            name,
            "image",
            (TensorSpec("image", "UINT8", shape),),
            (TensorSpec("probabilities", "FP32", (len(images.labels),)),),
            tuple(images.labels),
        )
        self.reader: Reader = ImageReader(self.description, images.box if channels == 1 else None)
        self.max_batch, self._device, self._shape, self._way = max_batch, device, shape, way
        if isinstance(network, nn.Module) and way == "network":
            network = network.to(device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
        self._network, self._normalise = network, images.normalise.to(device)
        self._examples: tuple[np.ndarray, np.ndarray] | None = None
        self._first = torch.float16 if device.type == "cuda" and way == "network" else torch.float32
        self._batches = self._ways(self._first)

    def with_examples(self, images_NCHW: Tensor, probabilities_NK: Tensor) -> ImageModel:
        """Compare with these at warm-up: normalised images as they are saved, and probabilities."""
        bytes_NCHW = ((images_NCHW - self._normalise.shift.cpu()) / self._normalise.scale.cpu()).round().clamp(0, 255)
        images = bytes_NCHW.to(torch.uint8).permute(0, 2, 3, 1).numpy().reshape(-1, *self._shape)
        self._examples = images, probabilities_NK.float().numpy()
        return self

    def warm_up(self) -> WarmUp:
        """In half precision on a GPU where its answers agree with the saved ones, else in fp32."""
        began = time.perf_counter()
        images, expected = self._examples or self._own_examples()
        self._batches.prepare()
        difference = compare(self._all(images), expected, last=self._first == torch.float32)
        if difference is None:
            self._batches = self._ways(torch.float32)
            self._batches.prepare()
            difference = compare(self._all(images), expected, last=True)
        assert difference is not None
        self._every_size(images[0])
        return WarmUp(len(images) if self._examples else 0, difference, time.perf_counter() - began)

    def predict(self, rows: Sequence[Row]) -> list[Answer]:
        """Probabilities [K] of each row."""
        (probabilities_NK,) = self._batches([[row[0] for row in rows]])
        return [(probabilities_K,) for probabilities_K in probabilities_NK]

    def _ways(self, dtype: torch.dtype) -> Eager | Graphed:
        forward = self._forward(dtype)
        if self._device.type != "cuda" or self._way == "eager":
            return Eager(forward, self._device)
        return Graphed(forward, [(self._shape, torch.uint8)], self.max_batch, self._device)

    def _forward(self, dtype: torch.dtype) -> Forward:
        # The fp32 weights stay: half precision may turn out not to do.
        network = self._network
        if dtype != torch.float32 and isinstance(network, nn.Module):
            network = copy.deepcopy(network).to(dtype)

        def run(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            images = inputs[0]
            # Channels last is what rows are already; with one channel both layouts are the same bytes.
            images_BCHW = images.unsqueeze(1) if images.ndim == 3 else images.permute(0, 3, 1, 2)
            numbers_BCHW = self._normalise(images_BCHW.float()).to(dtype, memory_format=torch.channels_last)
            return (network(numbers_BCHW).float().softmax(1),)

        return run

    def _own_examples(self) -> tuple[np.ndarray, np.ndarray]:
        """Noise, and what the network says of it in fp32: for where nothing was saved."""
        drawn = np.random.default_rng(WARM_UP_SEED).integers(0, 256, (4, *self._shape), dtype=np.uint8)
        eager = Eager(self._forward(torch.float32), self._device)
        (probabilities_NK,) = eager([list(drawn)])
        return drawn, probabilities_NK

    def _all(self, images: np.ndarray) -> np.ndarray:
        parts = [list(images[first : first + self.max_batch]) for first in range(0, len(images), self.max_batch)]
        return np.concatenate([self._batches([part])[0] for part in parts])

    def _every_size(self, image: np.ndarray) -> None:
        for size in self._batches.captured or (1, self.max_batch):
            self._batches([[image] * size])
