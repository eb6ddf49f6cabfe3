"""Texts of requests to token numbers, in front processes: the tokenizers package alone, no torch, no transformers.

Shapes: a row is int32 [L], its L real tokens: nothing is padded here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from seatrial.serve.errors import BadInputError, ServeError
from seatrial.serve.models.classes import class_answer
from seatrial.serve.served_model import Answer, Description, Row

#: Texts in one request at most.
MOST_TEXTS = 1024
#: Characters of a text that are tokenised: many times as many as the tokens that the model reads.
MOST_CHARACTERS = 20_000
HOW = 'send JSON {"text": "…"}'


@dataclass
class TextReader:
    """Texts as the model's own tokenizer cuts them, kept to ``longest`` tokens.

    Attributes:
        tokenizer: the text of tokenizer.json.
    """

    description: Description
    tokenizer: str
    longest: int
    _opened: Any = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}  # each process makes its own

    def rows(self, body: Any) -> list[Row]:
        """Of ``{"text": one}``, ``{"texts": [several]}``, a bare text or a list of them."""
        if isinstance(body, dict):
            if "text" in body:
                body = body["text"]
            elif "texts" in body:
                body = body["texts"]
            else:
                raise BadInputError(f"the JSON object has neither text nor texts: {HOW}")
        if isinstance(body, str):
            return [self._row(body)]
        if not isinstance(body, list) or not all(isinstance(text, str) for text in body):
            raise BadInputError(f"the body is no text: {HOW}")
        if not body or len(body) > MOST_TEXTS:
            raise BadInputError(f"a request holds 1 to {MOST_TEXTS} texts, not {len(body)}")
        return [self._row(text) for text in body]

    def row_of_file(self, data: bytes, media_type: str) -> Row:
        """Of plain text in UTF-8."""
        try:
            return self._row(data.decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            raise BadInputError("the file is no UTF-8 text") from error

    def answer(self, answer: Answer) -> dict[str, Any]:
        """The likeliest class, its probability, and all probabilities."""
        return class_answer(self.description.labels, answer[0])

    def _row(self, text: str) -> Row:
        text = text[:MOST_CHARACTERS]
        if not text.strip():
            raise BadInputError("the text is empty")
        if self._opened is None:
            self._opened = open_tokenizer(self.tokenizer, self.longest)
        try:
            encoded = self._opened.encode(text)
        except (TypeError, UnicodeEncodeError):  # half of a surrogate pair, which JSON can hold and UTF-8 cannot
            encoded = self._opened.encode(text.encode("utf-8", "replace").decode())
        return (np.array(encoded.ids, np.int32),)


def open_tokenizer(text: str, longest: int) -> Any:
    """Of tokenizer.json's text; cuts to ``longest`` tokens. Raises ServeError."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ServeError(
            "texts are cut by the package tokenizers, which is missing", "pip install tokenizers"
        ) from error
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # its errors are bare Exceptions
        raise ServeError("tokenizer.json cannot be read", "train or export the model again") from error
    tokenizer.no_padding()
    tokenizer.enable_truncation(longest)
    return tokenizer
