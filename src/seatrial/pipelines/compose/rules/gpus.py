"""GPUs: reserved twice, asked for in two ways, counted from the wrong side, shut out by a capability."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import combinations

from seatrial.errors import GpuRequestError
from seatrial.pipelines.compose.gpu_asks import RESERVED, GpuAsk, foreign_ask, gpu_ask
from seatrial.pipelines.compose.order import added_waits, needs, never_together
from seatrial.pipelines.compose.reading import ComposeFile
from seatrial.pipelines.compose.remark import Remark

_MOST_NAMED = 3

_RESERVE_ONE = "deploy.resources.reservations.devices: [{driver: nvidia, count: 1, capabilities: [gpu]}]"


def _asks(file: ComposeFile) -> dict[str, GpuAsk]:
    found = {}
    for name, service in file.services.items():
        with suppress(GpuRequestError):  # told when it is planned
            if (ask := gpu_ask(file, service)) is not None:
                found[name] = ask
    return found


def _reserved_twice(file: ComposeFile) -> Iterator[Remark]:
    """Compose gives one GPU to as many services as name it, without a word."""
    asks = _asks(file)
    waits = needs(file, added_waits(file))
    for one, other in combinations(asks, 2):
        both = [name for name in asks[other].request.devices if name in asks[one].request.devices]
        if both and not never_together(waits, one, other):
            place = file.place(other, *asks[other].path)
            yield Remark(
                place,
                "same-gpu",
                "warning",
                f"{one} and {other} reserve the same GPU, {', '.join(both)}, and may run at once",
                "name another GPU, or let one wait for the other's end",
            )
    for name in [name for name, ask in asks.items() if ask.request.kind == "all"]:
        rivals = [other for other in asks if other != name and not never_together(waits, name, other)]
        if rivals:
            place = file.place(name, *asks[name].path)
            more = f" and {len(rivals) - _MOST_NAMED} more" if len(rivals) > _MOST_NAMED else ""
            listed = ", ".join(rivals[:_MOST_NAMED]) + more
            message = f"{name} reserves every GPU, beside {listed}, which would share them"
            yield Remark(place, "same-gpu", "warning", message, "count: 1   # as many as it uses")
            return  # the others would say the same


def _several_ways(file: ComposeFile) -> Iterator[Remark]:
    for name, ask in _asks(file).items():
        if len(ask.ways) > 1:
            first, *others = (file.place(name, *GpuAsk(ask.request, (way,)).path) for way in ask.ways)
            message = f"{name} asks for GPUs in {len(ask.ways)} ways; the one in line {first.line} counts"
            yield Remark(others[0], "gpus-twice", "warning", message, f"keep {'.'.join(ask.path)} alone")


def _legacy_runtime(file: ComposeFile) -> Iterator[Remark]:
    for name, ask in _asks(file).items():
        if ask.ways[0] == "runtime":
            yield Remark(
                file.place(name, "runtime"),
                "runtime-nvidia",
                "hint",
                f"{name}: runtime: nvidia needs that runtime in Docker's configuration, and gives every GPU by default",
                _RESERVE_ONE,
            )


def _no_compute(file: ComposeFile) -> Iterator[Remark]:
    for name, ask in _asks(file).items():
        if ask.compute_added:
            yield Remark(
                file.place(name, *ask.path, "0", "capabilities") if ask.ways[0] == "deploy" else file.place(name),
                "no-compute",
                "warning",
                f"{name}: without the capability compute there is no CUDA in the container",
                "capabilities: [gpu]   # or [compute, utility]",
            )


def _counted_from_outside(file: ComposeFile) -> Iterator[Remark]:
    """In a container GPUs count from 0 again: CUDA_VISIBLE_DEVICES=1 beside one reserved GPU hides it."""
    for name, ask in _asks(file).items():
        if ask.ways[0] == "runtime":
            continue
        listed = [each.strip() for each in file.services[name].environment.get("CUDA_VISIBLE_DEVICES", "").split(",")]
        count = ask.request.count or len(ask.request.devices)
        if not count or not listed[0].isdigit():
            continue
        beyond = [each for each in listed if each.isdigit() and int(each) >= count]
        if beyond:
            yield Remark(
                file.place(name, "environment", "CUDA_VISIBLE_DEVICES"),
                "counted-from-outside",
                "error",
                f"{name}: CUDA_VISIBLE_DEVICES={','.join(listed)} hides the reserved GPU: inside the container the "
                f"{'one GPU is' if count == 1 else f'{count} GPUs are'} 0{'' if count == 1 else f' to {count - 1}'}",
                "leave CUDA_VISIBLE_DEVICES out; the reservation chooses",
            )


def _replicas_share(file: ComposeFile) -> Iterator[Remark]:
    for name, ask in _asks(file).items():
        if file.services[name].replicas > 1:
            key = ("scale",) if "scale" in file.services[name].config else ("deploy", "replicas")
            yield Remark(
                file.place(name, *key),
                "replicas-share",
                "error",
                f"{name}: its {file.services[name].replicas} replicas would all get the same GPUs ({ask.request})",
                f"a service for each, or {key[-1]}: 1",
            )


def _no_count(file: ComposeFile) -> Iterator[Remark]:
    for name, ask in _asks(file).items():
        if ask.ways[0] == "deploy" and ask.request.kind == "all":
            node = file.lines.node("services", name, *RESERVED, "0", "count")
            if node is None and file.lines.has("services", name, *RESERVED, "0"):
                message = f"{name} reserves every GPU of the machine: there is neither count nor device_ids"
                yield Remark(file.place(name, *ask.path), "no-count", "warning", message, "count: 1")


def _not_nvidias(file: ComposeFile) -> Iterator[Remark]:
    for name, service in file.services.items():
        if (path := foreign_ask(service)) is not None:
            yield Remark(
                file.place(name, *path),
                "not-nvidia",
                "warning",
                f"{name} asks for an accelerator that is not NVIDIA's: Compose runs it as it is, without a receipt",
                "nothing to mend; seatrial measures NVIDIA's GPUs",
            )


def _by_a_variable_alone(file: ComposeFile) -> Iterator[Remark]:
    for name, ask in _asks(file).items():
        if ask.ways[0] == "environment":
            yield Remark(
                file.place(name, *ask.path),
                "variable-alone",
                "warning",
                f"{name}: NVIDIA_VISIBLE_DEVICES gives no GPU by itself, unless nvidia is Docker's default runtime",
                _RESERVE_ONE,
            )


def _for_swarm(file: ComposeFile) -> Iterator[Remark]:
    path = (*RESERVED[:-1], "generic_resources")
    for name in file.services:
        if file.lines.has("services", name, *path):
            yield Remark(
                file.place(name, *path),
                "for-swarm",
                "warning",
                f"{name}: generic_resources is for Swarm; Compose ignores it, and the service gets no GPU",
                _RESERVE_ONE,
            )


RULES = (
    _not_nvidias,
    _by_a_variable_alone,
    _for_swarm,
    _reserved_twice,
    _several_ways,
    _legacy_runtime,
    _no_compute,
    _counted_from_outside,
    _replicas_share,
    _no_count,
)
