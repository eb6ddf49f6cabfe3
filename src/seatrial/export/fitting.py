"""Which state dict of a file is a network's, under whatever names it was saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor, nn

#: What people call the weights in a checkpoint that holds more; others follow in the file's order.
_USUAL = ("", "model", "state_dict", "model_state_dict", "module", "net", "network", "params")

#: Parts of names that wrappers add. Source: DataParallel and DistributedDataParallel; torch.compile; FSDP and
#: checkpoint_wrapper (torch/distributed/algorithms/_checkpoint).
_WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


def usual_first(states: Mapping[str, Mapping[str, Tensor]]) -> list[str]:
    """The places, in the order in which they are tried."""
    return sorted(states, key=lambda place: _USUAL.index(place) if place in _USUAL else len(_USUAL))


def fitted(tensors: Mapping[str, Tensor], network: nn.Module) -> dict[str, Tensor] | None:
    """The tensors under the network's own names; None: they are another's.

    A wrapper's parts of the names are left out, so is what all names of this network begin with (of a Lightning module
    that holds it as ``model``), and a tensor that the network has twice may be saved once.
    """
    own = network.state_dict()
    for named in (tensors, {_without_wrappers(name): each for name, each in tensors.items()}):
        parts = {place: {**part, **_shared(part, own)} for place, part in _parts(named, own)}
        named_alike = {place: part for place, part in parts.items() if part.keys() == own.keys()}
        fits = [place for place in usual_first(named_alike) if _same_shapes(named_alike[place], own)]
        if len(fits) > 1 and fits[0]:
            print(f"weights for this network are below {fits[0]}, which are taken, and below {', '.join(fits[1:])}")
        for place in [*fits, *named_alike]:
            return named_alike[place]
    return None


def _same_shapes(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> bool:
    return all(tensors[name].shape == each.shape for name, each in own.items())


def _parts(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """All of them, and those below each prefix under which the network's first name stands."""
    yield "", dict(tensors)
    first = next(iter(own), "")
    for name in tensors:
        if name.endswith(f".{first}"):
            prefix = name[: -len(first)]
            below = {each.removeprefix(prefix): tensors[each] for each in tensors if each.startswith(prefix)}
            yield prefix.rstrip("."), below


def _shared(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Missing names whose tensor the network has under another name, which is there."""

    def memory(tensor: Tensor) -> tuple[int, tuple[int, ...]]:
        return tensor.data_ptr(), tuple(tensor.shape)

    there = {memory(own[name]): tensors[name] for name in tensors if name in own and own[name].numel()}
    return {name: there[memory(each)] for name, each in own.items() if name not in tensors and memory(each) in there}


def _without_wrappers(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)
