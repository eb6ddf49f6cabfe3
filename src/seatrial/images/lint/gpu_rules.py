"""Find what hides the GPUs from a container, or puts another driver before the host's."""

from __future__ import annotations

import re
from collections.abc import Iterator

from seatrial.images.lint.commands import installs_of
from seatrial.images.lint.dockerfile import Dockerfile, Remark, Severity, remark
from seatrial.images.lint.instructions import JOINT
from seatrial.job.reading.signs import LIMIT, memory_note

#: Variable, the values with which a container or CUDA has no GPU, and the remarks on those and on fixed GPUs.
#: Source: docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html
_CHOOSING = (
    ("NVIDIA_VISIBLE_DEVICES", ("", "void", "none"), "gpus-hidden", "gpus-fixed"),
    ("CUDA_VISIBLE_DEVICES", ("", "-1", "none", "nodevfiles"), "gpus-hidden from CUDA", "gpus-fixed for CUDA"),
)

#: Debian's, Ubuntu's and NVIDIA's packages of the driver itself.
_DRIVER = re.compile(
    r"(?:cuda-drivers?(?:-\d+)?|nvidia-driver(?:-.*)?|nvidia-utils(?:-.*)?|libcuda1(?:-.*)?|libnvidia-(?:compute|gl|ml1?|"
    r"encode|decode|cfg1|ptxjitcompiler1)(?:-.*)?|nvidia-(?:dkms|kernel|headless|compute-utils|libs|smi|open)(?:-.*)?|"
    r"kmod-nvidia.*|xserver-xorg-video-nvidia.*)$"
)

#: Metapackages that bring the driver along: https://docs.nvidia.com/cuda/cuda-installation-guide-linux/#meta-packages
_META = re.compile(r"cuda(?:-runtime|-demo-suite)?(?:-(\d+)-(\d+))?$")

#: Folders of other libcudas in a path; braces and plus signs belong to ``${X:+…}``.
_FOREIGN = re.compile(r"[^:{}+\s]*/(?P<kind>stubs|compat)/?(?=[:}]|$)")

_GPU_CHECK = re.compile(
    r"(?<![\w/.-])nvidia-smi\b|cuda\.is_available\(\)|list_physical_devices|cuda\.device_count|jax\.devices\("
)

_OF_PYTHON = ("pip", "uv", "conda")


def hidden_gpus(file: Dockerfile) -> Iterator[Remark]:
    """Find variables of the image that give the container no GPU, or always the same one."""
    for name, nothing, hidden, fixed in _CHOOSING:
        if setting := file.lasting(name):
            value = setting.value.strip()
            if value.lower() in nothing:
                yield remark(setting.line, hidden, value=value or "empty")
            elif re.fullmatch(r"\d+(?:,\d+)*", setting.value):
                yield remark(setting.line, fixed, value=value)


def missing_capabilities(file: Dockerfile) -> Iterator[Remark]:
    """Check the capabilities: the runtime mounts only those of the driver's libraries that the image requests."""
    requested = file.lasting("NVIDIA_DRIVER_CAPABILITIES")
    names = {name.strip() for name in requested.value.split(",")} if requested else set()
    if not requested or not requested.value.strip() or "all" in names or "$" in requested.value:
        return
    if "compute" not in names:
        others = "".join(f",{name}" for name in sorted(names - {"utility", ""}))
        yield remark(requested.line, "no-compute", value=requested.value, others=others)
    elif "utility" not in names:
        yield remark(requested.line, "no-utility", value=requested.value)


def other_drivers_first(file: Dockerfile) -> Iterator[Remark]:
    """Find a libcuda of the image in LD_LIBRARY_PATH or in the loader's configuration."""
    path = file.lasting("LD_LIBRARY_PATH")
    for found in _FOREIGN.finditer(path.value) if path else ():
        folder, line = found[0], _line_of(file, found[0])
        fix = "ENV LD_LIBRARY_PATH=" + (path.value.replace(found[0], "").replace("::", ":").strip(":") if path else "")
        if found["kind"] == "stubs":
            yield _stubs(line, f"LD_LIBRARY_PATH has {folder}", fix)
        else:
            yield remark(line, "compat-at-run-time", folder=folder, fix=fix)
    for each in file.of("RUN"):
        kept = each.stage in file.chain and re.search(r"/etc/ld\.so\.conf", each.value)
        if kept and (stub := re.search(r"[\w/.${}-]*/stubs(?![\w/])", each.value)):
            yield _stubs(each.line, f"the loader's configuration has {stub[0]}", "remove it from /etc/ld.so.conf.d")


def _stubs(line: int, seen: str, fix: str) -> Remark:
    return remark(line, "stubs-at-run-time", seen=seen, fix=fix)


def _line_of(file: Dockerfile, folder: str) -> int:
    """Return the line of the ENV that adds a folder."""
    for each in file.of("ENV"):
        at = each.raw.find(folder.strip("/").rpartition("/")[2], max(0, each.raw.find("LD_LIBRARY_PATH")))
        if each.stage in file.chain and at >= 0 and "LD_LIBRARY_PATH" in each.value:
            return each.line + each.raw[:at].count(JOINT)
    setting = file.lasting("LD_LIBRARY_PATH")
    return setting.line if setting else 1


def drivers_in_image(file: Dockerfile) -> Iterator[Remark]:
    """Find packages of the driver, which belongs to the host, unless the RUN that installs them removes them again."""
    for run in (each for each in file.of("RUN") if each.stage in file.chain):
        installs = [each for each in installs_of(tuple(file.commands_of(run))) if each.tool not in _OF_PYTHON]
        gone = {name for each in installs if each.action in ("purge", "remove") for name in each.packages}
        for each in (one for one in installs if one.action in ("install", "groupinstall", "module")):
            for package in (name for name in each.packages if name not in gone):
                name = re.split(r"[=:/]", package)[0].rstrip("*").rstrip("-")
                fix = f"remove {package}: the runtime mounts the host's driver"
                if meta := _META.match(name):
                    version = f"-{meta[1]}-{meta[2]}" if meta[1] else ""
                    fix = f"{each.tool} install -y cuda-toolkit{version}"
                if meta or _DRIVER.match(name):
                    yield remark(each.line, "driver-in-image", package=package, fix=fix)


def risky_commands(file: Dockerfile) -> Iterator[Remark]:
    """Find commands that need a GPU, an old key or a larger /dev/shm, or that put a driver or its stub in the image."""
    removed = " ".join(command.text for command in file.commands if command.words[:1] in (("rm",), ("unlink",)))
    for command in file.commands:
        text, first = command.text, command.words[0] if command.words else ""
        # NVIDIA's repository for machine learning is still signed with the old key.
        if "7fa2af80.pub" in text and "machine-learning" not in text:
            yield remark(command.line, "apt-key")
        if re.search(r"mount\b.*/dev/shm|shmmax", text) or ("/etc/fstab" in text and "/dev/shm" in text):
            yield remark(command.line, "shm")
        if first not in ("echo", "printf", "cat", "sed", "ln", "touch", "which") and (match := _GPU_CHECK.search(text)):
            fails = re.search(r"assert|nvidia-smi|exit\(", text) and not command.sometimes
            severity: Severity = "error" if fails else "warning"
            yield remark(command.line, "gpu-at-build-time", match=match[0], severity=severity)
        if command.stage not in file.chain:
            continue
        words = [word for word in command.words[1:] if not word.startswith("-")]
        source, target = words if first in ("ln", "cp") and len(words) == 2 else ("", "")
        if "/stubs/libcuda.so" in source and "/stubs" not in target and target not in removed:
            yield _stubs(command.line, f"{target} is a stub of the driver", f"RUN … && rm {target}   # in the same RUN")
        installer = re.search(r"NVIDIA-Linux-\S*\.run|cuda_[\w.$\{}-]*\.run", text)
        with_driver = installer and (installer[0].startswith("NVIDIA") or re.search(r"--driver\b", text))
        if installer and with_driver and first not in ("wget", "curl", "rm", "chmod", "mv"):
            fix = f"sh {installer[0]} --silent --toolkit" if installer[0].startswith("cuda") else "remove it"
            yield remark(command.line, "driver-in-image by an installer", installer=installer[0], fix=fix)


def memory_settings(file: Dockerfile) -> Iterator[Remark]:
    """Find variables that do not limit GPU memory, although tutorials set them for that."""
    for name, setting in file.environments[-1].items():
        if setting.lasts and (note := memory_note(name, setting.value)):
            yield remark(setting.line, "no-memory-limit", name=name, value=setting.value, note=note, fix=LIMIT)


RULES = (
    hidden_gpus, missing_capabilities, other_drivers_first, drivers_in_image, risky_commands, memory_settings,
)  # fmt: skip
