"""Steps of a script that has no optimizer: it changes its parameters itself behind each backward pass."""

import functools
from threading import get_ident
from typing import Any, Callable

from .recorder import Recorder

#: So many backward passes in a row without any optimizer's step: gradients are gathered over fewer of them.
_PASSES = 32


class HandSteps:
    """Counts backward passes as steps, once there were many and nobody has stepped. It goes at the first step that
    an optimizer makes.

    Args:
        compiling: whether torch.compile is looking (optimizer_steps.compiling_check).
    """

    def __init__(self, torch: Any, recorder: Recorder, compiling: Callable[[], bool]) -> None:
        self._torch, self._recorder, self._compiling = torch, recorder, compiling
        self._original = self._ours = torch.autograd.backward
        self._passes = 0
        self._on, self._counts, self._inside = True, False, False

    def place(self) -> None:
        original, recorder, compiling = self._original, self._recorder, self._compiling

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if not self._on or self._inside or compiling() or get_ident() != recorder.thread:
                return original(*args, **kwargs)
            self._inside = True
            try:
                result = original(*args, **kwargs)
            finally:
                self._inside = False
            self._passed(args)
            return result

        self._ours = self._torch.autograd.backward = backward

    def optimizer_stepped(self, optimizer: Any) -> None:
        """There is an optimizer after all."""
        if not self._on:
            return
        self._on = False
        if self._counts:
            self._recorder.bounded_by(optimizer)
        if self._torch.autograd.backward is self._ours:
            self._torch.autograd.backward = self._original

    def _passed(self, args: Any) -> None:
        recorder = self._recorder
        try:
            self._passes += 1
            if self._passes <= _PASSES:
                return
            if not self._counts:
                if recorder.steps:  # another framework's steps are counted
                    self._on = False
                    return
                self._counts = True
                recorder.facts.update(optimizer="none, a step is a backward pass", **_of_loss(args))
            recorder.stepped(self)
        except Exception as error:  # noqa: BLE001  never the script's trouble
            recorder.stop(error)


def _of_loss(args: Any) -> Any:
    loss = args[0] if args else None
    loss = loss[0] if isinstance(loss, (list, tuple)) and loss else loss
    device = getattr(loss, "device", None)
    return {"device": device.type} if device is not None else {}
