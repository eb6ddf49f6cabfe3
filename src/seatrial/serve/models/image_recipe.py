"""The models of digits and mnist: 28×28 images with one channel, pixels 0 … 255."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch
from safetensors.torch import load_file

from seatrial.recipes.mnist import image_sets, network
from seatrial.serve.errors import ServeError
from seatrial.serve.models.image_reader import ImageReader
from seatrial.serve.served_model import Answer, Description, Reader, Row, TensorSpec, WarmUp
from seatrial.train import script
from seatrial.train.data.images import Normalisation


class ImageRecipe:
    """See ServedModel."""

    max_batch = 64

    def __init__(self, name: str, device: torch.device) -> None:
        began_s = time.perf_counter()
        path = script.default_folder("models") / f"{name}.safetensors"
        if not path.is_file():
            raise ServeError(f"no trained model of {name}", fix=f"seatrial run {name}")
        from seatrial.recipes.digits import read_digits

        train_set, _ = image_sets(read_digits())
        normalise = Normalisation.of(train_set.images_NCHW)
        self._scale, self._shift = normalise.scale.to(device), normalise.shift.to(device)
        self._device = device
        self._model = network(28, 28, 10).to(device).eval()
        self._model.load_state_dict(load_file(path))
        self.description = Description(
            name,
            "image",
            (TensorSpec("image", "UINT8", (28, 28)),),
            (TensorSpec("logits", "FP32", (10,)),),
            tuple("0123456789"),
        )
        self.reader: Reader = ImageReader(self.description)
        self._began_s = began_s

    def warm_up(self) -> WarmUp:
        row = (np.zeros((28, 28), np.uint8),)
        for size in (1, 2, 4, 8, 16, 32, 64):
            self.predict([row] * size)
        return WarmUp(0, 0.0, time.perf_counter() - self._began_s)

    @torch.inference_mode()
    def predict(self, rows: Sequence[Row]) -> list[Answer]:
        images = torch.from_numpy(np.stack([row[0] for row in rows])).to(self._device)
        outputs = self._model(images.unsqueeze(1) * self._scale + self._shift).cpu().numpy()
        return [(output,) for output in outputs]
