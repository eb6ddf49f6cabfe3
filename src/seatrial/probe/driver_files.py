"""The NVIDIA driver's user-space files on this host: device nodes, libraries, programs.

They are the files that the container toolkit would inject, found without it: for hosts with a driver but no toolkit.
"""

import os
import platform
import re
import stat
import struct
from typing import Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from seatrial.probe.processes import file_bytes

#: Header and entry of the "new" format, which glibc >= 2.2 appends to or writes instead of the old one.
#: Source: glibc, sysdeps/generic/dl-cache.h, struct cache_file_new and struct file_entry_new.
MAGIC = b"glibc-ld.so.cache1.1"
HEADER = struct.Struct("=20sIIB3xI12x")
ENTRY = struct.Struct("=iIIIQ")
#: Entry flags: low byte, kind of library; next byte, its ABI. Source: the same file, FLAG_ELF_LIBC6 and
#: FLAG_X8664_LIB64, FLAG_AARCH64_LIB64.
FLAG_ELF_LIBC6 = 0x0003
FLAG_ABI = {"x86_64": 0x0300, "aarch64": 0x0A00}
#: Libraries by driver capability, as file name stems before ``.so``. Names absent on a driver's branch are normal.
#: Source: https://github.com/NVIDIA/libnvidia-container/blob/main/src/nvc_info.c, tables utility_libs,
#: compute_libs and video_libs.
LIBRARIES = {
    "compute": (
        *("libcuda", "libcudadebugger", "libnvidia-gpucomp", "libnvidia-nvvm", "libnvidia-nvvm70", "libnvidia-opencl"),
        *("libnvidia-pkcs11", "libnvidia-pkcs11-openssl3", "libnvidia-ptxjitcompiler", "libnvidia-allocator"),
    ),
    "utility": ("libnvidia-ml", "libnvidia-cfg"),
    "video": ("libnvcuvid", "libnvidia-encode", "libnvidia-opticalflow"),
}

#: Libraries without which no CUDA program starts and nothing can be checked.
REQUIRED_LIBRARIES = ("libcuda", "libnvidia-ml")

#: Folders of drivers' libraries: Debian multiarch and its alternatives, Fedora, plain installers, GPU operators and
#: managed Kubernetes, NixOS, WSL2. ``LD_LIBRARY_PATH`` and ld.so.cache are read first.
FOLDERS = (
    "/usr/local/nvidia/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu/nvidia/current", "/usr/lib64", "/usr/lib64/nvidia",
    "/usr/lib", "/run/nvidia/driver/usr/lib/x86_64-linux-gnu", "/home/kubernetes/bin/nvidia/lib64",
    "/run/opengl-driver/lib",
)  # fmt: skip
WSL_FOLDER = "/usr/lib/wsl/lib"
BINARY_FOLDERS = ("/usr/local/nvidia/bin", "/usr/bin", "/usr/local/bin", "/opt/bin", "/run/current-system/sw/bin")
#: A folder whose shared objects all match holds the driver alone, so it can be mounted whole.
DRIVER_LIBRARY = re.compile(r"^lib(nvidia|cuda[.]|cudadebugger|nvcuvid|nvoptix|vdpau_nvidia|[A-Za-z0-9_]+_nvidia)")

CONTROL_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
#: Nodes without which NVML finds nothing (nvidiactl) and cuInit returns 999 (nvidia-uvm). Measured on an H200, driver
#: 580.159.04, 2026-11-20.
REQUIRED_NODES = ("nvidiactl", "nvidia-uvm")


def parse(data: bytes, machine: Optional[str] = None) -> Dict[str, str]:
    """Return library name → path of an ABI; the first wins, as in ld.so. Raises ValueError for another format."""
    if (start := data.find(MAGIC)) < 0:
        raise ValueError("no glibc-ld.so.cache1.1 header")
    wanted = FLAG_ELF_LIBC6 | FLAG_ABI.get(machine or platform.machine(), 0)
    libraries: Dict[str, str] = {}
    try:
        for i in range(HEADER.unpack_from(data, start)[1]):
            flags, key, value, _, _ = ENTRY.unpack_from(data, start + HEADER.size + i * ENTRY.size)
            if flags == wanted:
                libraries.setdefault(_string(data, start + key), _string(data, start + value))
    except (struct.error, ValueError) as error:
        raise ValueError("cache ends early: %s" % error) from error
    return libraries


def _string(data: bytes, offset: int) -> str:
    return os.fsdecode(data[offset : data.index(b"\0", offset)])


class DeviceNode(NamedTuple):
    """A node under /dev. ``accessible``: this process may read and write it; ``world``: everybody may."""

    path: str
    gid: int
    accessible: bool
    world: bool


class Library(NamedTuple):
    """A library of the driver; ``path``: the file, links resolved.

    ``names``: the links to it that programs open (``libcuda.so.1``), or its own name where there is none.
    """

    path: str
    names: Tuple[str, ...]
    capability: str


class DriverFiles(NamedTuple):
    """The driver's files that were found. Paths are as on the host, also when the search was under another root.

    Attributes:
        version: of the loaded kernel module, e.g. ``580.159.04``; None under WSL2 or without a driver.
        control: nodes that every GPU needs. gpus: minor number → node. mig_caps: nodes of MIG's access rights.
        folder: the one folder that holds the libraries and nothing else, or None.
        binaries: program name → path.
        wsl: Windows's driver seen from WSL2: one node, /dev/dxg, for all GPUs.
        missing: sentences: what a complete driver has and this host has not.
    """

    version: Optional[str]
    control: Tuple[DeviceNode, ...] = ()
    gpus: Mapping[int, DeviceNode] = {}
    mig_caps: Tuple[DeviceNode, ...] = ()
    libraries: Tuple[Library, ...] = ()
    folder: Optional[str] = None
    binaries: Mapping[str, str] = {}
    wsl: bool = False
    missing: Tuple[str, ...] = ()


def find(root: str = "/", env: Optional[Mapping[str, str]] = None) -> DriverFiles:
    """Look for the driver under ``root``. Never raises; the result has what it did not find."""
    host = _Host(root)
    env = os.environ if env is None else env
    wsl = host.exists("/dev/dxg")
    version = _version(host)
    missing: List[str] = []
    if version is None and not wsl:
        missing.append("/proc/driver/nvidia/version: the NVIDIA kernel module is not loaded")
    control, gpus, mig_caps = _nodes(host, wsl, missing)
    libraries = _libraries(host, _folders(host, env, wsl, missing), version, missing)
    paths = (folder + "/nvidia-smi" for folder in [*([WSL_FOLDER] if wsl else []), *BINARY_FOLDERS])
    if (program := next(filter(host.exists, paths), None)) is None:
        missing.append("nvidia-smi: not in %s" % ", ".join(BINARY_FOLDERS))
    binaries = {} if program is None else {"nvidia-smi": program}
    return DriverFiles(
        version, control, gpus, mig_caps, libraries, _own_folder(host, libraries), binaries, wsl, tuple(missing)
    )


class _Host:
    """The file system under a root; answers in paths as seen from that root."""

    def __init__(self, root: str) -> None:
        self.root = os.path.realpath(root).rstrip("/")

    def here(self, path: str) -> str:
        return self.root + path

    def exists(self, path: str) -> bool:
        return os.path.exists(self.here(path))

    def names(self, folder: str) -> List[str]:
        try:
            return sorted(os.listdir(self.here(folder)))
        except OSError:
            return []

    def resolve(self, path: str) -> str:
        """Return the file behind links; a link that leaves the root is followed inside it, one level."""
        real = os.path.realpath(self.here(path))
        if not real.startswith(self.root + "/"):
            real = os.path.realpath(self.root + real)
        return real[len(self.root) :]


def _version(host: _Host) -> Optional[str]:
    line = file_bytes(host.here("/proc/driver/nvidia/version")).decode("ascii", "replace").split("\n")[0]
    match = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", line)
    return match.group(1) if match else None


def _node(host: _Host, path: str) -> Optional[DeviceNode]:
    try:
        status = os.stat(host.here(path))
    except OSError:
        return None
    world = stat.S_IMODE(status.st_mode) & 0o006 == 0o006
    return DeviceNode(path, status.st_gid, os.access(host.here(path), os.R_OK | os.W_OK), world)


def _nodes(
    host: _Host, wsl: bool, missing: List[str]
) -> Tuple[Tuple[DeviceNode, ...], Dict[int, DeviceNode], Tuple[DeviceNode, ...]]:
    """Return the control nodes, the GPU nodes by minor number, and the MIG capability nodes."""
    if wsl:
        dxg = _node(host, "/dev/dxg")
        return ((dxg,) if dxg else ()), {}, ()
    control = []
    for name in CONTROL_NODES:
        if node := _node(host, "/dev/" + name):
            control.append(node)
        elif name in REQUIRED_NODES:
            missing.append("/dev/%s: sudo nvidia-modprobe -u -c 0 makes it" % name)
    gpus = {}
    for name in host.names("/dev"):
        node = _node(host, "/dev/" + name) if re.match(r"^nvidia\d+$", name) else None
        if node:
            gpus[int(name[len("nvidia") :])] = node
    if not gpus:
        missing.append("/dev/nvidia0: no GPU node")
    caps = (_node(host, "/dev/nvidia-caps/" + name) for name in host.names("/dev/nvidia-caps"))
    return tuple(control), gpus, tuple(node for node in caps if node)


def _folders(host: _Host, env: Mapping[str, str], wsl: bool, missing: List[str]) -> List[str]:
    """Return the folders that may hold the libraries, in the dynamic linker's order, each once."""
    folders = [WSL_FOLDER] if wsl else []
    folders += [folder for folder in env.get("LD_LIBRARY_PATH", "").split(":") if folder.startswith("/")]
    if cache := file_bytes(host.here("/etc/ld.so.cache")):
        try:
            cached = parse(cache)
        except ValueError as error:
            missing.append("/etc/ld.so.cache: %s" % error)
        else:
            folders += [os.path.dirname(path) for name, path in cached.items() if DRIVER_LIBRARY.match(name)]
    return list(dict.fromkeys([*(folder.rstrip("/") for folder in folders), *FOLDERS]))


def _libraries(host: _Host, folders: List[str], version: Optional[str], missing: List[str]) -> Tuple[Library, ...]:
    listings = {folder: host.names(folder) for folder in folders}
    found = []
    for capability, stems in LIBRARIES.items():
        for stem in stems:
            others: List[str] = []
            if library := next(_candidates(host, listings, stem, capability, version, others), None):
                found.append(library)
            elif stem in REQUIRED_LIBRARIES:
                wrong = "; only %s" % ", ".join(sorted(set(others))) if others else ""
                missing.append("%s.so.%s: in no library folder%s" % (stem, version or "1", wrong))
    return tuple(found)


def _candidates(
    host: _Host,
    listings: Mapping[str, List[str]],
    stem: str,
    capability: str,
    version: Optional[str],
    others: List[str],
) -> Iterator[Library]:
    """Yield the library in each folder that has the loaded driver's version of it; note the files of others."""
    for folder, listing in listings.items():
        paths: Dict[str, List[str]] = {}
        for name in listing:
            if name == stem + ".so" or name.startswith(stem + ".so."):
                real = host.resolve(folder + "/" + name)
                if host.exists(real):
                    paths.setdefault(real, []).append(name)
        for real, names in paths.items():
            suffix = os.path.basename(real)[len(stem + ".so.") :]
            if version and re.match(r"\d{3,}\.", suffix) and suffix != version:
                others.append(real)
                continue
            links = [name for name in names if name != os.path.basename(real)]
            # The linker finds a library by its soname, which packages and the installer make a link of; one
            # without a link is opened by its full name.
            yield Library(real, tuple(links or names), capability)


def _own_folder(host: _Host, libraries: Tuple[Library, ...]) -> Optional[str]:
    """Return the folder with all libraries under the names programs use and only the driver's; None if none has."""
    folders = {os.path.dirname(library.path) for library in libraries}
    if len(folders) != 1:
        return None
    folder = folders.pop()
    names = host.names(folder)
    if not all(set(library.names) <= set(names) for library in libraries):
        return None
    objects = [name for name in names if ".so" in name]
    return folder if all(DRIVER_LIBRARY.match(name) for name in objects) else None
