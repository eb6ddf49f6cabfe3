"""OwnWorkload: a user's own Job or PyTorchJob of Kubernetes, read from a file that stays as it is."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import permutations
from pathlib import Path
from typing import Any

from seatrial.errors import ConfigError
from seatrial.job.in_container import AGENT_GRACE_S
from seatrial.job.startable import scripts
from seatrial.job.value import Value
from seatrial.system.project_files import MAX_BYTES, parse_yaml, read_text
from seatrial.system.text import as_typed

_KINDS = {"batch/v1 Job": "job", "kubeflow.org/v1 PyTorchJob": "pytorchjob"}

#: Options that concern no pod: all else is in the file.
_OTHERS = {"on", "name", "project", "secrets", "timeout", "notify", "no_hook", "strict", "with_names", "args"}
_TABLES = {"kubernetes": {"context", "namespace", "require_capacity"}, "image": {"target"}}

#: Volumes that end with their pod, or cannot be written.
_READ_ONLY = ("configMap", "secret", "downwardAPI", "projected")
_GONE = ("name", "emptyDir", *_READ_ONLY, "image")


class OwnWorkload(Value):
    """A workload as its file has it.

    Attributes:
        file: as typed. argv: what its container starts.
        script: the project's file of the name that it starts, whose source is read; "" for none.
    """

    file: str
    manifest: dict[str, Any]
    argv: tuple[str, ...]
    script: str = ""


def replicas(manifest: Mapping[str, Any]) -> list[tuple[dict[str, Any], int]]:
    """Return a manifest's pod templates, node 0's first, each with its number of pods."""
    spec = manifest["spec"]
    if manifest["kind"] == "Job":
        return [(spec["template"], int(spec.get("completions") or spec.get("parallelism") or 1))]
    sets = [spec["pytorchReplicaSpecs"].get(name) for name in ("Master", "Worker")]
    return [(one["template"], int(one.get("replicas", 1))) for one in sets if one]


def own_container_of(template: Mapping[str, Any]) -> dict[str, Any]:
    """Return the container that trains; the training operator prescribes its name. Raises ValueError."""
    found: list[dict[str, Any]] = template["spec"]["containers"]
    named = [one for one in found if one["name"] == "pytorch"] or found
    if len(named) != 1:
        raise ValueError("it has several containers, none of which is named pytorch")
    return named[0]


def volume_kinds(template: Mapping[str, Any]) -> dict[str, str | None]:
    """Return mount path → the kind of its volume, such as ``hostPath``; None: gone with the pod."""
    volumes = template["spec"].get("volumes") or []
    kinds = {one["name"]: next((key for key in one if key not in _GONE), None) for one in volumes}
    mounts = own_container_of(template).get("volumeMounts") or []
    return {mount["mountPath"]: kinds.get(mount["name"]) for mount in mounts}


def env_of(container: Mapping[str, Any]) -> dict[str, str]:
    """Return the container's variables that have a value."""
    return {one["name"]: str(one.get("value", "")) for one in (container.get("env") or []) if "valueFrom" not in one}


def blocked_mount(own: OwnWorkload) -> str | None:
    """Return why no container of the file starts: a mount inside a read-only volume, where no folder can be made."""
    for template, _ in replicas(own.manifest):
        volumes = {one["name"]: one for one in template["spec"].get("volumes") or []}
        mounts = [(mount["mountPath"], mount["name"]) for mount in own_container_of(template).get("volumeMounts") or []]
        for (path, _), (outer, name) in permutations(mounts, 2):
            kind = next((each for each in _READ_ONLY if each in volumes.get(name, {})), None)
            inner = path.rstrip("/").removeprefix(f"{outer.rstrip('/')}/")
            if kind and inner != path.rstrip("/") and f'"{inner.partition("/")[0]}/' not in json.dumps(volumes[name]):
                mounts_it = f"{own.file} mounts {path} inside {outer}, a {kind}, which is read-only"
                return f"{mounts_it}: the folder for the mount cannot be made, so no container starts"
    return None


def read_own(path: Path, project: Path, given: Mapping[str, Any]) -> tuple[OwnWorkload, dict[str, Any]]:
    """Return the workload, and the options by which the rest of a plan is made.

    ``given``: typed options. Raises ConfigError, also where one of them contradicts the file.
    """
    tables = {key: dict(given.get(key, {})) for key in _TABLES}
    typed = [key for key, value in given.items() if value and key not in _OTHERS | _TABLES.keys()]
    if typed := typed + [key for name, table in tables.items() for key in table if key not in _TABLES[name]]:
        names = ", ".join("--" + key.replace("_", "-") for key in typed)
        raise ConfigError(f"{names}: with --file, the file decides", run=f"${{EDITOR:-vi}} {as_typed(path)}")
    parts = re.split(r"(?m)^---(?:[ \t].*)?$", read_text(path, inside=None, limit_bytes=MAX_BYTES))
    objects = [one for one in (parse_yaml(part, str(path)) for part in parts) if one is not None]
    kinds = [f"{one.get('apiVersion')} {one.get('kind')}" if isinstance(one, dict) else "no object" for one in objects]
    if len(objects) == 1 and isinstance(objects[0], dict) and {"services", "include"} & objects[0].keys():
        raise ConfigError(f"{path} is a Compose file, which up takes", run=f"seatrial up -f {as_typed(path)}")
    if len(kinds) != 1 or kinds[0] not in _KINDS:
        others = "kubectl apply -f OTHERS.yaml && seatrial run -f JOB.yaml"
        made = {"JobSet": "jobset", "TrainJob": "trainjob"}.get(kinds[0].rpartition(" ")[2] if len(kinds) == 1 else "")
        message = f"{path} has {', '.join(kinds) or 'nothing'}; --file takes one object: {' or '.join(_KINDS)}"
        raise ConfigError(message, run=f"seatrial run train.py --on k8s --kind {made}" if made else others)
    try:
        own, flags = _read(objects[0], str(path), project)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        why = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
        raise ConfigError(f"{path} cannot be run: {why}", run=f"${{EDITOR:-vi}} {as_typed(path)}") from None
    kubernetes = {"kind": _KINDS[kinds[0]], **flags.pop("kubernetes"), **tables["kubernetes"]}
    return own, {**given, **flags, "image": {**flags["image"], **tables["image"]}, "kubernetes": kubernetes}


def _read(manifest: dict[str, Any], file: str, project: Path) -> tuple[OwnWorkload, dict[str, Any]]:
    meta, sets = manifest["metadata"], replicas(manifest)
    containers, nodes = [own_container_of(template) for template, _ in sets], sum(count for _, count in sets)
    first, (resource, gpus) = containers[0], _gpus(containers[0])
    alike = ("image", "workingDir")
    if any(_gpus(one) != _gpus(first) or any(one.get(key) != first.get(key) for key in alike) for one in containers):
        raise ValueError("Master and Worker differ in GPUs, image or workingDir, and a run has one of each")
    if not all(one.get("command") for one in containers):
        raise ValueError("its container has no command, and the image's own command is unknown here")
    if nodes > 1 and manifest["kind"] == "Job" and manifest["spec"].get("completionMode") != "Indexed":
        raise ValueError("several pods need completionMode: Indexed, which gives each pod its number")
    argv = _command(first)
    names = {Path(word).name for word in re.findall(r"[\w./-]+\.py\b", " ".join(argv))}
    found = [script for script in scripts(project) if Path(script).name in names]
    grace_s = sets[0][0]["spec"].get("terminationGracePeriodSeconds", 30)  # the API server's default
    flags = {
        "on": "k8s",
        "nodes": nodes,
        "gpus": str(gpus) if gpus else "none",
        "launcher": "none",
        "grace": f"{max(1, int(grace_s) - AGENT_GRACE_S)}s",
        "image": {"ready": first["image"]},
        "kubernetes": {"gpu_resource": resource, **{key: meta[key] for key in ("namespace",) if key in meta}},
    }
    meta["name"]  # a name that the server makes up would not be found again
    return OwnWorkload(file=file, manifest=manifest, argv=argv, script=found[0] if len(found) == 1 else ""), flags


def _gpus(container: Mapping[str, Any]) -> tuple[str, int]:
    limits = (container.get("resources") or {}).get("limits") or {}
    return next(((name, int(limits[name])) for name in limits if name.startswith("nvidia.com/")), ("nvidia.com/gpu", 0))


def _command(container: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the container's words, with the variables filled in that the file gives: a kubelet knows the others."""
    values, words = env_of(container), [str(word) for word in (*container["command"], *(container.get("args") or ()))]

    def fill(at: re.Match[str]) -> str:
        return values.get(at[1], at[0]) if at[1] else "$"

    return tuple(re.sub(r"\$(?:\$|\(([^)]+)\))", fill, word) for word in words)
