"""Errors of serving: of one request, of the model, and of the GPU."""

from __future__ import annotations

from seatrial.train.errors import TrainError


class BadInputError(ValueError):
    """A request that cannot be answered as it is; the client gets the text."""

    status = 400


class MediaTypeError(BadInputError):
    """The body is of a kind that is not read."""

    status = 415


class TooMuchError(BadInputError):
    """The request holds more than is read at once."""

    status = 413


class HeavyError(BadInputError):
    """The request takes too long to read in a front's loop; never an answer to a client."""


class ServeError(TrainError):
    """The model cannot be served; ends the program with 1."""


class DeviceLostError(RuntimeError):
    """The GPU no longer computes: readiness goes, requests get 503, and the program ends."""
