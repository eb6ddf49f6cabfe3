"""Explain why an expected GPU is missing, unusable, or has no device code in the image."""

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from seatrial.findings.catalogue import by_id
from seatrial.findings.device_code import ARCHITECTURES, keeps_code_for
from seatrial.findings.finding import GENERATE_CDI, REGISTER_ON_NODE, REGISTER_RUNTIME, Finding
from seatrial.findings.match import match_text


def cut_down(kept: str, gpus: Sequence[Dict[str, Any]]) -> Optional[Finding]:
    """Return the finding for the first GPU that the image has no code for, or None.

    ``kept``: value of ARCHITECTURES; "" for everything. ``gpus``: the plan's, with CUDA's ``compute_capability``.
    """
    for gpu in gpus if kept else ():
        capability = gpu.get("compute_capability")
        if capability and not keeps_code_for(kept.split(), capability):
            name = gpu.get("name") or gpu["uuid"]
            message = "The image has device code for compute capability %s only, and %s is %s"
            return by_id("image-cut-down").finding(
                ["%s=%s" % (ARCHITECTURES, kept), "%s has compute capability %s" % (gpu["uuid"], capability)],
                message=message % (", ".join(kept.split()), name, capability),
            )
    return None


#: cuInit's results that name their cause. Source: docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html
CU_INIT_CAUSES = {
    34: "libcuda-missing",  # a stub library was loaded
    46: "compute-mode-exclusive",
    802: "fabric-manager-not-ready",
    803: "driver-library-mismatch",
    804: "forward-compatibility",
    999: "cuda-unknown-error",
}

Facts = Dict[str, Any]


def explain_missing(
    expected: Sequence[Dict[str, Any]], visible: Sequence[Dict[str, Any]], context: Dict[str, Any]
) -> Finding:
    """Return the most likely cause why ``expected`` GPUs cannot be used, and the command that fixes it.

    Args:
        expected: GPUs of the plan: ``uuid``, and ``index``, ``name``, ``minor``, ``compute_capability`` where known.
        visible: GPUs that CUDA shows in this container: ``uuid`` and more.
        context: facts; every key may be missing if it was not checked:
            device_nodes: names in /dev that begin with nvidia: ``["nvidia0", "nvidiactl", "nvidia-uvm"]``.
            libcuda: path or name of the library that was loaded, None when there is none.
            cu_init: result of cuInit(0), an integer.
            cuda_driver: ``"12.2"``, of cuDriverGetVersion.
            nvml_error: NVML's error, None when it works.
            cuda_visible_devices, nvidia_visible_devices, nvidia_driver_capabilities: the variables, None if not set.
            driver_version: of /proc/driver/nvidia/version, e.g. ``"580.159.04"``.
            torch: ``{"version", "cuda", "arch_list"}`` or None.
            framework: ``{"name", "version", "cuda"}`` of TensorFlow or JAX, or None.
            kernel_error: what the kernel that was run on a GPU failed with.
            kernel_uuid: the GPU it failed on.
            mig: ``{"enabled": bool, "instances": int}`` of the GPUs expected.
            injection: how the plan put the GPUs in (``nvidia-runtime``, ``cdi``, ``device-nodes``, ``device-plugin``,
                ``resource-claim``, ``host``).
    """
    for look in _CHAIN:
        if (finding := look(list(expected), list(visible), context)) is not None:
            return finding
    return _finding("gpus-unusable", _observed(context))


def _finding(id: str, evidence: List[str], *, message: Optional[str] = None, fix: Optional[str] = None) -> Finding:
    """Return an error of the catalogue's entry, with what is known better here."""
    return by_id(id).finding(evidence, severity="error", message=message, fix=fix)


def _device_nodes(expected: List[Facts], visible: List[Facts], context: Facts) -> Optional[Finding]:
    """Check the nodes in /dev. WSL has none of them: there the driver is behind /dev/dxg."""
    nodes = context.get("device_nodes")
    if nodes is None or visible or "dxg" in nodes:
        return None
    evidence = ["in /dev: %s" % (", ".join(sorted(nodes)) or "no nvidia node")]
    hidden = context.get("nvidia_visible_devices")
    if context.get("injection") not in (None, "nvidia-runtime"):
        hidden = None  # only that runtime reads it; the other ways set it to void themselves
    gpu_nodes = [name for name in nodes if name.startswith("nvidia") and name[6:].isdigit()]
    if not gpu_nodes and hidden is not None and hidden.strip().lower() in ("", "void", "none"):
        return _finding("nvidia-visible-devices", ["NVIDIA_VISIBLE_DEVICES=%r" % hidden] + evidence)
    if not gpu_nodes and "nvidiactl" not in nodes:
        return _finding("device-nodes-missing", evidence, fix=_INJECTION_FIXES.get(str(context.get("injection"))))
    minors = ["nvidia%d" % gpu["minor"] for gpu in expected if gpu.get("minor") is not None]
    missing = [name for name in minors if name not in nodes]
    if missing or not gpu_nodes:
        names = ", ".join("/dev/" + name for name in missing or ["nvidia0"])
        return _finding("device-node-missing", evidence, message="%s is not in the container" % names)
    return None


#: The way the GPUs were put in → its fix.
_INJECTION_FIXES = {
    "nvidia-runtime": REGISTER_RUNTIME,
    "cdi": GENERATE_CDI,
    "device-nodes": "ls -l /dev/nvidia*   # on the host; create them: sudo nvidia-modprobe -c=0 -u",
    "device-plugin": REGISTER_ON_NODE,
    "resource-claim": "kubectl get pods --all-namespaces -o wide | grep dra   # NVIDIA's DRA driver on the pod's node",
    "host": "sudo modprobe nvidia && sudo nvidia-modprobe -c=0 -u",
}


def _uvm_node(expected: List[Facts], visible: List[Facts], context: Facts) -> Optional[Finding]:
    """Check for /dev/nvidia-uvm: without it NVML works, and cuInit returns 999 (measured on an H200, driver 580)."""
    nodes = context.get("device_nodes")
    if not nodes or visible or "dxg" in nodes or "nvidia-uvm" in nodes:
        return None
    fix = by_id("uvm-node-missing").fix
    if context.get("injection") == "cdi":
        fix += " && " + GENERATE_CDI
    return _finding("uvm-node-missing", ["in /dev: %s" % ", ".join(sorted(nodes))] + _observed(context), fix=fix)


def _libcuda(expected: List[Facts], visible: List[Facts], context: Facts) -> Optional[Finding]:
    if visible or "libcuda" not in context or context["libcuda"]:
        return None
    capabilities = context.get("nvidia_driver_capabilities")
    if capabilities and not {"compute", "all"} & {name.strip() for name in capabilities.split(",")}:
        return _finding("capabilities-lack-compute", ["NVIDIA_DRIVER_CAPABILITIES=%s" % capabilities])
    fix = REGISTER_ON_NODE if context.get("injection") == "device-plugin" else None
    return _finding("libcuda-missing", ["libcuda.so.1 cannot be loaded"], fix=fix)


def _nvml(expected: List[Facts], visible: List[Facts], context: Facts) -> Optional[Finding]:
    """Return the finding of NVML's error if the catalogue has it. NVML itself is not needed: CUDA may well work
    without."""
    lines = context.get("nvml_error")
    if visible or not lines or context.get("cu_init") == 0:
        return None
    text = lines if "NVML" in lines else "Failed to initialize NVML: " + lines
    return _known_by(text, ["NVML: %s" % lines])


def _visible_devices_variable(expected: List[Facts], visible: List[Facts], context: Facts) -> Optional[Finding]:
    """Check CUDA_VISIBLE_DEVICES, if it is set and CUDA shows fewer GPUs than were requested."""
    value = context.get("cuda_visible_devices")
    missing = _missing(expected, visible)
    if value is None or context.get("cu_init") not in (None, 0, 100) or not missing:
        return None
    if all(uuid in value for uuid in missing):  # it names them: something else hides them
        return None
    return _finding("cuda-visible-devices", ["CUDA_VISIBLE_DEVICES=%r" % value, _seen(visible)])


def _mig(expected: List[Facts], visible: List[Facts], context: Facts) -> Optional[Finding]:
    mig = context.get("mig") or {}
    if visible or not mig.get("enabled") or mig.get("instances"):
        return None
    return _finding("mig-no-instances", ["MIG mode: on; instances: 0"] + _observed(context))


def _cu_init(expected: List[Facts], visible: List[Facts], context: Facts) -> Optional[Finding]:
    id = CU_INIT_CAUSES.get(context.get("cu_init") or 0)
    return None if id is None else _finding(id, _observed(context))


def _torch_build(expected: List[Facts], visible: List[Facts], context: Facts) -> Optional[Finding]:
    torch = context.get("torch")
    if not torch or torch.get("cuda"):
        return None
    evidence = ["torch %s, torch.version.cuda is None" % torch.get("version")]
    return _finding("torch-cpu-only", evidence, fix=_install_torch(expected[0] if expected else {}, context))


def _framework_build(expected: List[Facts], visible: List[Facts], context: Facts) -> Optional[Finding]:
    """Check for a TensorFlow or JAX without its CUDA part, which prints nothing about it."""
    framework = context.get("framework")
    if not framework or framework.get("cuda") or not context.get("kernel_error"):
        return None
    evidence = ["%s %s has no CUDA" % (framework.get("name"), framework.get("version")), context["kernel_error"]]
    if framework.get("name") == "tensorflow":
        return _finding("tensorflow-cpu-only", evidence)
    return _finding("jax-no-gpu", evidence, fix=_install_jax(expected[0] if expected else {}, context))


def _install_jax(gpu: Facts, context: Facts) -> str:
    """Return the command that installs JAX with the CUDA that this driver runs; its plug-in's, if none is known.

    Source: docs.jax.dev/en/latest/installation.html: CUDA 13 needs driver 580 and sm_75.
    """
    branch = str(context.get("driver_version") or "").split(".")[0]
    plugin = str((context.get("framework") or {}).get("cuda") or "")
    if not branch and plugin in ("12", "13"):
        return "pip install --upgrade 'jax[cuda%s]'" % plugin
    new = branch.isdigit() and int(branch) >= 580 and (_capability(gpu) or (0, 0)) >= (7, 5)
    return "pip install --upgrade 'jax[cuda%d]'" % (13 if new else 12)


def _install_torch(gpu: Facts, context: Facts) -> str:
    """Return the command that installs a torch with code for this GPU, on a CUDA that this driver runs.

    Source: pytorch RELEASE.md and pytorch#172352, #190385: cu126 is the last with code below sm_75; sm_100 and sm_120
    are in cu128 (until torch 2.11) and cu130. docs.nvidia.com/deploy/cuda-compatibility: CUDA 13 needs driver 580.
    """
    capability = _capability(gpu)
    branch = str(context.get("driver_version") or "").split(".")[0]
    if capability is not None and capability < (7, 5):
        index = "cu126"
    elif branch.isdigit() and int(branch) >= 580:
        index = "cu130"
    else:
        index = "cu128" if capability is not None and capability >= (10, 0) else "cu126"
    return "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/" + index


def _capability(gpu: Facts) -> Optional[Tuple[int, int]]:
    """Return (12, 0) for ``"12.0"``; None when unknown."""
    major, _, minor = str(gpu.get("compute_capability") or "").partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None


def _kernel(expected: List[Facts], visible: List[Facts], context: Facts) -> Optional[Finding]:
    """Explain the failure of the kernel that was run, from the words of CUDA or the framework."""
    if not (error := context.get("kernel_error")):
        return None
    torch = context.get("torch") or context.get("framework") or {}
    evidence = ["kernel on %s: %s" % (context.get("kernel_uuid") or "the GPU", error)]
    if torch.get("arch_list"):
        name = torch.get("name") or "torch"
        evidence.append("%s %s has code for %s" % (name, torch.get("version"), " ".join(torch["arch_list"])))
    if (found := _known_by(error, evidence + _driver(context))) is None:
        return _finding("gpus-unusable", evidence + _driver(context))
    gpu = next((gpu for gpu in expected if gpu.get("uuid") == context.get("kernel_uuid")), {})
    capability = _capability(gpu)
    if found.id in _NO_CODE and capability is not None:
        found.evidence.append("%s is sm_%d%d" % ((gpu.get("name") or gpu["uuid"],) + capability))
    name = (context.get("framework") or {}).get("name")
    if found.id == "no-kernel-image" and capability is not None and name is None:
        found.fix = _install_torch(gpu, context)
    elif found.id == "no-kernel-image" and name == "tensorflow":
        found = _finding("gpu-too-new-for-tensorflow", found.evidence)
    elif name == "jax" and (found.id in (*_NO_CODE, "cudnn-not-found") or found.id.startswith("jax-plugin")):
        found.fix = _install_jax(gpu, context)
    if found.id == "cuda-out-of-memory":  # a kernel of a few kilobytes: others fill the GPU
        return _finding("gpu-memory-held", found.evidence)
    return found


#: Findings of a framework that has nothing for this GPU.
_NO_CODE = ("no-kernel-image", "gpu-too-new-for-xla", "gpu-too-new-for-tensorflow", "gpu-too-old-for-framework")


def _other_gpus(expected: List[Facts], visible: List[Facts], context: Facts) -> Optional[Finding]:
    missing = _missing(expected, visible)
    if not missing or not visible:
        return None
    requested = ["requested %s" % ", ".join(str(gpu.get("uuid")) for gpu in expected), _seen(visible)]
    if len(visible) < len(expected):
        return _finding("gpus-missing", requested + ["missing: %s" % ", ".join(missing)])
    return _finding("other-gpus", requested, fix="seatrial run --gpus %s …" % ",".join(missing))


def _missing(expected: Sequence[Facts], visible: Sequence[Facts]) -> List[str]:
    seen = {gpu.get("uuid") for gpu in visible}
    return [str(gpu.get("uuid")) for gpu in expected if gpu.get("uuid") not in seen]


def _seen(visible: Sequence[Facts]) -> str:
    return "CUDA shows %s" % (", ".join(str(gpu.get("uuid")) for gpu in visible) or "no GPU")


def _known_by(text: str, evidence: List[str]) -> Optional[Finding]:
    """Return the catalogue's entry that the text shows, unless it is one of the general ones that explain nothing."""
    found = (finding for finding in match_text(text) if finding.id not in ("cuda-error", "no-cuda-device"))
    if (first := next(found, None)) is not None:  # its title and fix hold values of the text
        first.severity, first.evidence = "error", list(evidence)
    return first


def _driver(context: Facts) -> List[str]:
    version, cuda = context.get("driver_version"), context.get("cuda_driver")
    if not version and not cuda:
        return []
    return ["driver %s%s" % (version or "unknown", ", CUDA up to %s" % cuda if cuda else "")]


def _observed(context: Facts) -> List[str]:
    """Return the evidence of cuInit and NVML, and the driver's version."""
    lines = []
    if context.get("cu_init") is not None:
        lines.append("cuInit returned %s" % context["cu_init"])
    if "nvml_error" in context:
        lines.append("NVML: %s" % (context["nvml_error"] or "works"))
    return lines + _driver(context)


#: Links of the chain, in the order in which CUDA needs them.
_CHAIN: Sequence[Callable[[List[Facts], List[Facts], Facts], Optional[Finding]]] = (
    _device_nodes, _uvm_node, _libcuda, _mig, _nvml, _cu_init, _visible_devices_variable, _other_gpus, _torch_build,
    _framework_build, _kernel,
)  # fmt: skip
