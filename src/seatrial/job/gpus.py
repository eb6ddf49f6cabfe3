"""The choice of this machine's GPUs that answers a request. Pure: what is free and how busy is handed in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from seatrial.errors import GpuContractError, GpuRequestError, GpusHeldError
from seatrial.job.gpu_request import GpuRequest, refused
from seatrial.job.plan import Choice, Gpu

#: A GPU whose load is at most this is idle: ``auto`` takes several only from among those. Desktop compositors
#: and monitoring agents stay below it.
IDLE_LOAD = 0.1


class Selection(NamedTuple):
    """The GPUs that answer a request, in PCI order, and why these. No GPUs means the CPU."""

    gpus: tuple[Gpu, ...]
    choices: tuple[Choice, ...]


def select(
    request: GpuRequest,
    available: Sequence[Gpu],
    *,
    leased: Mapping[str, str],
    load: Mapping[str, float],
    multi_gpu_evidence: str | None = None,
) -> Selection:
    """Choose the GPUs that answer ``request``, and give a reason for each choice.

    - ``all``: every GPU; of a GPU in MIG mode its slice instead. GPUs that other runs hold are shared, and reported.
    - a count: the idlest GPUs that no run holds; slices only on machines where every GPU is in MIG mode.
    - a share: the idlest GPU of which runs hold so little that the share is free.
    - a profile: the idlest slice of this size that no run holds.
    - devices: exactly those, shared if another run holds them, and reported.
    - ``auto``: one GPU, the idlest that no run holds; with ``multi_gpu_evidence`` every idle one. The CPU only on a
      machine without GPUs: if all are held it refuses, since a run that silently takes a hundred times longer is
      nobody's wish (docs/decisions.md, 0003).

    One process can use one MIG slice at most (docs.nvidia.com/datacenter/tesla/mig-user-guide, "CUDA Device
    Enumeration"), so a request for more, or for a slice and a whole GPU, is refused here instead of failing
    in the container.

    Args:
        available: GPUs and MIG slices of this machine, as NVML lists them.
        leased: UUID → ID of the live run that holds it; with a share, of those that have too little left.
        load: UUID → how busy it is, from 0 (idle) to 1; a GPU that is not named counts as idle.
        multi_gpu_evidence: where the script shows that it uses several GPUs, e.g. ``train.py:31 init_process_group``.

    Raises:
        GpuContractError: GPUs were requested that this machine does not have (exit 3).
        GpuRequestError: one is named twice, or too few are free.
    """
    gpus = sorted(available, key=_pci_order)
    if request.kind == "none":
        return Selection((), (Choice(what="gpus", value="none (CPU)", reason="--gpus none"),))
    if not gpus:
        return _on_no_gpu(request)
    if request.kind == "devices":
        chosen, reason = _by_name(request.devices, gpus), "named in the request"
    elif request.kind == "all":
        chosen, reason = _selectable(gpus), "all GPUs of this machine"
    elif request.kind == "count":
        chosen, reason = _idlest(request, _of_profile(request.profile, gpus), leased, load)
        reason += f", {request.share:g} of it: other runs may hold the rest" if request.share else ""
    else:
        chosen, reason = _auto(gpus, leased, load, multi_gpu_evidence)
    if request.capabilities:
        reason += f"; driver capabilities {','.join(request.capabilities)}"
    if len(chosen) > 1 and (slices := [gpu for gpu in chosen if gpu.mig]):
        message = f"{_listing(chosen)}: CUDA gives a process one MIG slice and no other GPU"
        raise refused(message, f"device={slices[0].mig}", cause="a process cannot compute on several MIG slices")
    chosen = sorted(chosen, key=_pci_order)
    choices = [Choice(what="gpus", value=", ".join(map(_label, chosen)), reason=reason)]
    choices += [
        Choice(what="shared gpu", value=_label(gpu), reason=f"run {leased[gpu.uuid]} holds it too")
        for gpu in chosen
        if gpu.uuid in leased
    ]
    return Selection(tuple(chosen), tuple(choices))


def _pci_order(gpu: Gpu) -> tuple[int, int]:
    return gpu.index, int(gpu.mig.split(":")[1]) if gpu.mig else -1


def _label(gpu: Gpu) -> str:
    return f"{gpu.mig or gpu.index} ({gpu.name})"


def _listing(gpus: Sequence[Gpu]) -> str:
    return ", ".join(map(_label, gpus))


def _selectable(gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return whole GPUs and slices; not the parents of slices, which CUDA does not show."""
    parents = {gpu.index for gpu in gpus if gpu.mig}
    return [gpu for gpu in gpus if gpu.mig or gpu.index not in parents]


def _alike(gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return the whole GPUs, or the slices where every GPU is in MIG mode."""
    return [gpu for gpu in _selectable(gpus) if not gpu.mig] or _selectable(gpus)


def _on_no_gpu(request: GpuRequest) -> Selection:
    if request.kind == "auto":
        reason = "--gpus auto, and no NVIDIA GPU was found on this machine"
        return Selection((), (Choice(what="gpus", value="none (CPU)", reason=reason),))
    message, cause = "no NVIDIA GPU was found on this machine", "no NVIDIA GPU, or its driver is not loaded"
    run = "seatrial run --gpus none …    # on the CPU; the machine: seatrial doctor"
    raise GpuContractError(f"--gpus {request}: {message}", cause=cause, run=run)


def _by_name(devices: Sequence[str], gpus: Sequence[Gpu]) -> list[Gpu]:
    chosen: list[Gpu] = []
    for device in devices:
        if (gpu := _find(device, gpus)) in chosen:
            raise GpuRequestError(f"{device} names GPU {_label(gpu)} a second time", run="nvidia-smi -L")
        chosen.append(gpu)
    return chosen


def _of_profile(profile: str | None, gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return the slices of this size; every GPU if none is requested. NVML ends a slice's name with its profile."""
    if profile is None:
        return list(gpus)
    if not (found := [gpu for gpu in gpus if gpu.mig and gpu.name.split()[-1] == profile]):
        message = f"MIG slice {profile} not found; available: {_listing(_selectable(gpus))}"
        raise GpuContractError(message, run="nvidia-smi mig -lgip   # the sizes that a GPU can be cut into")
    return found


def _find(device: str, gpus: Sequence[Gpu]) -> Gpu:
    selectable = _selectable(gpus)
    if device.isdigit():
        found = [gpu for gpu in selectable if not gpu.mig and gpu.index == int(device)]
        if slices := [gpu for gpu in gpus if gpu.mig and gpu.index == int(device)]:
            message = f"GPU {device} is in MIG mode: name one of its slices, {_listing(slices)}"
            raise refused(message, f"device={slices[0].mig}")
    elif ":" in device:
        found = [gpu for gpu in selectable if gpu.mig == device]
    else:
        found = [gpu for gpu in selectable if gpu.uuid.lower().startswith(device.lower())]
    if not found:
        named = device if "-" in device else f"GPU {device}"
        there = ", ".join(gpu.uuid for gpu in selectable) if "-" in device else _listing(selectable)
        raise GpuContractError(f"{named} not found; available: {there}", run="nvidia-smi -L")
    if len(found) > 1:
        uuids = ", ".join(gpu.uuid for gpu in found)
        raise GpuRequestError(f"{device} matches more than one UUID: {uuids}", run="nvidia-smi -L")
    return found[0]


def _idlest(
    request: GpuRequest, gpus: Sequence[Gpu], leased: Mapping[str, str], load: Mapping[str, float]
) -> tuple[list[Gpu], str]:
    count = request.count or 1
    candidates = _alike(gpus)
    if count > len(candidates):
        message = f"{count} GPUs requested; this machine has {len(candidates)}: {_listing(candidates)}"
        raise GpuContractError(message, run=f"seatrial run --gpus {len(candidates)} …")
    free = _free(candidates, leased, load)
    if request.share and not free:
        raise _held(f"No GPU has {request.share:g} of it free", candidates, leased)
    if count > len(free):
        raise _held(f"{count} GPU{'s' * (count > 1)} requested, {len(free)} free", candidates, leased)
    chosen = free[:count]
    busy = ", ".join(f"{gpu.mig or gpu.index} at {load.get(gpu.uuid, 0.0):.0%}" for gpu in chosen)
    return chosen, f"the {count} least busy of {len(free)} that no run holds ({busy} load)"


def _free(candidates: Sequence[Gpu], leased: Mapping[str, str], load: Mapping[str, float]) -> list[Gpu]:
    """Return the candidates that no run holds, idlest first, in their order among equals."""
    return sorted((gpu for gpu in candidates if gpu.uuid not in leased), key=lambda gpu: load.get(gpu.uuid, 0.0))


def _held(message: str, candidates: Sequence[Gpu], leased: Mapping[str, str]) -> GpusHeldError:
    holders = "; ".join(f"{_label(gpu)} is held by {leased[gpu.uuid]}" for gpu in candidates if gpu.uuid in leased)
    cause = "other runs hold them; name devices to share one (--gpus device=0)"
    return GpusHeldError(f"{message}: {holders}", cause=cause, run="seatrial runs ls")


def _auto(
    gpus: Sequence[Gpu], leased: Mapping[str, str], load: Mapping[str, float], evidence: str | None
) -> tuple[list[Gpu], str]:
    candidates = _alike(gpus)
    if not (free := _free(candidates, leased, load)):
        raise _held("--gpus auto found no free GPU", candidates, leased)
    whole_idle = [gpu for gpu in free if not gpu.mig and load.get(gpu.uuid, 0.0) <= IDLE_LOAD]
    if evidence and len(whole_idle) > 1:
        return whole_idle, f"--gpus auto: every idle GPU, since the script uses several ({evidence})"
    return free[:1], f"--gpus auto: the least busy of {len(free)} that no run holds"
