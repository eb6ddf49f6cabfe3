"""Texts of requests to token numbers, in front processes: the tokenizers package alone, no torch, no transformers.

Shapes: a row is int32 [L], its L real tokens: nothing is padded here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from seatrial.serve.errors import BadInputError, ServeError
from seatrial.serve.models.bodies import inputs_of
from seatrial.serve.models.classes import class_answer
from seatrial.serve.served_model import Answer, Description, Row

#: Characters of a text that are tokenised: many times as many as the tokens that the model reads.
MOST_CHARACTERS = 20_000


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
        """Of ``{"input": one}``, ``{"inputs": [several]}``, a bare text or a list of them."""
        return [self._row(text) for text in self._inputs(body)[0]]

    def many(self, body: Any) -> bool:
        """A list, under any name."""
        return self._inputs(body)[1]

    def row_of_file(self, data: bytes, media_type: str) -> Row:
        """Of plain text in UTF-8."""
        try:
            return self._row(data.decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            raise BadInputError("The file is no UTF-8 text.") from error

    def answer(self, answer: Answer) -> dict[str, Any]:
        """The likeliest class, its probability, and all probabilities."""
        return class_answer(self.description.labels, answer[0])

    @staticmethod
    def _inputs(body: Any) -> tuple[list[Any], bool]:
        if isinstance(body, str):
            return [body], False
        return inputs_of(body, "text", lambda value, _: isinstance(value, list))

    def _row(self, text: Any) -> Row:
        if not isinstance(text, str):
            raise BadInputError("A text has to be a string.")
        text = text[:MOST_CHARACTERS]
        if not text.strip():
            raise BadInputError("The text is empty.")
        if self._opened is None:
            self._opened = open_tokenizer(self.tokenizer, self.longest)
        try:
            encoded = self._opened.encode(text)
        except (TypeError, UnicodeEncodeError):  # half of a surrogate pair, which JSON can hold and UTF-8 cannot
            encoded = self._opened.encode(text.encode("utf-8", "replace").decode())
        if not encoded.ids:  # control characters, of a tokenizer that adds nothing of its own
            raise BadInputError("The text has no words.")
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
