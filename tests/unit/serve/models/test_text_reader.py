"""Texts to token numbers."""

import json
import pickle

import numpy as np
import pytest

from seatrial.serve.errors import BadInputError, ServeError
from seatrial.serve.models.text_reader import TextReader, open_tokenizer
from seatrial.serve.served_model import Description, TensorSpec

tokenizers = pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")


@pytest.fixture(scope="module")
def reader():
    made = tokenizers.BertWordPieceTokenizer()
    made.train_from_iterator(["free prize call now"] * 20, vocab_size=100, show_progress=False)
    spec = TensorSpec("text", "BYTES", (1,))
    description = Description("spam", "text", (spec,), (TensorSpec("probabilities", "FP32", (2,)),), ("ham", "spam"))
    return TextReader(description, made._tokenizer.to_str(), 16)


def test_every_form_of_a_request_is_the_same_row(reader):
    text = "Free prize"
    rows = [reader.rows(body)[0][0] for body in ({"input": text}, {"text": text}, text, [text], {"inputs": [text]})]
    rows += [reader.row_of_file(text.encode(), "text/plain")[0], pickle.loads(pickle.dumps(reader)).rows(text)[0][0]]
    assert rows[0].dtype == np.int32
    assert all((row == rows[0]).all() for row in rows)
    assert len(reader.rows({"texts": ["a", "b"]})) == 2


ODD = {
    "long": "free " * 200_000,
    "one word": "x" * 1_000_000,
    "emoji": "🎉👩‍👩‍👧‍👦",
    "half a pair": "\ud83d",
    "another script": "سلام",
    "combining": "a\u0300" * 500,
}


@pytest.mark.parametrize("name", ODD)
def test_any_text_is_at_most_the_longest(reader, name):
    (row,) = reader.rows({"input": ODD[name]})
    assert 1 <= len(row[0]) <= 16


@pytest.mark.parametrize(
    "body", ["", "  \n\t ", "\x00\x01", {"input": ""}, {"input": 5}, {"inputs": [None]}, {}, 5, [], {"inputs": []}]
)
def test_what_is_no_text_is_one_sentence(reader, body):
    with pytest.raises(BadInputError, match=r"\.$"):
        reader.rows(body)


def test_a_file_that_is_no_utf_8(reader):
    with pytest.raises(BadInputError, match="UTF-8"):
        reader.row_of_file(b"\xff\xfe\x00", "text/plain")


def test_a_damaged_tokenizer_is_told(reader):
    for text in ("", "{}", reader.tokenizer[:500], json.dumps({"model": 5})):
        with pytest.raises(ServeError, match="tokenizer"):
            open_tokenizer(text, 16)
