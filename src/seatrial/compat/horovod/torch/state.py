"""Send parameters, an optimizer's state and pickled objects from one rank to all."""

import io
import pickle
from typing import Any, Iterable, List, Mapping, Optional, Tuple, Union

import torch

from .ops import allgather, broadcast_, broadcast_async_, synchronize
from .world import ProcessSet, global_process_set, rank

try:
    import cloudpickle

    _dump: Any = cloudpickle.dump
except ImportError:
    _dump = pickle.dump


def broadcast_parameters(
    params: Union[Mapping[str, Any], Iterable[Tuple[str, Any]]],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Copy the root's tensors to all ranks: of ``model.state_dict()`` or ``model.named_parameters()``.

    Other values are skipped. Raises ValueError for anything else than these two.
    """
    if isinstance(params, Mapping):
        pairs = sorted(params.items())
    else:
        try:
            pairs = [(name, each) for name, each in params]
        except (TypeError, ValueError):
            raise ValueError("broadcast_parameters takes a state_dict or pairs of a name and a tensor") from None
    tensors = [each for _, each in pairs if torch.is_tensor(each)]
    handles = [broadcast_async_(each, root_rank, process_set=process_set) for each in tensors]
    for handle in handles:
        synchronize(handle)


class _Place:
    """The place of a tensor in the root's state."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype, self.on_gpu = tuple(tensor.shape), tensor.dtype, tensor.is_cuda


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int, model: Any = None) -> None:
    """Copy the root's state and settings (learning rate …) to the optimizers of all ranks, in place.

    Raises ValueError for LBFGS, whose state is not that of its parameters.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("the state of LBFGS cannot be broadcast")
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    sends = rank() == root_rank
    tensors: List[torch.Tensor] = []
    skeleton: Any = None
    if sends:
        states = [_without_tensors(optimizer.state.get(each, {}), tensors) for each in parameters]
        settings = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
        skeleton = (states, _without_tensors(settings, tensors))
    states, settings = broadcast_object(skeleton, root_rank)
    if sends:
        for tensor in tensors:
            broadcast_(tensor.detach(), root_rank)
        return
    for each, state in zip(parameters, states):
        received = _with_tensors(state, each.device, root_rank)
        if received:
            optimizer.state[each] = received
        else:
            optimizer.state.pop(each, None)
    device = parameters[0].device if parameters else torch.device("cpu")
    for group, values in zip(optimizer.param_groups, settings):
        group.update(_with_tensors(values, device, root_rank))


def _without_tensors(value: Any, tensors: List[torch.Tensor]) -> Any:
    """Replace tensors by places, and append them to ``tensors`` in their order."""
    if torch.is_tensor(value):
        tensors.append(value)
        return _Place(value)
    if isinstance(value, dict):
        return {key: _without_tensors(each, tensors) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([_without_tensors(each, tensors) for each in value])
    return value


def _with_tensors(value: Any, device: torch.device, root_rank: int) -> Any:
    """Replace places by tensors, received in the same order."""
    if isinstance(value, _Place):
        where = device if value.on_gpu else torch.device("cpu")
        return broadcast_(torch.empty(value.shape, dtype=value.dtype, device=where), root_rank)
    if isinstance(value, dict):
        return {key: _with_tensors(each, device, root_rank) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([_with_tensors(each, device, root_rank) for each in value])
    return value


def broadcast_object(
    obj: Any, root_rank: int = 0, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Return the root's object on every rank; it is pickled for the transfer."""
    sends = rank() == root_rank
    data = _bytes(obj) if sends else torch.empty(0, dtype=torch.uint8)
    size = broadcast_(torch.tensor([data.numel()]), root_rank, process_set=process_set)
    if not sends:
        data = torch.empty(int(size), dtype=torch.uint8)
    broadcast_(data, root_rank, process_set=process_set)
    return obj if sends else _object(data)


def allgather_object(obj: Any, name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> List[Any]:
    """Return the ranks' objects, in their order."""
    data = _bytes(obj)
    sizes = allgather(torch.tensor([data.numel()]), process_set=process_set).tolist()
    gathered = allgather(data, process_set=process_set)
    return [_object(each) for each in torch.split(gathered, sizes)]


def _bytes(obj: Any) -> torch.Tensor:
    buffer = io.BytesIO()
    _dump(obj, buffer)
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


def _object(data: torch.Tensor) -> Any:
    return pickle.loads(data.numpy().tobytes())
