"""The network that weights belong to, made by the user's own code: ``module:factory``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from seatrial.train.errors import InputError, type_and_line


def make_network(factory: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """Return the network and inputs to compare on, {} if the factory gave none.

    The factory takes nothing and returns a network, or a network and its inputs: a tensor, several, or a mapping.

    Raises InputError: it is not there, fails, or returns something else.
    """
    module_name, colon, name = factory.partition(":")
    if not (module_name and colon and name):
        raise InputError(f"--model {factory} is not module:factory", fix="--model net:make_model")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a stranger's code runs
        raise InputError(
            f"cannot import {module_name}: {type_and_line(error)}", fix=f"python -c 'import {module_name}'"
        ) from error
    if not callable(made := getattr(module, name, None)):
        raise InputError(f"{module_name} has no function {name}", fix=f"--model {module_name}:NAME")
    try:
        result = made()
    except Exception as error:  # a stranger's code runs
        raise InputError(
            f"{factory}() failed: {type_and_line(error)}", fix=f"python -c 'import {module_name} as m; m.{name}()'"
        ) from error
    network, inputs = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
    if not isinstance(network, nn.Module):
        raise InputError(
            f"{factory}() returned a {type(network).__name__}, not a torch.nn.Module", fix="return the network"
        )
    if any(is_lazy(each) for each in (*network.parameters(), *network.buffers())):
        raise InputError(
            f"{factory}() returned a network with lazy layers, whose sizes nobody has set",
            fix="call it once on an example before returning it",
        )
    return network, _named(inputs)


def _named(inputs: Any) -> dict[str, Tensor]:
    if isinstance(inputs, Tensor):
        inputs = (inputs,)
    if not isinstance(inputs, Mapping):
        names = ["input"] if len(inputs) == 1 else [f"input_{number}" for number in range(len(inputs))]
        inputs = dict(zip(names, inputs, strict=True))
    if not all(isinstance(each, Tensor) and each.ndim and len(each) for each in inputs.values()):
        raise InputError(
            "the factory's inputs are not tensors with a batch in front", fix="return model, torch.zeros(4, 1, 28, 28)"
        )
    return {str(name): each.detach() for name, each in inputs.items()}
