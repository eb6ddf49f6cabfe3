"""GpuRequest: the value of --gpus, with one grammar for every backend.

    request  := what ["," "capabilities=" name {"," name}] | "capabilities=" name {"," name}
    what     := "auto" | "none" | "all" | count | share | device {"," device} | "device=" device {"," device}
              | "count=" count | profile
    share    := 0.5, 0.25 …                    a part of one GPU; other runs can hold the rest
    count    := 1, 2, 3 …                      one bare integer is a count, as for ``docker run --gpus 2``
    device   := index | uuid | slice           two or more bare integers are indices: ``0,2``
    uuid     := "GPU-" hex… | "MIG-" hex…      a unique beginning is enough, as for CUDA_VISIBLE_DEVICES
    slice    := gpu-index ":" mig-index        ``0:1``, as ``nvidia-smi -L`` counts them
    profile  := "mig-" name                    ``mig-1g.10gb``: any one slice of this size, which no run holds

Quotes are dropped (Docker's own syntax needs ``'"device=0,2"'``), and so is the capability ``gpu``, which tutorials
write and which every request implies. A request of capabilities alone is for one GPU, as in Docker's client
(github.com/docker/cli, opts/gpus.go: without a count and without devices the count is 1).
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from typing import Literal

from seatrial.errors import GpuRequestError
from seatrial.system.text import regex

Kind = Literal["auto", "none", "all", "count", "devices"]

#: Values of NVIDIA_DRIVER_CAPABILITIES.
#: Source: docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html
CAPABILITIES = ("all", "compute", "compat32", "display", "graphics", "ngx", "utility", "video")

_EXAMPLES = "auto, none, all, 2, 0.5, device=0,2 or GPU-<uuid>"
#: ``cuda:0`` and ``0-3``, as other programs write GPUs.
_OTHERS = regex(r"(?i)(?:cuda:|gpu:?)?([0-9]{1,4})(?:-([0-9]{1,4}))?")
_INTEGER = regex(r"[0-9]{1,4}")
_SHARE = regex(r"0?\.[0-9]{1,4}")
_SLICE = regex(r"([0-9]{1,4}):([0-9]{1,4})")
#: Profiles as ``nvidia-smi mig -lgip`` names them; clusters write a dot for the plus of ``1g.10gb+me``.
_PROFILE = regex(r"mig-((?:[1-7]c\.)?[1-7]g\.[1-9][0-9]{0,2}gb)(?:[+.]([a-z][a-z0-9.]{0,11}))?")
_UUID = regex(r"(gpu|mig)-([0-9a-f][0-9a-f-]*)|mig-gpu-([0-9a-f-]+/[0-9]+/[0-9]+)")


@dataclass(frozen=True)
class GpuRequest:
    """A parsed request. ``str()`` is its canonical form, which parses back to an equal one.

    Attributes:
        count: for kind ``count``, at least 1; else None.
        devices: for kind ``devices``: indices ``"0"``, UUIDs or beginnings of one, MIG slices ``"0:1"``.
        capabilities: NVIDIA_DRIVER_CAPABILITIES of the request; () leaves the default, ``compute,utility``.
        share: of a count, which is 1 then: the requested part of the GPU, below 1; None for whole GPUs.
        profile: of a count, which is 1 then: the size of a MIG slice, such as ``1g.10gb``; None for whole GPUs.
    """

    kind: Kind
    count: int | None = None
    devices: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    profile: str | None = None
    share: float | None = None

    @property
    def noun(self) -> str:
        """Return the name of one of the requested devices: ``GPU``, or a MIG slice with its profile."""
        return f"{self.profile} MIG slice" if self.profile else "GPU"

    @classmethod
    def parse(cls, text: str) -> GpuRequest:
        """Read a request as typed. Raises GpuRequestError, which shows what parses."""
        what, capabilities = _split(text)
        if not what and not capabilities:
            raise _unreadable(text, "no GPUs given")
        request = _parse_what(what or ["1"], text)
        if request.kind == "none" and capabilities:
            raise refused(f"GPU request {text!r}: capabilities without a GPU", "none")
        return replace(request, capabilities=_parse_capabilities(capabilities, text))

    def __str__(self) -> str:
        counted = f"mig-{self.profile}" if self.profile else f"{self.share:g}" if self.share else str(self.count)
        what = {"count": counted, "devices": "device=" + ",".join(self.devices)}.get(self.kind, self.kind)
        return ",".join([what, *(["capabilities=" + ",".join(self.capabilities)] if self.capabilities else [])])


def _split(text: str) -> tuple[list[str], list[str]]:
    """Split a request into its device words and its capabilities; Docker allows either order of these keys."""
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
    key, _, value = words[0].partition("=") if "=" in words[0] else ("", "", words[0])
    values = [value, *words[1:]]
    single = value.lower() if len(values) == 1 else None
    if single in ("auto", "none", "all") and not key:
        return GpuRequest(single)  # type: ignore[arg-type]  # mypy does not narrow str by membership
    if single in ("all", "-1"):
        raise refused(f"GPU request {text!r}: to request every GPU, use the word all", "all")
    if single is not None and key in ("", "count") and _INTEGER.fullmatch(single):
        if int(single) == 0:
            raise refused("0 is ambiguous. First GPU: device=0. CPU: none", "device=0")
        return GpuRequest("count", count=int(single))
    if single is not None and key in ("", "device") and (match := _PROFILE.fullmatch(single)):
        return GpuRequest("count", count=1, profile="+".join(filter(None, match.groups())))
    if single is not None and not key and _SHARE.fullmatch(single) and float(single) > 0:
        return GpuRequest("count", count=1, share=float(single))
    if key == "count":
        raise _unreadable(text, "count must be a single whole number")
    return GpuRequest("devices", devices=_parse_devices(values, text))


def _parse_devices(words: list[str], text: str) -> tuple[str, ...]:
    devices = []
    for word in words:
        if (device := _canonical_device(word)) is None:
            raise _unreadable(text, f"{word!r} does not name a GPU")
        if device in devices:
            raise refused(f"GPU request {text!r} names {device} twice", f"device={','.join(dict.fromkeys(words))}")
        devices.append(device)
    return tuple(devices)


def _canonical_device(word: str) -> str | None:
    if _INTEGER.fullmatch(word):
        return str(int(word))
    if match := _SLICE.fullmatch(word):
        return f"{int(match[1])}:{int(match[2])}"
    if (match := _UUID.fullmatch(word.lower())) is None:
        return None
    return f"MIG-GPU-{match[3]}" if match[3] else f"{match[1].upper()}-{match[2]}"


def _parse_capabilities(words: list[str], text: str) -> tuple[str, ...]:
    names = [word.lower() for word in words if word.lower() != "gpu"]
    if unknown := [name for name in names if name not in CAPABILITIES]:
        raise _unreadable(text, f"unknown capability {unknown[0]!r}; known: {', '.join(CAPABILITIES)}")
    if names and not {"compute", "all"} & set(names):
        needed = f"all,capabilities=compute,{','.join(names)}"
        raise refused(f"GPU request {text!r}: CUDA needs the capability compute", needed)
    return tuple(dict.fromkeys(names))


def refused(message: str, request: str, cause: str | None = None) -> GpuRequestError:
    """Return the error for a request, with another one in its command."""
    return GpuRequestError(message, cause=cause, run=f"seatrial run --gpus {request} …")


def _unreadable(text: str, why: str) -> GpuRequestError:
    about = f"{text!r} is not a valid GPU request ({why})" if repr(text) not in why else why
    message, other = f"{about}; write {_EXAMPLES}", ""
    if (match := _OTHERS.fullmatch(text)) and (first := int(match[1])) <= (last := int(match[2] or first)) < first + 16:
        other = f"device={','.join(map(str, range(first, last + 1)))}"
    elif _PROFILE.fullmatch(f"mig-{text}"):
        other = f"mig-{text}"
    elif close := difflib.get_close_matches(text.lower(), ("auto", "none", "all"), n=1, cutoff=0.7):
        other = close[0]
    return refused(message, other) if other else GpuRequestError(message, run="seatrial run --help")
