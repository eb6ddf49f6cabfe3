"""One input and several are told apart by what the model takes, and odd inputs get one sentence."""

import base64
import io
import json

import numpy as np
import pytest
from PIL import Image

from seatrial.serve.errors import BadInputError, MediaTypeError
from seatrial.serve.http import predict
from seatrial.serve.models.image_reader import ImageReader
from seatrial.serve.models.tensor_reader import TensorReader
from seatrial.serve.models.user_reader import UserReader
from seatrial.serve.served_model import Description, TensorSpec


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
USER = UserReader(described("tensors", ("input", (-1,))))


def ask(reader, body):
    """(number of rows, whether the answer is a list), as a request over HTTP."""
    data = json.dumps(body).encode()
    request = predict.read(reader, b"application/json", data)
    return len(request.rows), request.many


def zeros(*shape):
    return np.zeros(shape).tolist()


def png():
    out = io.BytesIO()
    Image.new("L", (28, 28)).save(out, "PNG")
    return base64.b64encode(out.getvalue()).decode()


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
        *((USER, body, ONE) for body in ([], ["a"], [1, 2, 3], "a", None, {"a": 1}, {"input": [1, 2]})),
        (USER, {"inputs": [1, "a", []]}, THREE),
    ],
)  # fmt: skip
def test_the_rank_says_whether_it_is_one(reader, body, found):
    assert ask(reader, body) == found


ODD = [
    {"input": []}, {"inputs": []}, [], {"inputs": {}}, {"input": {}}, {"images": {}}, {"rows": 5}, {"inputs": None},
    {"input": "five"}, {"inputs": [["a"] * 3] * 3}, {"input": [1, "2", 3]}, {"inputs": [[1, 2], [1, [2]], []]},
    {"input": [[], []]}, {"input": [[[[]]]]}, {"input": [[[1]], 2]}, {"inputs": [[None] * 3]}, {"input": True},
    [[], [1]], {"inputs": [{}]}, {"input": [1], "inputs": [[1]]}, [{"x": 1}, 3], {"x": [1, 2, 3], "y": 1},
    {"inputs": [[[[1]]]] * 2},
    {"image": zeros(29, 28)}, zeros(29, 28), {"images": zeros(2, 28, 29)}, {"images": [zeros(28, 28), png()[:40]]},
    {"inputs": [zeros(28, 28), zeros(28, 27)]}, 5, "five", None, {}, {"input": 10**400},
]  # fmt: skip


@pytest.mark.parametrize("reader", [GREY, COLOUR, VECTOR, TWO], ids=["grey", "colour", "vector", "two"])
@pytest.mark.parametrize("body", ODD, ids=lambda body: repr(body)[:40])
def test_an_odd_input_gets_one_sentence(reader, body):
    with pytest.raises(BadInputError) as caught:
        ask(reader, body)
    said = str(caught.value)
    assert said.endswith(".") and not said[0].islower() and len(said) < 200


def test_a_wrong_size_is_named():
    for body in ({"images": zeros(29, 28)}, zeros(29, 28), {"images": zeros(3, 29, 28)}):
        with pytest.raises(BadInputError, match="28×28 of numbers, not 29×28"):
            ask(GREY, body)


@pytest.mark.parametrize("kind", [b"text/plain", b"image/png", b"application/x-www-form-urlencoded"])
def test_a_model_of_numbers_reads_json_alone(kind):
    with pytest.raises(MediaTypeError, match="JSON") as told:
        predict.read(VECTOR, kind, b"x=1")
    assert told.value.status == 415 and BadInputError("").status == 400
