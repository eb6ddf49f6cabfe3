"""Verify a built image: inside it, imports work, versions are those resolved, and its code is for the target's GPUs."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seatrial.backends.containers.images import ImageStore
from seatrial.backends.containers.run_options import flag_words
from seatrial.errors import ImageError
from seatrial.findings.catalogue import mid_sentence
from seatrial.findings.device_code import covers
from seatrial.images.build.checks import mismatch
from seatrial.images.slim.options import slimmer_bytes
from seatrial.job.in_container import CONTAINER_DATA, CONTAINER_HOME, CONTAINER_MODELS, CONTAINER_PROJECT
from seatrial.job.plan import ContainerPlan, ImagePlan
from seatrial.stack.machine import TargetMachine
from seatrial.system import command

_SCRIPT = Path(__file__).parent / "verify_program.py"

#: Importing a framework and a training step take seconds; a cold disk may need minutes.
VERIFY_TIMEOUT_S = 600.0

#: Mounts of a run that have nothing to do with its GPUs. The driver's parts are mounted read-only, wherever they lie.
_OURS = ("/seatrial/", CONTAINER_PROJECT, CONTAINER_DATA, CONTAINER_MODELS, CONTAINER_HOME)


@dataclass(frozen=True)
class Verification:
    """Hold what the image showed.

    Attributes:
        import_s: import name → seconds. training: digest of a CPU training step's weights.
        kernels: device, e.g. ``cuda:0``, → the number formats whose kernels ran there. on_gpu: those are GPUs.
        wrong: what does not hold, a sentence each.
    """

    python: str
    versions: dict[str, str]
    import_s: dict[str, float]
    architectures: tuple[str, ...] = ()
    training: str | None = None
    kernels: dict[str, tuple[str, ...]] = field(default_factory=dict)
    on_gpu: bool = False
    wrong: tuple[str, ...] = field(default=())


def verify_image(
    image: ImagePlan,
    imports: Sequence[str],
    *,
    store: ImageStore,
    machine: TargetMachine | None,
    container: ContainerPlan | None = None,
) -> Verification:
    """Run the verification in the image. Raises ImageError: its Python does not run at all.

    ``imports``: top-level names that the target imports. ``machine``: what the image is for; None: the CPU.
    ``container``: the run's own, for how GPUs get in; None without GPUs to run kernels on.
    """
    program = [image.python or "python3", "-W", "ignore", "-c", _SCRIPT.read_text("utf-8")]
    words = [*program, ",".join(imports), "gpu" if container else "cpu"]
    ended = store.run_once(image.tag, words, options=_gpu_options(container), timeout_s=VERIFY_TIMEOUT_S)
    lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    if ended.exit_code != 0 or not lines:
        run = f"{store.call[0]} run --rm -it --entrypoint {image.python} {image.tag}"
        raise ImageError(f"{image.tag} was built, but its Python does not run", cause=ended.last_line(), run=run)
    return judge(json.loads(lines[-1]), image, machine, on_gpu=container is not None)


def judge(
    found: dict[str, Any], image: ImagePlan, machine: TargetMachine | None, *, on_gpu: bool = False
) -> Verification:
    """Compare the script's answers with the plan's promises; ``on_gpu``: it had GPUs to run on. Pure."""
    wrong = [f"`import {name}` fails: {error}" for name, error in found["errors"].items()]
    if other := mismatch({**found["versions"], **{key: found[key] for key in ("cuda",) if key in found}}, image):
        wrong.append(mid_sentence(other.message))
    architectures = tuple(found.get("architectures", ()))
    for gpu in machine.gpus if machine is not None and architectures else ():
        if not covers(architectures, gpu.cc):
            wrong.append(f"torch has code for {' '.join(architectures)}, and {gpu.name} is {gpu.cc}")
    kernels: dict[str, dict[str, str]] = found.get("kernels", {})
    for device, answers in kernels.items():
        wrong += [f"no {name} kernel runs on {device}: {error}" for name, error in answers.items() if error]
    if on_gpu and "kernels" in found and not kernels:
        wrong.append("its framework sees no GPU in a container that has GPUs")
    return Verification(
        python=found["python"],
        versions=found["versions"],
        import_s=found["imports"],
        architectures=architectures,
        training=found.get("training"),
        kernels={device: tuple(name for name in answers if not answers[name]) for device, answers in kernels.items()},
        on_gpu=on_gpu,
        wrong=tuple(wrong),
    )


def measure_contents(image: ImagePlan, *, store: ImageStore, machine: TargetMachine | None) -> dict[str, Any]:
    """Measure the image's packages, kinds of files and device code in bytes, as slim/program/main.py does."""
    targets = ",".join(each.replace(".", "") for each in (machine.capabilities if machine else ()))
    # The program comes through standard input, so no mount is needed.
    code = "import sys,base64,io,zipfile,tempfile,runpy;f=tempfile.NamedTemporaryFile(suffix='.pyz');"
    code += "f.write(base64.b64decode(sys.stdin.read()));f.flush();"
    code += "sys.path.insert(0,f.name);runpy.run_path(f.name,run_name='__main__')"
    words = [image.python or "python3", "-c", code, "--root", "/opt/venv", "--measure", "--arch", targets]
    program = base64.b64encode(slimmer_bytes()).decode()
    ended = store.run_once(image.tag, words, timeout_s=VERIFY_TIMEOUT_S, input=program)
    if ended.exit_code != 0:
        raise command.failed(ended)
    measured: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return measured


def _gpu_options(container: ContainerPlan | None) -> list[str]:
    """Return the options of ``run`` that give the container its GPUs."""
    if container is None:
        return []
    driver = [mount for mount in container.mounts if mount.read_only and not mount.target.startswith(_OURS)]
    names = ("LD_LIBRARY_PATH", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "CUDA_VISIBLE_DEVICES")
    options = {
        "--gpus": container.gpus_flag,
        "--runtime": container.runtime,
        "--device": container.devices,
        "--group-add": container.groups,
        "--security-opt": container.security_opts,
        "--volume": [f"{mount.source}:{mount.target}:ro" for mount in driver],
        "--env": {name: container.env[name] for name in names if name in container.env},
    }
    return [word for flag, value in options.items() for word in flag_words(flag, value)]
