"""Check that a CUDA graph of a step would repeat the step.

A graph repeats kernels. What the step's Python does besides (counts, draws, puts a new tensor in an old one's place) is
done once, when it is captured, and then never again: the training would silently go on with other numbers.
So a step is looked at before it is captured, and one that does such a thing is run eagerly.
"""

from __future__ import annotations

import random
import traceback
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seatrial.train.optim import torch_optimizers
from seatrial.train.step import Step
from seatrial.train.traced_code import PLAIN


class _Same:
    """Equal to the same object only; keeps it, so that no other gets its place in memory."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value

    __hash__ = None  # type: ignore[assignment]


class NotCapturable(RuntimeError):
    """The reason why a step is run eagerly."""


def host_state(step: Step) -> dict[str, Any]:
    """Return all that a step could change without the device: name → value, or the identity of a tensor."""
    state: dict[str, Any] = {}
    for path, module in step.model.named_modules():
        owner = f"{path or 'the model'} ({type(module).__name__})"
        for name, value in vars(module).items():
            _note(state, f"{owner}'s {name}", value)
        for name, buffer in module._buffers.items():
            state[f"{owner}'s buffer {name}"] = _Same(buffer)
    _note_function(state, "the loss", step.loss)
    _note_function(state, "the transform", getattr(step.source, "_transform", None))
    for number, slots in step.optimizer.state_dict()["state"].items():
        for name, value in slots.items():
            _note(state, f"the optimizer's {name} of parameter {number}", value)
    for number, group in enumerate(step.optimizer.param_groups):
        for name, value in group.items():
            if name != "params":
                _note(state, f"the optimizer's {name} of group {number}", value)
    for name, value in vars(step.optimizer).items():
        if name not in ("param_groups", "state"):
            _note(state, f"the optimizer's {name}", value)
    return state


def host_draws(device: torch.device) -> tuple[Any, ...]:
    """Return the state of the host's generators in types that can be compared."""
    _, keys, *rest = np.random.get_state(legacy=True)
    own = torch.get_rng_state().numpy().tobytes() if device.type == "cuda" else b""  # on a CPU it is the step's own
    return random.getstate(), np.asarray(keys).tobytes(), tuple(rest), own


def refuse(step: Step, before: dict[str, Any], draws: tuple[Any, ...]) -> None:
    """Compare with what was noted before a step. Raises NotCapturable with what it did on the host."""
    if draws != host_draws(step.device):
        raise NotCapturable("it draws random numbers on the host: draw them with torch, device=...")
    after = host_state(step)
    for name in {**before, **after}:
        if before.get(name, "nothing") != after.get(name, "nothing"):
            instead = "write into it: copy_()" if "buffer" in name else "make it a buffer and change it in place"
            raise NotCapturable(f"it changes {name} on the host: {instead}")


def refuse_beforehand(step: Step) -> None:
    """Raise NotCapturable for reasons that are known without a step."""
    if reason := getattr(step.source, "uncaptured", None):
        raise NotCapturable(reason)
    if others := sorted({name for options in step.host_options for name in options if name != "lr"}):
        raise NotCapturable(f"the schedule changes {' and '.join(others)} too: cycle_momentum=False leaves them")


def refuse_optimizer(step: Step) -> None:
    """Raise NotCapturable if the optimizer's state before its first step is not known."""
    saved = step.optimizer.state_dict()
    groups = {key: group for group in saved["param_groups"] for key in group["params"]}
    for key, slots in saved["state"].items():
        for name, value in slots.items():
            if isinstance(value, Tensor) and torch_optimizers.first_value(name, groups[key]) is None:
                kind = type(step.optimizer).__name__
                raise NotCapturable(
                    f"the first value of {kind}'s state {name} is not known: warming up would change it"
                )


def waiting_line(step: Step, shape: Any) -> str | None:
    """Return the user's line that waits for the GPU, found by one more step; None if there is none."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        step.run_fixed(shape)
    except RuntimeError as error:
        return place_of(error)
    finally:
        torch.cuda.set_sync_debug_mode("default")
        step.reducer.clear()
    return None


def place_of(error: BaseException) -> str | None:
    """Return file and line of the innermost call in neither torch nor this library."""
    ours, theirs = Path(__file__).parent, Path(torch.__file__).parent
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not Path(frame.filename).is_relative_to(ours) and not Path(frame.filename).is_relative_to(theirs)
    ]
    called = [frame for frame in frames if frame.line and "runpy" not in frame.filename and "fit(" not in frame.line]
    return f"{Path(called[-1].filename).name} line {called[-1].lineno}: {called[-1].line}" if called else None


def forget_failed_capture(device: torch.device) -> None:
    """Set a new state in the generator of a failed capture: else it remains in capture mode (torch 2.11)."""
    generator = torch.cuda.default_generators[device.index or 0]
    if hasattr(generator, "graphsafe_set_state"):
        generator.graphsafe_set_state(torch.Generator(device).graphsafe_get_state())


def _note(state: dict[str, Any], name: str, value: Any) -> None:
    if isinstance(value, PLAIN):
        state[name] = value
    elif isinstance(value, Tensor):
        state[name] = _Same(value)
    elif isinstance(value, (list, tuple)) and len(value) <= 16:
        for number, item in enumerate(value):
            _note(state, f"{name}[{number}]", item)
        state[f"{name}'s length"] = len(value)
    elif isinstance(value, dict) and len(value) <= 16 and not name.endswith(("_modules", "_parameters", "_buffers")):
        for key, item in value.items():
            _note(state, f"{name}[{key!r}]", item)


def _note_function(state: dict[str, Any], name: str, function: Any) -> None:
    """Note the state that a function keeps between calls: in its object, its closure and its module."""
    if isinstance(function, MethodType):
        for key, value in vars(function.__self__).items() if hasattr(function.__self__, "__dict__") else ():
            _note(state, f"{name}'s {key}", value)
        function = function.__func__
    if not isinstance(function, FunctionType):
        return
    for key, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            _note(state, f"{name}'s variable {key}", cell.cell_contents)
        except ValueError:  # not assigned yet
            continue
    for key in function.__code__.co_names:
        if key in function.__globals__:
            _note(state, f"{name}'s global {key}", function.__globals__[key])
