"""Which way the layers of fused trials run: on a CPU one after the other, on a GPU the fastest of those that can."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from seatrial.train.errors import InputError
from seatrial.train.precision import Precision
from seatrial.train.trials import stacked
from seatrial.train.trials.losses import GROUPED, LOOPED, Way
from seatrial.train.trials.network import TrialNetworks
from seatrial.train.trials.task import Task

NAMES = ("auto", "kernels", "grouped", "looped")
#: Passes that are timed, after as many that are not.
PASSES = 3


def choose_way(networks: TrialNetworks, task: Task, batch: int, precision: Precision, name: str) -> tuple[Way, str]:
    """The way asked for, and a line that says why.

    Raises:
        InputError: it cannot run here.
    """
    shape = (min(batch, len(task.train_set)), *task.train_set.images_NCHW.shape[1:])
    reason = stacked.unfit(networks, shape, precision)
    if name == "kernels" and reason:
        raise InputError(f"kernels of this library cannot run these trials: {reason}", fix="omit --fused-way")
    if name != "auto":
        way = {"kernels": stacked.KERNELS, "grouped": GROUPED, "looped": LOOPED}[name]
        return way, f"trials: {way.name}, as asked for"
    if precision.device.type == "cpu":
        return LOOPED, "trials: one after the other in each step, as a CPU has no room that a stack would fill"
    if not reason:
        return stacked.KERNELS, "trials: a grid of kernels of this library"
    images = torch.zeros(networks.trials, *shape, device=precision.device)
    times = [(passes_s(networks, images, way, precision), way) for way in (GROUPED, LOOPED)]
    shown = ", ".join(f"{way.name} {1e3 * seconds:.1f} ms" for seconds, way in times)
    return min(times, key=lambda each: each[0])[1], f"trials: torch's own layers ({reason}); a pass: {shown}"


def passes_s(networks: TrialNetworks, images_TBCHW: Tensor, way: Way, precision: Precision) -> float:
    """Seconds of a forward and backward pass, captured in a graph where the device has graphs; inf: it cannot run."""
    labels_TB = torch.zeros(images_TBCHW.shape[:2], dtype=torch.long, device=images_TBCHW.device)
    buffers = [buffer.clone() for buffer in networks.buffers()]
    parameters = list(networks.parameters())

    def once() -> Sequence[Tensor]:
        with precision.autocast():
            losses_T = way.losses(networks, images_TBCHW, labels_TB)
        return torch.autograd.grad(losses_T.sum(), parameters)

    try:
        seconds = _timed(once, images_TBCHW.device)
    except (RuntimeError, torch.OutOfMemoryError):
        seconds = float("inf")
    for buffer, before in zip(networks.buffers(), buffers, strict=True):
        buffer.copy_(before)
    return seconds


def _timed(once: object, device: torch.device) -> float:
    assert callable(once)
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(PASSES):
            once()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        once()
    graph.replay()
    torch.cuda.synchronize(device)
    began = time.perf_counter()
    for _ in range(PASSES):
        graph.replay()
    torch.cuda.synchronize(device)
    return (time.perf_counter() - began) / PASSES
