"""Optimizers and schedulers of torch.optim, or like them, made ready for a step that is captured.

On a CPU they are left as they are.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from seatrial.train.errors import InputError

#: Optimizers whose fused kernel takes a learning rate on the device (torch 2.6); elsewhere ``capturable`` does.
FUSED = ("SGD", "Adam", "AdamW")
#: Name of an optimizer's state → its value before the first step; a name of the group's options stands for theirs.
#: All that is not here is a state of which nothing is known. Source: torch.optim, 2.13.
FIRST_VALUES: dict[str, float | str] = {
    **dict.fromkeys(("step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer"), 0.0),
    **dict.fromkeys(("square_avg", "grad_avg", "acc_delta", "prev", "ax"), 0.0),
    "mu_product": 1.0,
    "mu": 1.0,
    "eta": "lr",
    "step_size": "lr",
}
#: Options of a group that name the kernels it uses: a checkpoint does not change them, they depend on the machine.
KERNEL_OPTIONS = ("fused", "capturable", "foreach")


def refuse(optimizer: Any, model: nn.Module, *, some: bool = False) -> None:
    """Raise InputError for an optimizer that calls the loss or would change nothing of the model.

    Unless ``some``, also for one that would change anything besides: no step would clear gradients of other parameters
    (of a loss, for example), and no checkpoint would hold them.
    """
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise InputError(f"{type(optimizer).__name__} evaluates the loss several times a step: Step does it once")
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    own = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if own and not any(id(parameter) in held for parameter in own):
        message = "the optimizer has none of the model's parameters: nothing would be trained"
        raise InputError(message, fix="make the optimizer from model.parameters(), after the model is complete")
    known = {id(parameter) for parameter in model.parameters()}
    trained = [one for group in optimizer.param_groups for one in group["params"] if one.requires_grad]
    if not some and (others := sum(id(parameter) not in known for parameter in trained)):
        raise InputError(
            f"the optimizer has {others} parameter{'s'[: others != 1]} that the model lacks, such as a loss' own",
            fix='one model of both: nn.ModuleDict({"net": net, "criterion": criterion}), and a loss that calls both',
        )


def prepare(optimizer: Any, device: torch.device) -> None:
    """Turn learning rates into tensors on a GPU, and choose the optimizer's kernels that read them."""
    if device.type != "cuda" or not isinstance(optimizer, torch.optim.Optimizer):
        return
    dense = all(p.is_floating_point() for group in optimizer.param_groups for p in group["params"])
    fused = type(optimizer).__name__ in FUSED and type(optimizer).__module__.startswith("torch.") and dense
    for group in optimizer.param_groups:
        chosen = group.get("foreach") or group.get("differentiable") or "fused" not in group
        if fused and not chosen:
            group["fused"] = True
            optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
        if "capturable" in group:  # also where it is fused: Adam and AdamW refuse to be captured without (torch 2.11)
            group["capturable"] = True
        if (group.get("fused") or group.get("capturable")) and not isinstance(group["lr"], Tensor):
            group["lr"] = torch.tensor(group["lr"], dtype=torch.float32, device=device)


def first_value(name: str, group: dict[str, Any]) -> float | None:
    """Return a state's value before the first step; None if it is not known."""
    value = FIRST_VALUES.get(name)
    if name == "momentum_buffer" and group.get("dampening"):
        return None  # the first step takes the gradient undampened
    return float(group[value]) if isinstance(value, str) else value


def scheduled(scheduler: Any, optimizer: Any, steps: int, every: int) -> list[dict[str, list[Any]]]:
    """Return each group's learning rate at every step, as a scheduler of torch sets it after ``every`` steps.

    So with every other option that it changes: OneCycleLR and CyclicLR change ``momentum`` or ``betas``, too. For each
    group: name of the option → its values, one for each step. The scheduler and the optimizer stay as they were. Raises
    InputError for one that is of another optimizer, follows the loss, or ends before the training.
    """
    name = type(scheduler).__name__
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        message = f"{name} needs the test loss, which is unknown during a step"
        raise InputError(message, fix="a schedule over the steps: cosine()")
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise InputError(f"the {name} belongs to another optimizer than the one given")
    kept, rates = copy.deepcopy(scheduler.state_dict()), [group["lr"] for group in optimizer.param_groups]
    first = [_options(group) for group in optimizer.param_groups]
    tables: list[dict[str, list[Any]]] = [{"lr": []} for _ in rates]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of no optimizer step before the scheduler's
            for step in range(steps):
                for group, begins, table in zip(optimizer.param_groups, first, tables, strict=True):
                    _note(table, group, begins, step)
                if (step + 1) % every == 0 and step + 1 < steps:
                    scheduler.step()
    except (ValueError, TypeError) as error:
        wanted = -(-steps // every)
        raise InputError(f"the {name} ends before the training: {error}", fix=f"one of {wanted} steps") from error
    scheduler.load_state_dict(kept)
    for group, rate, begins in zip(optimizer.param_groups, rates, first, strict=True):
        group.update(begins, lr=rate.fill_(begins["lr"]) if isinstance(rate, Tensor) else rate)
    return tables


def _options(group: dict[str, Any]) -> dict[str, Any]:
    """Return a group's options, with its learning rate as a number."""
    return {name: value for name, value in group.items() if name != "params"} | {"lr": float(group["lr"])}


def _note(table: dict[str, list[Any]], group: dict[str, Any], first: dict[str, Any], step: int) -> None:
    """Append a step's learning rate, and every other option from its first change on."""
    table["lr"].append(float(group["lr"]))
    for name, begins in first.items():
        if name == "lr":
            continue
        if name in table:
            table[name].append(group[name])
        elif group[name] is not begins and group[name] != begins:
            table[name] = [begins] * step + [group[name]]
