"""GPU requests: one grammar for every backend, and the choice of GPUs that answers one.

    request  := what ["," "capabilities=" name {"," name}]
    what     := "auto" | "none" | "all" | count | device {"," device} | "device=" device {"," device} | "count=" count
    count    := 1, 2, 3 …                      one bare integer is a count, as for ``docker run --gpus 2``
    device   := index | uuid | slice           two or more bare integers are indices: ``0,2``
    uuid     := "GPU-" hex… | "MIG-" hex…      a unique beginning is enough, as for CUDA_VISIBLE_DEVICES
    slice    := gpu-index ":" mig-index        ``0:1``, as ``nvidia-smi -L`` counts them

Quotes are dropped (Docker's own syntax needs ``'"device=0,2"'``), and so is the capability ``gpu``, which tutorials
write and which every request implies. Both functions are pure: what is free and how busy is handed in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from seatrial.errors import GpuContractError, GpuRequestError
from seatrial.job.plan import Choice, Gpu

Kind = Literal["auto", "none", "all", "count", "devices"]

#: Values of NVIDIA_DRIVER_CAPABILITIES.
#: Source: docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html
CAPABILITIES = ("all", "compute", "compat32", "display", "graphics", "ngx", "utility", "video")

#: A GPU whose load is at most this is idle: ``auto`` takes several only from among those. Desktop compositors
#: and monitoring agents stay below it.
IDLE_LOAD = 0.1

_EXAMPLES = "auto, none, all, 2, device=0,2 or GPU-<uuid>"
_INTEGER = re.compile(r"[0-9]{1,4}")
_SLICE = re.compile(r"([0-9]{1,4}):([0-9]{1,4})")
_UUID = re.compile(r"(gpu|mig)-([0-9a-f][0-9a-f-]*)|mig-gpu-([0-9a-f-]+/[0-9]+/[0-9]+)")


@dataclass(frozen=True)
class GpuRequest:
    """A parsed request. ``str()`` is its canonical form, which parses back to an equal one.

    Attributes:
        count: for kind ``count``, at least 1; else None.
        devices: for kind ``devices``: indices ``"0"``, UUIDs or beginnings of one, MIG slices ``"0:1"``.
        capabilities: NVIDIA_DRIVER_CAPABILITIES asked for; () leaves the default, ``compute,utility``.
    """

    kind: Kind
    count: int | None = None
    devices: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> GpuRequest:
        """Read a request as typed.

        Raises:
            GpuRequestError: it does not parse; the message shows what does.
        """
        what, capabilities = _split(text)
        request = _parse_what(what, text)
        if request.kind == "none" and capabilities:
            raise GpuRequestError(f"GPU request {text!r}: capabilities without a GPU", run="seatrial run --gpus none …")
        return cls(request.kind, request.count, request.devices, _parse_capabilities(capabilities, text))

    def __str__(self) -> str:
        what = {"count": str(self.count), "devices": "device=" + ",".join(self.devices)}.get(self.kind, self.kind)
        return ",".join([what, *(["capabilities=" + ",".join(self.capabilities)] if self.capabilities else [])])


@dataclass(frozen=True)
class Selection:
    """The GPUs that answer a request, in PCI order, and why these. No GPUs means the CPU."""

    gpus: tuple[Gpu, ...]
    choices: tuple[Choice, ...]


def _split(text: str) -> tuple[list[str], list[str]]:
    """The words before ``capabilities=`` and those after; Docker allows either order of its keys."""
    words = [word.strip() for word in text.translate({ord('"'): None, ord("'"): None}).split(",")]
    if "" in words:
        raise _unreadable(text, "an empty part")
    what: list[str] = []
    capabilities: list[str] = []
    current = what
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            current.append(word)
        elif key.strip() == "capabilities":
            current = capabilities
            current.append(value.strip())
        elif key.strip() in ("device", "count"):
            current = what
            current.append(f"{key.strip()}={value.strip()}")
        elif (key.strip(), value.strip()) != ("driver", "nvidia"):
            raise _unreadable(text, f"unknown key {key.strip()!r}")
    return what, capabilities


def _parse_what(words: list[str], text: str) -> GpuRequest:
    if not words:
        raise _unreadable(text, "no GPUs given")
    key, equals, value = words[0].partition("=")
    if not equals:
        key, value = "", words[0]
    values = [value, *words[1:]]
    single = value.lower() if len(values) == 1 else None
    if single in ("auto", "none", "all") and not key:
        return GpuRequest(single)  # type: ignore[arg-type]  # mypy does not narrow str by membership
    if single in ("all", "-1"):
        raise GpuRequestError(
            f"GPU request {text!r}: to request every GPU, use the word all", run="seatrial run --gpus all …"
        )
    if single is not None and key in ("", "count") and _INTEGER.fullmatch(single):
        return _parse_count(single)
    if key == "count":
        raise _unreadable(text, "count must be a single whole number")
    return GpuRequest("devices", devices=_parse_devices(values, text))


def _parse_count(number: str) -> GpuRequest:
    if int(number) == 0:
        raise GpuRequestError(
            "a GPU count must be at least 1: write device=0 for the first GPU, none for the CPU",
            run="seatrial run --gpus device=0 …",
        )
    return GpuRequest("count", count=int(number))


def _parse_devices(words: list[str], text: str) -> tuple[str, ...]:
    devices = []
    for word in words:
        device = _canonical_device(word)
        if device is None:
            raise _unreadable(text, f"{word!r} does not name a GPU")
        if device in devices:
            raise GpuRequestError(f"GPU request {text!r} names {device} twice", run="nvidia-smi -L")
        devices.append(device)
    return tuple(devices)


def _canonical_device(word: str) -> str | None:
    if _INTEGER.fullmatch(word):
        return str(int(word))
    if match := _SLICE.fullmatch(word):
        return f"{int(match[1])}:{int(match[2])}"
    match = _UUID.fullmatch(word.lower())
    if match is None:
        return None
    return f"MIG-GPU-{match[3]}" if match[3] else f"{match[1].upper()}-{match[2]}"


def _parse_capabilities(words: list[str], text: str) -> tuple[str, ...]:
    names = [word.lower() for word in words if word.lower() != "gpu"]
    for name in names:
        if name not in CAPABILITIES:
            raise _unreadable(text, f"unknown capability {name!r}; known: {', '.join(CAPABILITIES)}")
    if names and not {"compute", "all"} & set(names):
        raise GpuRequestError(
            f"GPU request {text!r}: without the capability compute there is no CUDA in the container",
            run=f"seatrial run --gpus all,capabilities=compute,{','.join(names)} …",
        )
    return tuple(dict.fromkeys(names))


def _unreadable(text: str, why: str) -> GpuRequestError:
    return GpuRequestError(f"{text!r} is not a valid GPU request ({why}); write {_EXAMPLES}", run="seatrial run --help")


def select(
    request: GpuRequest,
    available: Sequence[Gpu],
    *,
    leased: Mapping[str, str],
    load: Mapping[str, float],
    multi_gpu_evidence: str | None = None,
) -> Selection:
    """The GPUs that answer ``request``, and why.

    - ``all``: every GPU; of a GPU in MIG mode its slice instead. GPUs that other runs hold are shared, and said.
    - a count: the idlest GPUs that no run holds; slices only on machines where every GPU is in MIG mode.
    - devices: exactly those, shared if another run holds them, and said.
    - ``auto``: one GPU, the idlest that no run holds; with ``multi_gpu_evidence`` every idle one. The CPU only on a
      machine without GPUs: if all are held it refuses, since a run that silently takes a hundred times longer is
      nobody's wish (docs/decisions/0003-gpu-auto.md).

    One process can use one MIG slice at most (docs.nvidia.com/datacenter/tesla/mig-user-guide, "CUDA Device
    Enumeration"), so a request that comes out as more, or as a slice beside a whole GPU, is refused here instead of
    failing in the container.

    Args:
        available: GPUs and MIG slices of this machine, as NVML lists them.
        leased: UUID → ID of the live run that holds it.
        load: UUID → how busy it is, from 0 (idle) to 1; a GPU that is not named counts as idle.
        multi_gpu_evidence: where the script shows that it uses several GPUs, e.g. ``train.py:31 init_process_group``.

    Raises:
        GpuContractError: GPUs were asked for that this machine does not have (exit 3).
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
        chosen, reason = _idlest(request.count or 1, gpus, leased, load)
    else:
        chosen, reason = _auto(gpus, leased, load, multi_gpu_evidence)
    _refuse_several_slices(chosen)
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
    """Whole GPUs and slices; not the parents of slices, which CUDA does not show."""
    parents = {gpu.index for gpu in gpus if gpu.mig}
    return [gpu for gpu in gpus if gpu.mig or gpu.index not in parents]


def _on_no_gpu(request: GpuRequest) -> Selection:
    if request.kind == "auto":
        reason = "--gpus auto, and no NVIDIA GPU was found on this machine"
        return Selection((), (Choice(what="gpus", value="none (CPU)", reason=reason),))
    raise GpuContractError(
        f"--gpus {request}: no NVIDIA GPU was found on this machine",
        cause="no NVIDIA GPU, or its driver is not loaded",
        run="nvidia-smi -L    # or, to run on the CPU: seatrial run --gpus none …",
    )


def _by_name(devices: Sequence[str], gpus: Sequence[Gpu]) -> list[Gpu]:
    chosen: list[Gpu] = []
    for device in devices:
        gpu = _find(device, gpus)
        if gpu in chosen:
            raise GpuRequestError(f"{device} names GPU {_label(gpu)} a second time", run="nvidia-smi -L")
        chosen.append(gpu)
    return chosen


def _find(device: str, gpus: Sequence[Gpu]) -> Gpu:
    selectable = _selectable(gpus)
    if device.isdigit():
        found = [gpu for gpu in selectable if not gpu.mig and gpu.index == int(device)]
        slices = [gpu for gpu in gpus if gpu.mig and gpu.index == int(device)]
        if slices:
            raise GpuRequestError(
                f"GPU {device} is in MIG mode: name one of its slices, {_listing(slices)}",
                run=f"seatrial run --gpus device={slices[0].mig} …",
            )
    elif ":" in device:
        found = [gpu for gpu in selectable if gpu.mig == device]
    else:
        found = [gpu for gpu in selectable if gpu.uuid.lower().startswith(device.lower())]
    if not found:
        named = device if "-" in device else f"GPU {device}"
        there = ", ".join(gpu.uuid for gpu in selectable) if "-" in device else _listing(selectable)
        raise GpuContractError(f"there is no {named} here; there is {there}", run="nvidia-smi -L")
    if len(found) > 1:
        uuids = ", ".join(gpu.uuid for gpu in found)
        raise GpuRequestError(f"{device} matches more than one UUID: {uuids}", run="nvidia-smi -L")
    return found[0]


def _idlest(
    count: int, gpus: Sequence[Gpu], leased: Mapping[str, str], load: Mapping[str, float]
) -> tuple[list[Gpu], str]:
    candidates = [gpu for gpu in _selectable(gpus) if not gpu.mig] or _selectable(gpus)
    if count > len(candidates):
        raise GpuContractError(
            f"{count} GPUs asked for, and this machine has {len(candidates)}: {_listing(candidates)}",
            run=f"seatrial run --gpus {len(candidates)} …",
        )
    free = _free(candidates, leased, load)
    if count > len(free):
        raise _held(f"{count} GPU{'s' * (count > 1)} asked for, {len(free)} free", candidates, leased)
    chosen = free[:count]
    busy = ", ".join(f"{gpu.mig or gpu.index} at {load.get(gpu.uuid, 0.0):.0%}" for gpu in chosen)
    return chosen, f"the {count} least busy of {len(free)} that no run holds ({busy} load)"


def _free(candidates: Sequence[Gpu], leased: Mapping[str, str], load: Mapping[str, float]) -> list[Gpu]:
    """Those that no run holds, idlest first, PCI order among equals."""
    return sorted((gpu for gpu in candidates if gpu.uuid not in leased), key=lambda gpu: load.get(gpu.uuid, 0.0))


def _held(message: str, candidates: Sequence[Gpu], leased: Mapping[str, str]) -> GpuRequestError:
    holders = "; ".join(f"{_label(gpu)} is held by {leased[gpu.uuid]}" for gpu in candidates if gpu.uuid in leased)
    return GpuRequestError(
        f"{message}: {holders}",
        cause="other runs hold them; name devices to share one (--gpus device=0)",
        run="seatrial runs ls",
    )


def _auto(
    gpus: Sequence[Gpu], leased: Mapping[str, str], load: Mapping[str, float], evidence: str | None
) -> tuple[list[Gpu], str]:
    candidates = [gpu for gpu in _selectable(gpus) if not gpu.mig] or _selectable(gpus)
    free = _free(candidates, leased, load)
    if not free:
        raise _held("--gpus auto found no free GPU", candidates, leased)
    whole_idle = [gpu for gpu in free if not gpu.mig and load.get(gpu.uuid, 0.0) <= IDLE_LOAD]
    if evidence and len(whole_idle) > 1:
        return whole_idle, f"--gpus auto: every idle GPU, since the script uses several ({evidence})"
    return free[:1], f"--gpus auto: the least busy of {len(free)} that no run holds"


def _refuse_several_slices(chosen: Sequence[Gpu]) -> None:
    slices = [gpu for gpu in chosen if gpu.mig]
    if slices and len(chosen) > 1:
        raise GpuRequestError(
            f"{_listing(chosen)}: CUDA gives a process one MIG slice and no other GPU",
            cause="a process cannot compute on several MIG slices",
            run=f"seatrial run --gpus device={slices[0].mig} …",
        )
