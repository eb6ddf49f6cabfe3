"""Classify images on the device in one graph. Shapes: B rows, H and W pixels, C channels, K classes."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from seatrial.serve.readers.images import ImageReader
from seatrial.serve.runners.graphs import EagerRunner, GraphedRunner
from seatrial.serve.served_model import Answer, Reader, Row, WarmUp, classifier, compare_in
from seatrial.train.saving.examples import Examples
from seatrial.train.saving.model_card import TensorSpec

#: The longer side of a drawing, in pixels of the network's image: MNIST's digits, and scikit-learn's scaled up.
BOXES = {"mnist": 20, "mnist-deep": 20, "digits": 28}
#: ``network``: on the device, in half precision if its answers agree; ``program``: captured; ``eager``: run as it is.
Mode = Literal["network", "program", "eager"]


class ImageModel:
    """A network from normalised images [B, C, H, W] to logits [B, K]. ``examples`` hold normalisation and size."""

    def __init__(
        self,
        name: str,
        network: Callable[[Tensor], Tensor],
        examples: Examples,
        labels: Sequence[str],
        device: torch.device,
        *,
        max_batch: int,
        mode: Mode = "network",
    ) -> None:
        assert examples.normalise is not None
        (images_NCHW,), (logits_NK,) = examples.inputs.values(), examples.outputs.values()
        channels, height, width = images_NCHW.shape[1:]
        shape = (height, width) if channels == 1 else (height, width, channels)
        self.description = classifier(name, "image", TensorSpec("image", "UINT8", shape), labels)
        self.reader: Reader = ImageReader(self.description, BOXES.get(examples.recipe) if channels == 1 else None)
        self.max_batch, self._device, self._shape, self._mode = max_batch, device, shape, mode
        scale, shift = examples.normalise.scale, examples.normalise.shift
        bytes_NCHW = ((images_NCHW - shift.cpu()) / scale.cpu()).round().clamp(0, 255).to(torch.uint8)
        self._images = bytes_NCHW.permute(0, 2, 3, 1).numpy().reshape(-1, *shape)
        self._expected = logits_NK.softmax(1).float().numpy()
        if isinstance(network, nn.Module) and mode == "network":
            network = network.to(device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
        self._network, self._normalise = network, examples.normalise.to(device)
        halves = device.type == "cuda" and mode == "network"
        self._formats = (torch.float16, torch.float32) if halves else (torch.float32,)
        self._batches = self._runner(self._formats[0])

    def warm_up(self) -> WarmUp:
        """Compare in half precision on a GPU; take fp32 if those answers differ from the saved ones."""
        began = time.perf_counter()
        difference = compare_in(self._formats, self._all, self._expected)
        for size in self._batches.captured or (1, self.max_batch):
            self._batches([[self._images[0]] * size])
        return WarmUp(len(self._images), difference, time.perf_counter() - began)

    def predict(self, rows: Sequence[Row]) -> list[Answer]:
        """Return probabilities [K] of each row."""
        (probabilities_NK,) = self._batches([[row[0] for row in rows]])
        return [(probabilities_K,) for probabilities_K in probabilities_NK]

    def _runner(self, dtype: torch.dtype) -> EagerRunner | GraphedRunner:
        network = self._network
        if dtype != torch.float32 and isinstance(network, nn.Module):
            network = copy.deepcopy(network).to(dtype)  # the fp32 weights stay, in case half precision differs

        def forward(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            images = inputs[0]
            # Rows are channels last already; with one channel both layouts are the same bytes.
            images_BCHW = images.unsqueeze(1) if images.ndim == 3 else images.permute(0, 3, 1, 2)
            numbers_BCHW = self._normalise(images_BCHW.float()).to(dtype, memory_format=torch.channels_last)
            return (network(numbers_BCHW).float().softmax(1),)

        if self._device.type != "cuda" or self._mode == "eager":
            return EagerRunner(forward, self._device)
        return GraphedRunner(forward, [(self._shape, torch.uint8)], self.max_batch, self._device)

    def _all(self, dtype: torch.dtype) -> np.ndarray:
        """Return the answers to all examples in this format, which later batches have, too."""
        self._batches = self._runner(dtype)
        self._batches.prepare()
        parts = [self._images[at : at + self.max_batch] for at in range(0, len(self._images), self.max_batch)]
        return np.concatenate([self._batches([list(part)])[0] for part in parts])
