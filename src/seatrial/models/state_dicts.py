"""Read the state dicts of a file that torch.save wrote, and match one to a network.

Checkpoints hold more than weights: arguments, numbers of NumPy, a whole pickled module. Nothing that the file names is
imported or called: for each object of a class that is not torch's own a stand-in is made, which keeps the object's
state; of a pickled module its tensors are taken. Weights may be saved under a wrapper's names.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seatrial.train.errors import ModelFileError

SAVE_AGAIN = "torch.save(model.state_dict(), PATH), and export that with --model module:factory"
#: Depth to which nested mappings are searched: Accelerate and DeepSpeed nest twice.
_DEEPEST = 4

#: Names that a pickle may use and gets: they make tensors and containers. Source: torch/_weights_only_unpickler.py,
#: _get_allowed_globals, of torch 2.13; a torch that lacks one has no such tensors.
_REBUILD = (
    "_rebuild_tensor",
    "_rebuild_tensor_v2",
    "_rebuild_parameter",
    "_rebuild_parameter_with_state",
    "_rebuild_sparse_tensor",
    "_rebuild_qtensor",
    "_rebuild_meta_tensor_no_storage",
)
#: Usual names of the weights in a checkpoint that holds more; others follow in the file's order.
_USUAL = ("", "model", "state_dict", "model_state_dict", "module", "net", "network", "params")
#: Parts of names that wrappers add. Source: DataParallel and DistributedDataParallel; torch.compile; FSDP and
#: checkpoint_wrapper (torch/distributed/algorithms/_checkpoint).
_WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


def _plain(make: Callable[..., Tensor], kind: Any, args: tuple[Any, ...], state: Any) -> Tensor:
    """Make a plain tensor of one that has attributes, or is of a class of its own."""
    return make(*args)


_REAL: dict[str, Any] = {
    "torch._tensor._rebuild_from_type_v2": _plain,
    "collections.OrderedDict": OrderedDict,
    "torch.Size": torch.Size,
    "torch.device": torch.device,
    **{f"{module}.{kind.__name__}": kind for module in ("builtins", "__builtin__") for kind in (set, frozenset)},
    **{f"torch.{name}": each for name, each in vars(torch).items() if isinstance(each, torch.dtype)},
    **{f"torch._utils.{name}": each for name in _REBUILD if (each := getattr(torch._utils, name, None))},
}

#: Functions that make objects of plain data when they are unpickled. Anything else that a pickle calls may be anything.
_DATA = (
    *("_codecs.encode", "argparse.", "builtins.", "collections.", "copyreg._reconstructor", "copy_reg._reconstructor"),
    *("datetime.", "functools.partial", "numpy.", "pathlib.", "torch.", "uuid."),
)
_ACTS = ("getattr", "eval", "exec", "open", "compile", "__import__", "input", "breakpoint", "setattr", "delattr")


class _CallsError(Exception):
    """A pickle calls something else than plain data."""


class _Kind(type):
    """The class of stand-ins. A pickle that makes an object does not call its class; one that calls a function does."""

    named = ""

    def __call__(cls, *args: Any, **keywords: Any) -> Any:
        if not cls.named.startswith(_DATA) or cls.named.rpartition(".")[2] in _ACTS:
            raise _CallsError(cls.named)
        return cls.__new__(cls)  # type: ignore[call-overload]


class StandIn(dict[Any, Any], metaclass=_Kind):
    """For an object of any class: its state, and what it held as a mapping."""

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __new__(cls, *args: Any, **keywords: Any) -> StandIn:
        made = super().__new__(cls)
        made.state = {}
        return made

    def __init__(self, *args: Any, **keywords: Any) -> None: ...

    def __setstate__(self, state: Any) -> None:
        self.state: dict[str, Any] = state if isinstance(state, dict) else {}

    def extend(self, items: Any) -> None: ...

    append = add = extend


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        named = f"{module}.{name}"
        return _REAL[named] if named in _REAL else _Kind(name, (StandIn,), {"named": named})


class _Pickling:
    """In place of the module pickle, for torch.load."""

    Unpickler = _Unpickler

    @staticmethod
    def load(file: Any, **options: Any) -> Any:
        return _Unpickler(file, **options).load()


def read_states(path: Path) -> dict[str, dict[str, Tensor]]:
    """Read place (``""``, ``model``) → tensors by name, weights' first. Raises ModelFileError: damaged, none, code."""
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=False, pickle_module=_Pickling)
        found = dict(_states(loaded, ""))
    except _CallsError as error:
        problem = f"{path} calls {error} as it is loaded: unpickling runs code of its author, so it is refused"
        raise ModelFileError(problem, fix=SAVE_AGAIN) from error
    except Exception as error:  # torch's reader raises what the bytes lead it to: IndexError, struct.error …
        problem = f"{path} is truncated or damaged, or torch.save did not write it"
        raise ModelFileError(problem, fix="copy or save the file anew") from error
    if not found:
        raise ModelFileError(f"{path} holds a {type(loaded).__name__}, which is not a state dict", fix=SAVE_AGAIN)
    return found


def _states(value: Any, place: str) -> Iterator[tuple[str, dict[str, Tensor]]]:
    if isinstance(value, StandIn) and "_modules" in value.state:
        if tensors := dict(_of_module(value.state)):
            yield place, tensors
    elif isinstance(value, Mapping) and place.count(".") < _DEEPEST:
        tensors = {str(name): each for name, each in value.items() if isinstance(each, Tensor)}
        others = [name for name in value if str(name) not in tensors and not str(name).endswith("_extra_state")]
        if tensors and not others:
            yield place, tensors
        for name in others:
            yield from _states(value[name], f"{place}.{name}".lstrip("."))


def _of_module(state: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield tensors by Module.state_dict()'s names. Source: torch/nn/modules/module.py, ``_save_to_state_dict``."""
    passing = state.get("_non_persistent_buffers_set", ())
    for kind in ("_parameters", "_buffers"):
        for name, each in state.get(kind, {}).items():
            if isinstance(each, Tensor) and (kind == "_parameters" or name not in passing):
                yield f"{prefix}{name}", each
    for name, inner in state.get("_modules", {}).items():
        if isinstance(inner, StandIn):
            yield from _of_module(inner.state, f"{prefix}{name}.")


def usual_first(states: Mapping[str, Mapping[str, Tensor]]) -> list[str]:
    """Return the places, in the order in which they are tried."""
    return sorted(states, key=lambda place: _USUAL.index(place) if place in _USUAL else len(_USUAL))


def fitted(tensors: Mapping[str, Tensor], network: nn.Module) -> dict[str, Tensor] | None:
    """Return the tensors under the network's own names; None if they are another's.

    A wrapper's parts of the names are left out, so is what all names of this network begin with (of a Lightning module
    that holds it as ``model``), and a tensor that the network has twice may be saved once.
    """
    own = network.state_dict()
    shapes = {name: each.shape for name, each in own.items()}
    bare = {".".join(part for part in name.split(".") if part not in _WRAPPERS): tensors[name] for name in tensors}
    for named in (tensors, bare):
        parts = {place: {**part, **_shared(part, own)} for place, part in _parts(named, own)}
        named_alike = {place: part for place, part in parts.items() if part.keys() == own.keys()}
        like = {place for place, part in named_alike.items() if {name: part[name].shape for name in part} == shapes}
        fits = [place for place in usual_first(named_alike) if place in like]
        if len(fits) > 1 and fits[0]:
            print(f"weights for this network are below {fits[0]}, which are taken, and below {', '.join(fits[1:])}")
        for place in [*fits, *named_alike]:
            return named_alike[place]
    return None


def _parts(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Yield all of them, and those below each prefix that the network's first name has."""
    yield "", dict(tensors)
    first = next(iter(own), "")
    for name in tensors:
        if name.endswith(f".{first}"):
            prefix = name[: -len(first)]
            below = {each.removeprefix(prefix): tensors[each] for each in tensors if each.startswith(prefix)}
            yield prefix.rstrip("."), below


def _shared(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return missing names whose tensor the network shares with a name that is present."""

    def memory(tensor: Tensor) -> tuple[int, tuple[int, ...]]:
        return tensor.data_ptr(), tuple(tensor.shape)

    there = {memory(own[name]): tensors[name] for name in tensors if name in own and own[name].numel()}
    return {name: there[memory(each)] for name, each in own.items() if name not in tensors and memory(each) in there}
