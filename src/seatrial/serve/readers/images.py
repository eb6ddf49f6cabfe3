"""Turn images of requests into bytes, as the network was trained on them. Pillow and numpy, no torch.

Shapes: H and W pixels; a row is uint8 [H, W] of one channel, or [H, W, 3].
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import io
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from seatrial.serve.errors import BadInputError, TooMuchError
from seatrial.serve.readers.others import TensorReader, depth, inputs_of
from seatrial.serve.served_model import Row

#: Formats that are decoded; every other decoder of Pillow stays closed to network input.
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP")
_KINDS = f"{', '.join(FORMATS[:-1])} and {FORMATS[-1]}"
#: An image's pixels at most: 4096 × 4096 take 50 MB as colours. A small file can claim many more.
MOST_PIXELS = 4096 * 4096
#: Pixels of all files of a request: 1.5 s of decoding PNG.
MOST_REQUEST_PIXELS = 4 * MOST_PIXELS
#: Darkest ink, of 255: darker pixels are background where a drawing is cut out.
INK = 32


@dataclass
class ImageReader(TensorReader):
    """Make rows of one size from numbers or files.

    Numbers are taken as they are: from 0 to 1 where none of the image is above 1, else from 0 to 255. A file of another
    size is scaled. With ``drawing`` (a light figure on black, as MNIST's), a file whose border is light is turned
    around first, and one of another size is cut out and placed as MNIST's digits were.

    ``box``: pixels of the longer side that a drawing is scaled to; None for images that are not drawings.
    """

    box: int | None = None

    def rows(self, body: Any) -> tuple[list[Row], bool]:
        """Read ``{"input": one}``, ``{"inputs": [several]}`` or the bare numbers; a text is a file in base64.

        How deep the lists are decides if they are several: 28×28 numbers are one image under any name.
        """
        images, several = inputs_of(body, "image", self._several)
        files = {at: _opened(_from_base64(image)) for at, image in enumerate(images) if isinstance(image, str)}
        pixels = sum(file.width * file.height for file in files.values())
        if pixels > MOST_REQUEST_PIXELS:
            raise TooMuchError(f"The images have {pixels:,} pixels, and a request at most {MOST_REQUEST_PIXELS:,}.")
        arrays = [self._decoded(files[at]) if at in files else self._one(each) for at, each in enumerate(images)]
        return [(array,) for array in arrays], several

    def row_of_file(self, data: bytes, media_type: str) -> Row:
        """Read an image file in one of FORMATS; the media type is ignored."""
        return (self._decoded(_opened(data)),)

    @property
    def _shape(self) -> tuple[int, ...]:
        return self.description.inputs[0].shape

    def _several(self, value: Any, plural: bool) -> bool:
        if not isinstance(value, list):
            return plural and isinstance(value, dict)  # not a list of images either, which the refusal names
        if not value:
            return plural
        if isinstance(value[0], str):
            return True
        deep, rank = depth(value), len(self._shape)
        if rank == 2 and deep == 3:  # several, or one with its channel: [H, W, 1], or [1, H, W] under a singular name
            return len(value[0][0]) != 1 and (plural or len(value) != 1)
        return deep > rank

    def _one(self, image: Any) -> np.ndarray:
        try:
            numbers = np.asarray(image)
        except (ValueError, OverflowError):
            numbers = np.empty(0, object)  # rows of different lengths
        if numbers.dtype.kind not in "iuf":
            raise BadInputError(f"An image is {self._size()} of numbers.")
        if numbers.shape != self._shape:
            numbers = self._channel_last(numbers)
        low, high = numbers.min(), numbers.max()
        if not (low >= 0 and high <= 255):  # NaN is neither
            raise BadInputError("An image's numbers are from 0 to 255, or from 0 to 1.")
        if high <= 1:
            numbers = numbers * 255
        bytes_: np.ndarray = np.rint(numbers).astype(np.uint8)
        return bytes_

    def _channel_last(self, numbers: np.ndarray) -> np.ndarray:
        """Move the channel to where rows have it: [1, H, W] and [H, W, 1] are [H, W]; [3, H, W] is [H, W, 3]."""
        if len(self._shape) == 2 and numbers.ndim == 3 and 1 in (numbers.shape[0], numbers.shape[2]):
            numbers = numbers[0] if numbers.shape[0] == 1 else numbers[:, :, 0]
        elif len(self._shape) == 3 and numbers.ndim == 3 and numbers.shape[0] == 3:
            numbers = numbers.transpose(1, 2, 0)
        if numbers.shape != self._shape:
            sent = "×".join(map(str, numbers.shape)) or "one number"
            raise BadInputError(f"An image is {self._size()} of numbers, not {sent}.")
        return numbers

    def _size(self) -> str:
        return "×".join(map(str, self._shape))

    def _decoded(self, image: Image.Image) -> np.ndarray:
        height, width = self._shape[:2]
        with _readable():
            image.load()
        image = _flattened(image).convert("RGB" if len(self._shape) == 3 else "L")
        if self.box is None:
            if image.size != (width, height):
                image = image.resize((width, height), Image.Resampling.LANCZOS)
            return np.asarray(image)
        figure = np.asarray(image)
        if np.median(np.concatenate((figure[0], figure[-1], figure[:, 0], figure[:, -1]))) > 127:
            figure = 255 - figure
        return figure if figure.shape == (height, width) else placed(figure, height, width, self.box)


def placed(figure_HW: np.ndarray, height: int, width: int, box: int) -> np.ndarray:
    """Cut out a drawing, scale its longer side to ``box`` (MNIST: 20), centre its mass: yann.lecun.com/exdb/mnist."""
    ink_HW = figure_HW > INK
    rows, columns = np.flatnonzero(ink_HW.any(1)), np.flatnonzero(ink_HW.any(0))
    out = np.zeros((height, width), np.uint8)
    if not len(rows):
        return out
    cut = figure_HW[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    scale = box / max(cut.shape)
    size = (max(1, round(cut.shape[1] * scale)), max(1, round(cut.shape[0] * scale)))
    resampling = Image.Resampling.BOX if scale < 1 else Image.Resampling.BILINEAR
    small = np.asarray(Image.fromarray(cut).resize(size, resampling))
    total = float(small.sum()) or 1.0
    middle_row = float((small.sum(1) * np.arange(small.shape[0])).sum()) / total
    middle_column = float((small.sum(0) * np.arange(small.shape[1])).sum()) / total
    top = min(max(0, round(height / 2 - 0.5 - middle_row)), height - small.shape[0])
    left = min(max(0, round(width / 2 - 0.5 - middle_column)), width - small.shape[1])
    out[top : top + small.shape[0], left : left + small.shape[1]] = small
    return out


def _opened(data: bytes) -> Image.Image:
    """Open the image's head alone. Raises BadInputError: no image, several frames; TooMuchError: above MOST_PIXELS."""
    with _readable(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the size is checked below
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        width, height = image.size
        if width * height > MOST_PIXELS:
            raise TooMuchError(f"The image is too large: {width}×{height} pixels, at most {MOST_PIXELS:,} are taken.")
        if getattr(image, "is_animated", False):  # n_frames would look through all of them
            raise BadInputError("The image is animated: send one frame.")
    return image


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """Turn Pillow's errors for a damaged file, or one that is not an image, into BadInputError."""
    try:
        yield
    except BadInputError:
        raise
    except Image.DecompressionBombError as error:
        raise TooMuchError(f"The image is too large: at most {MOST_PIXELS:,} pixels are taken.") from error
    except (OSError, ValueError, SyntaxError, EOFError, IndexError, TypeError, OverflowError, MemoryError) as error:
        raise BadInputError(f"The file cannot be read as an image: {_KINDS} are, truncated files are not.") from error


def _flattened(image: Image.Image) -> Image.Image:
    """Convert 16 bits a pixel to 8; put a transparent image on white, or on black if its drawing is light."""
    if image.mode.startswith("I") or image.mode == "F":
        numbers = np.asarray(image, dtype=np.float64)
        low, high = float(numbers.min()), float(numbers.max())
        scale = 255 / (65535 if image.mode.startswith("I;16") or high > 255 else 255)
        return Image.fromarray(np.clip((numbers - min(low, 0.0)) * scale, 0, 255).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        pixels = np.asarray(image)
        seen = pixels[..., 3] > 127
        light = bool(seen.any()) and float(pixels[seen][:, :3].mean()) > 127 and not seen.all()
        ground = Image.new("RGBA", image.size, (0, 0, 0, 255) if light else (255, 255, 255, 255))
        return Image.alpha_composite(ground, image)
    return image


def _from_base64(text: str) -> bytes:
    """Decode a file's base64, bare or as a data: URL."""
    if text.startswith("data:"):
        text = text.partition(",")[2]
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadInputError("The image is a text that is not base64 of an image file.") from error
