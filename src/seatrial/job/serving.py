"""Serving: what a run that answers requests is asked for; part of its Job."""

from __future__ import annotations

from typing import Literal

from seatrial.job.keys import Table

#: Where the server listens in a container of its own network; published under the port that was asked for.
CONTAINER_PORT = 8000

#: The variable with the token that requests must carry, where one is asked for; handed over as a secret.
TOKEN = "SEATRIAL_SERVE_TOKEN"

#: Methods of a class of the user's. Source: serve/runners/user_class.py; a test compares.
CALLED = ("load", "predict", "example")


class Weights(Table):
    """A file that the model is loaded from.

    Attributes:
        path: below the models folder, or the project for a class of the user's.
        sha256: in hex, read on the host before the server started.
    """

    path: str
    sha256: str
    bytes: int


class Serving(Table):
    """A model that is served.

    Attributes:
        kind: ``recipe``, ``file`` (.pt2, ONNX, safetensors) or ``code`` (a class of the user's).
        model: the recipe's name; the file, below the models folder; ``file.py:Class``, below the project.
        name: in addresses: /v2/models/NAME.
        address, port: of this machine.
        options: further ones of ``python -m seatrial.serve``, as it takes them.
        of_run: ID of the run that made the model, where that is known.
        typed: what follows ``seatrial serve`` to start it again.
    """

    kind: Literal["recipe", "file", "code"]
    model: str
    name: str
    address: str = "127.0.0.1"
    port: int = 8000
    options: tuple[str, ...] = ()
    weights: tuple[Weights, ...] = ()
    of_run: str | None = None
    typed: str = ""

    @property
    def file(self) -> str:
        """Of a class of the user's: the file that it is in."""
        return self.model.rpartition(":")[0]

    @property
    def calls(self) -> tuple[str, ...]:
        """Of a class of the user's: the class, which is made, and its methods that the server calls."""
        name = self.model.rpartition(":")[2]
        return (name, *(f"{name}.{method}" for method in CALLED)) if self.kind == "code" else ()

    @property
    def suffix(self) -> str:
        """Of a file: ``.onnx``."""
        return "." + self.model.rpartition(".")[2].lower() if self.kind == "file" else ""

    @property
    def url(self) -> str:
        """Where this machine reaches it."""
        everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}
        host = everywhere.get(self.address, self.address)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
