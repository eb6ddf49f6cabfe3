"""Requests to rows: one input or several, images of every kind, texts; odd inputs get one sentence."""

import base64
import io
import json
import pickle
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from seatrial.serve.errors import BadInputError, MediaTypeError, ServeError
from seatrial.serve.http.protocol import read
from seatrial.serve.readers.images import ImageReader, placed
from seatrial.serve.readers.others import TensorReader, TextReader, open_tokenizer
from seatrial.serve.served_model import Description
from seatrial.train.saving.model_card import TensorSpec


def described(kind, *inputs):
    specs = tuple(TensorSpec(name, "FP32" if kind == "tensors" else "UINT8", shape) for name, shape in inputs)
    return Description("m", kind, specs, (TensorSpec("out", "FP32", (2,)),), ("a", "b"))


GREY = ImageReader(described("image", ("image", (28, 28))))
COLOUR = ImageReader(described("image", ("image", (8, 8, 3))))
VECTOR = TensorReader(described("tensors", ("x", (3,))))
NAMED = TensorReader(described("tensors", ("images", (2, 2))))
SCALAR = TensorReader(described("tensors", ("x", ())))
ANY = TensorReader(described("tensors", ("x", (-1, 2))))
TWO = TensorReader(described("tensors", ("input", (2,)), ("mask", (2,))))


def send(reader, body):
    """Return the number of rows, and if the answer is a list, as for a request over HTTP."""
    request = read(reader, False, b"application/json", json.dumps(body).encode())
    return len(request.rows), request.many


def zeros(*shape):
    return np.zeros(shape).tolist()


def file_of(image, kind="PNG", **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def png():
    return base64.b64encode(file_of(Image.new("L", (28, 28)))).decode()


ONE, LIST_OF_ONE, THREE = (1, False), (1, True), (3, True)
XY = {"input": [1, 2], "mask": [1, 1]}


@pytest.mark.parametrize(
    ("reader", "body", "found"),
    [
        *((GREY, body, ONE) for body in (zeros(28, 28), zeros(28, 28, 1), {"input": zeros(1, 28, 28)})),
        *((GREY, {name: zeros(28, 28)}, ONE) for name in ("input", "image", "inputs", "images")),
        *((GREY, {name: zeros(3, 28, 28)}, THREE) for name in ("input", "image", "inputs", "images")),
        (GREY, zeros(3, 28, 28), THREE),
        (GREY, zeros(1, 28, 28), LIST_OF_ONE),
        (GREY, {"images": zeros(1, 28, 28)}, LIST_OF_ONE),
        (GREY, {"images": zeros(3, 28, 28, 1)}, THREE),
        (GREY, {"images": zeros(3, 1, 28, 28)}, THREE),
        (GREY, {"image": png()}, ONE),
        (GREY, {"images": png()}, ONE),
        (GREY, {"images": [png()] * 3}, THREE),
        (GREY, [png()], LIST_OF_ONE),
        (COLOUR, zeros(8, 8, 3), ONE),
        (COLOUR, {"images": zeros(3, 8, 8)}, ONE),  # its channel first
        (COLOUR, {"images": zeros(3, 8, 8, 3)}, THREE),
        (COLOUR, zeros(3, 3, 8, 8), THREE),
        (VECTOR, {"inputs": {"x": [1, 2, 3]}}, ONE),
        *((VECTOR, body, ONE) for body in ([1, 2, 3], {"inputs": [1, 2, 3]}, {"x": [1, 2, 3]})),
        (VECTOR, {"input": zeros(3, 3)}, THREE),
        *((VECTOR, body, THREE) for body in (zeros(3, 3), {"x": zeros(3, 3)}, {"rows": zeros(3, 3)})),
        (VECTOR, [[1, 2, 3]], LIST_OF_ONE),
        (NAMED, {"images": zeros(2, 2)}, ONE),
        (NAMED, {"images": zeros(3, 2, 2)}, THREE),
        (SCALAR, {"input": 5}, ONE),
        (SCALAR, [1, 2, 3], THREE),
        (ANY, {"inputs": zeros(7, 2)}, ONE),
        (ANY, [zeros(7, 2), zeros(1, 2), zeros(2, 2)], THREE),
        *((TWO, body, ONE) for body in (XY, {"inputs": XY}, {"row": XY})),
        (TWO, {"inputs": [XY] * 3}, THREE),
    ],
)  # fmt: skip
def test_rank_of_the_input_decides_if_it_is_one(reader, body, found):
    assert send(reader, body) == found


ODD = [
    {"input": []}, {"inputs": []}, [], {"inputs": {}}, {"input": {}}, {"images": {}}, {"rows": 5}, {"inputs": None},
    {"input": "five"}, {"inputs": [["a"] * 3] * 3}, {"input": [1, "2", 3]}, {"inputs": [[1, 2], [1, [2]], []]},
    {"input": [[], []]}, {"input": [[[[]]]]}, {"input": [[[1]], 2]}, {"inputs": [[None] * 3]}, {"input": True},
    [[], [1]], {"inputs": [{}]}, {"input": [1], "inputs": [[1]]}, [{"x": 1}, 3], {"x": [1, 2, 3], "y": 1},
    {"inputs": [[[[1]]]] * 2},
    {"image": zeros(29, 28)}, zeros(29, 28), {"images": zeros(2, 28, 29)}, {"images": [zeros(28, 28), png()[:40]]},
    {"inputs": [zeros(28, 28), zeros(28, 27)]}, 5, "five", None, {}, {"input": 10**400},
    *({"input": [[number] * 28] * 28} for number in (True, -1, 256, 10**400)), {"input": "no base64"},
    {"inputs": [[[0] * 28] * 28] * 1025}, [[[[[[[]]]]]]],
]  # fmt: skip


@pytest.mark.parametrize("reader", [GREY, COLOUR, VECTOR, TWO], ids=["grey", "colour", "vector", "two"])
@pytest.mark.parametrize("body", ODD, ids=lambda body: repr(body)[:40])
def test_odd_input_gets_one_sentence(reader, body):
    with pytest.raises(BadInputError) as caught:
        send(reader, body)
    sentence = str(caught.value)
    assert sentence.endswith(".") and not sentence[0].islower() and len(sentence) < 200


def test_wrong_size_is_named():
    for body in ({"images": zeros(29, 28)}, zeros(29, 28), {"images": zeros(3, 29, 28)}):
        with pytest.raises(BadInputError, match="28×28 of numbers, not 29×28"):
            send(GREY, body)


@pytest.mark.parametrize("kind", [b"text/plain", b"image/png", b"application/x-www-form-urlencoded"])
def test_model_of_numbers_reads_json_alone(kind):
    with pytest.raises(MediaTypeError, match="JSON") as caught:
        read(VECTOR, False, kind, b"x=1")
    assert caught.value.status == 415 and BadInputError("").status == 400


DRAWINGS = ImageReader(described("image", ("image", (28, 28))), box=20)


def figure(size=(28, 28)):
    """A bar that stands in the middle."""
    pixels = np.zeros(size, np.uint8)
    pixels[size[0] // 4 : size[0] * 3 // 4, size[1] * 3 // 8 : size[1] * 5 // 8] = 255
    return pixels


def test_numbers_up_to_1_or_255_and_channels_last_or_first_are_the_same_image():
    pixels, colours = figure(), np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)
    for reader, given, body in (
        (DRAWINGS, pixels, pixels),
        (DRAWINGS, pixels, pixels / 255),
        (COLOUR, colours, colours),
        (COLOUR, colours, colours.transpose(2, 0, 1)),
    ):
        ((row,), _) = reader.rows({"input": body.tolist()})
        assert row[0].dtype == np.uint8 and (row[0] == given).all()


def test_files_of_every_mode_are_the_same_digit():
    pixels = figure()
    image = Image.fromarray(pixels)
    alpha = np.dstack([np.full((28, 28, 3), 255, np.uint8), pixels])  # white ink, else transparent
    dark = np.dstack([np.zeros((28, 28, 3), np.uint8), pixels])  # black ink, else transparent, as a canvas gives it
    files = {
        "grey": file_of(image),
        "black on white": file_of(Image.fromarray(255 - pixels)),
        "colours": file_of(image.convert("RGB")),
        "palette": file_of(image.convert("P")),
        "one bit": file_of(image.convert("1")),
        "16 bits": file_of(Image.fromarray(pixels.astype(np.uint16) * 257)),
        "white on nothing": file_of(Image.fromarray(alpha, "RGBA")),
        "black on nothing": file_of(Image.fromarray(dark, "RGBA")),
        "bmp": file_of(image, "BMP"),
        "gif": file_of(image, "GIF"),
        "jpeg": file_of(image, "JPEG", quality=95),
    }
    for kind, data in files.items():
        row = DRAWINGS.row_of_file(data, "application/octet-stream")[0]
        assert row.shape == (28, 28), kind
        assert np.abs(row.astype(int) - pixels).max() < 40, kind


def test_drawing_of_another_size_is_placed_as_mnists_digits_are():
    wide = np.zeros((300, 500), np.uint8)
    wide[20:120, 30:60] = 255  # in a corner
    row = DRAWINGS.row_of_file(file_of(Image.fromarray(255 - wide)), "image/png")[0]
    rows, columns = np.flatnonzero((row > 32).any(1)), np.flatnonzero((row > 32).any(0))
    assert rows[-1] - rows[0] + 1 == 20
    assert abs((rows[0] + rows[-1]) / 2 - 13.5) <= 1
    assert abs((columns[0] + columns[-1]) / 2 - 13.5) <= 1
    assert not placed(np.zeros((50, 50), np.uint8), 28, 28, 20).any()
    for size, grey in (((1, 1), 0), ((1, 5000), 200)):
        assert DRAWINGS.row_of_file(file_of(Image.new("L", size, grey)), "")[0].shape == (28, 28)


def _claims(width, height):
    """A PNG of a few bytes that claims a size, and holds nothing."""
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


LARGE = file_of(Image.fromarray(figure((200, 200))))
FRAMES = [Image.new("L", (9, 9), grey) for grey in (0, 90, 200)]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        *((data, "cannot be read") for data in (b"", b"GIF89a", b"\xff\xd8\xff" + bytes(100), LARGE[:-60], LARGE[:40])),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "cannot be read"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "cannot be read"),
        (_claims(28, 28), "cannot be read"),
        (_claims(50_000, 50_000), "too large"),
        (_claims(4097, 4096), "too large"),
        (file_of(FRAMES[0], "GIF", save_all=True, append_images=FRAMES[1:]), "animated"),
    ],
    ids=lambda value: value[:12].hex() if isinstance(value, bytes) else value,
)
def test_odd_file_is_one_sentence(data, reason):
    with pytest.raises(BadInputError, match=reason):
        DRAWINGS.row_of_file(data, "image/png")


def test_answer_names_the_likeliest_class():
    answer = DRAWINGS.answer((np.array([0.25, 0.75], np.float32),))
    assert answer == {"label": "b", "probability": 0.75, "probabilities": {"a": 0.25, "b": 0.75}}


@pytest.fixture(scope="module")
def texts():
    tokenizers = pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
    made = tokenizers.BertWordPieceTokenizer()
    made.train_from_iterator(["free prize call now"] * 20, vocab_size=100, show_progress=False)
    spec = TensorSpec("text", "BYTES", (1,))
    description = Description("spam", "text", (spec,), (TensorSpec("probabilities", "FP32", (2,)),), ("ham", "spam"))
    return TextReader(description, made._tokenizer.to_str(), 16)


def test_every_form_of_a_text_is_the_same_row(texts):
    text = "Free prize"
    rows = [texts.rows(body)[0][0][0] for body in ({"input": text}, {"text": text}, text, [text], {"inputs": [text]})]
    rows += [texts.row_of_file(text.encode(), "text/plain")[0], pickle.loads(pickle.dumps(texts)).rows(text)[0][0][0]]
    assert rows[0].dtype == np.int32
    assert all((row == rows[0]).all() for row in rows)
    assert len(texts.rows({"texts": ["a", "b"]})[0]) == 2


@pytest.mark.parametrize(
    "text",
    ["free " * 200_000, "x" * 1_000_000, "🎉👩‍👩‍👧‍👦", "\ud83d", "سلام", "a\u0300" * 500],
    ids=["long", "one word", "emoji", "half a pair", "another script", "combining"],
)
def test_any_text_is_at_most_the_longest(texts, text):
    ((row,), _) = texts.rows({"input": text})
    assert 1 <= len(row[0]) <= 16


@pytest.mark.parametrize(
    "body", ["", "  \n\t ", "\x00\x01", {"input": ""}, {"input": 5}, {"inputs": [None]}, {}, 5, [], {"inputs": []}]
)
def test_odd_text_is_one_sentence(texts, body):
    with pytest.raises(BadInputError, match=r"\.$"):
        texts.rows(body)
    with pytest.raises(BadInputError, match="UTF-8"):
        texts.row_of_file(b"\xff\xfe\x00", "text/plain")


def test_damaged_tokenizer_is_one_sentence(texts):
    for text in ("", "{}", texts.tokenizer[:500], json.dumps({"model": 5})):
        with pytest.raises(ServeError, match="tokenizer"):
            open_tokenizer(text, 16)
