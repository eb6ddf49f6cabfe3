"""Images out of requests: numbers, files, and what is no image."""

import base64
import io
import pickle
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from seatrial.serve.errors import BadInputError
from seatrial.serve.models.image_reader import ImageReader, placed
from seatrial.serve.served_model import Description, TensorSpec


def reader(shape=(28, 28), box=20):
    spec = (TensorSpec("image", "UINT8", shape),)
    return ImageReader(
        Description("m", "image", spec, (TensorSpec("probabilities", "FP32", (3,)),), ("a", "b", "c")), box
    )


def file_of(image, kind="PNG", **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def figure(size=(28, 28), ground=0, ink=255):
    """A bar that stands in the middle."""
    pixels = np.full(size, ground, np.uint8)
    pixels[size[0] // 4 : size[0] * 3 // 4, size[1] * 3 // 8 : size[1] * 5 // 8] = ink
    return pixels


def test_numbers_up_to_1_and_up_to_255_are_the_same_image():
    pixels = figure()
    whole, parts = pixels.tolist(), (pixels / 255).tolist()
    for body in ({"input": whole}, {"image": whole}, {"input": parts}, whole, [whole], {"input": [whole]}):
        (row,) = reader().rows(body)
        assert row[0].dtype == np.uint8
        assert (row[0] == pixels).all()
    assert len(reader().rows({"inputs": [whole, parts]})) == 2
    assert len(reader().rows([whole, whole, whole])) == 3


def test_colours_come_with_the_channel_last_or_first():
    pixels = np.arange(4 * 4 * 3, dtype=np.uint8).reshape(4, 4, 3)
    for body in (pixels.tolist(), pixels.transpose(2, 0, 1).tolist()):
        (row,) = reader((4, 4, 3)).rows({"input": body})
        assert (row[0] == pixels).all()


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"input": None},
        {"input": 5},
        {"input": []},
        {"input": [[1, 2], [3]]},
        {"input": [["a"] * 28] * 28},
        {"input": [[True] * 28] * 28},
        {"input": [[float("nan")] * 28] * 28},
        {"input": [[-1] * 28] * 28},
        {"input": [[256] * 28] * 28},
        {"input": [[10**400] * 28] * 28},
        {"input": [[0] * 27] * 28},
        {"input": "no base64"},
        {"input": base64.b64encode(b"no image").decode()},
        {"inputs": []},
        {"inputs": {"a": 1}},
        {"inputs": [[[0] * 28] * 28] * 1025},
        5,
        None,
        "text",
        [],
        [[[[[[[]]]]]]],
    ],
    ids=lambda body: repr(body)[:30],
)
def test_what_is_no_image_is_one_sentence(body):
    with pytest.raises(BadInputError) as caught:
        reader().rows(body)
    said = str(caught.value)
    assert said.endswith(".")
    assert not said[0].islower()
    assert len(said) < 200


def test_files_of_every_mode_are_the_same_digit():
    pixels = figure()
    alpha = np.dstack([np.full((28, 28, 3), 255, np.uint8), pixels])  # white ink on nothing
    dark = np.dstack([np.zeros((28, 28, 3), np.uint8), pixels])  # black ink on nothing, as a canvas gives it
    files = {
        "grey": file_of(Image.fromarray(pixels)),
        "black on white": file_of(Image.fromarray(255 - pixels)),
        "colours": file_of(Image.fromarray(pixels).convert("RGB")),
        "palette": file_of(Image.fromarray(pixels).convert("P")),
        "one bit": file_of(Image.fromarray(pixels).convert("1")),
        "16 bits": file_of(Image.fromarray(pixels.astype(np.uint16) * 257)),
        "white on nothing": file_of(Image.fromarray(alpha, "RGBA")),
        "black on nothing": file_of(Image.fromarray(dark, "RGBA")),
        "bmp": file_of(Image.fromarray(pixels), "BMP"),
        "gif": file_of(Image.fromarray(pixels), "GIF"),
        "jpeg": file_of(Image.fromarray(pixels), "JPEG", quality=95),
    }
    for kind, data in files.items():
        row = reader().row_of_file(data, "application/octet-stream")[0]
        assert row.shape == (28, 28), kind
        assert np.abs(row.astype(int) - pixels).max() < 40, kind


def test_a_drawing_of_another_size_is_cut_out_and_placed_as_mnists_digits_are():
    wide = np.zeros((300, 500), np.uint8)
    wide[20:120, 30:60] = 255  # in a corner
    row = reader().row_of_file(file_of(Image.fromarray(255 - wide)), "image/png")[0]
    rows, columns = np.flatnonzero((row > 32).any(1)), np.flatnonzero((row > 32).any(0))
    assert rows[-1] - rows[0] + 1 == 20
    assert abs((rows[0] + rows[-1]) / 2 - 13.5) <= 1
    assert abs((columns[0] + columns[-1]) / 2 - 13.5) <= 1


def test_an_empty_drawing_and_a_single_pixel_are_black_or_a_dot():
    assert not placed(np.zeros((50, 50), np.uint8), 28, 28, 20).any()
    assert reader().row_of_file(file_of(Image.new("L", (1, 1), 0)), "")[0].shape == (28, 28)
    assert reader().row_of_file(file_of(Image.new("L", (1, 5000), 200)), "")[0].shape == (28, 28)


def _claims(width, height):
    """A PNG of a few bytes that says how large it is, and holds nothing."""
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "cannot be read"),
        (b"GIF89a", "cannot be read"),
        (b"\xff\xd8\xff" + bytes(100), "cannot be read"),
        (file_of(Image.fromarray(figure((200, 200))))[:-60], "cannot be read"),
        (file_of(Image.fromarray(figure((200, 200))))[:40], "cannot be read"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "cannot be read"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "cannot be read"),
        (_claims(50_000, 50_000), "too large"),
        (_claims(4097, 4096), "too large"),
        (_claims(28, 28), "cannot be read"),
        (
            file_of(
                Image.new("L", (9, 9), 0),
                "GIF",
                save_all=True,
                append_images=[Image.new("L", (9, 9), n) for n in (90, 200)],
            ),
            "animated",
        ),
    ],
    ids=["empty", "gif head", "jpeg head", "cut", "cut early", "svg", "eps", "bomb", "large", "no data", "animated"],
)
def test_odd_files_are_one_sentence(data, said):
    with pytest.raises(BadInputError, match=said):
        reader().row_of_file(data, "image/png")


def test_answers_name_the_likeliest_class():
    answer = reader().answer((np.array([0.25, 0.7, 0.05], np.float32),))
    assert answer == {"label": "b", "probability": 0.7, "probabilities": {"a": 0.25, "b": 0.7, "c": 0.05}}


def test_a_reader_travels_and_imports_no_torch():
    code = "import sys, pickle; pickle.load(sys.stdin.buffer); print(*({'torch', 'transformers'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(reader()), capture_output=True, check=True)
    assert not done.stdout.split()
