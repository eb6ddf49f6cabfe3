"""A plan in other people's words: a ``docker run`` command or a Compose file, without seatrial and so without proof.

What belongs to seatrial alone stays out: the agent, the run's folder, the receipt. HOME, which a run keeps there, is
a tmpfs.
"""

from __future__ import annotations

import shlex
from typing import Any

import yaml

from seatrial.errors import UsageError
from seatrial.job.plan import CONTAINER_HOME, ContainerPlan, ImagePlan, Mount, Plan
from seatrial.planning.secrets import targets_secrets

#: Mounts and variables of ours; without the agent nothing reads them.
_OURS = "/seatrial/"


def as_docker(plan: Plan) -> str:
    """One ``docker run`` command, an option a line. Raises UsageError for a plan without a container."""
    container, image = _container(plan), _image(plan)
    words: list[list[str]] = [["docker", "run", "--rm", "--init"]]
    for flag, values in (
        ("--user", [container.user] if container.user else []),
        ("--group-add", list(container.groups)),
        ("--workdir", [container.workdir]),
        ("--gpus", [container.gpus_flag] if container.gpus_flag else []),
        ("--runtime", [container.runtime] if container.runtime else []),
        ("--device", list(container.devices)),
        ("--tmpfs", _tmpfs(plan, container)),
        ("--mount", [_as_option(each) for each in _mounts(plan, container)]),
        ("--env", [f"{name}={value}" for name, value in _env(plan, container).items()]),
        ("--env", targets_secrets(plan.job)),
        ("--shm-size", [str(container.shm_bytes)]),
        ("--cpus", [f"{container.cpus:g}"] if container.cpus else []),
        ("--memory", [str(container.memory_bytes)] if container.memory_bytes else []),
        ("--ulimit", list(container.ulimits)),
        ("--network", [container.network] if container.network else []),
        ("--publish", list(container.publish)),
        ("--cap-drop", ["ALL"]),
        ("--cap-add", list(container.capabilities)),
        ("--security-opt", ["no-new-privileges", *container.security_opts]),
    ):
        words += [[flag, value] for value in values]
    words += [["--read-only"]] if container.read_only_root else []
    words += [["--entrypoint", ""]] if image.build else []
    words.append([image.tag, *_command(plan)])
    return " \\\n  ".join(shlex.join(line) for line in words) + "\n"


def as_compose(plan: Plan) -> str:
    """A Compose file with one service. Raises UsageError for a plan without a container."""
    container, image = _container(plan), _image(plan)
    service: dict[str, Any] = {
        "image": image.tag,
        "init": True,
        "command": [word.replace("$", "$$") for word in _command(plan)],
        "user": container.user,
        "group_add": list(container.groups),
        "working_dir": container.workdir,
        "environment": {name: value.replace("$", "$$") for name, value in _env(plan, container).items()}
        | dict.fromkeys(targets_secrets(plan.job)),
        "volumes": [
            {"type": "bind", "source": str(each.source), "target": each.target, "read_only": each.read_only}
            for each in _mounts(plan, container)
        ],
        "tmpfs": _tmpfs(plan, container),
        "shm_size": container.shm_bytes,
        "cpus": container.cpus,
        "mem_limit": container.memory_bytes,
        "network_mode": container.network,
        "ports": list(container.publish),
        "runtime": container.runtime,
        "devices": list(container.devices),
        "cap_drop": ["ALL"],
        "cap_add": list(container.capabilities),
        "security_opt": ["no-new-privileges", *container.security_opts],
        "read_only": container.read_only_root,
    }
    if container.gpus_flag:
        reservation = {"driver": "nvidia", "device_ids": [gpu.uuid for gpu in plan.gpus], "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [reservation]}}}
    if container.ulimits:
        service["ulimits"] = dict(_ulimit(text) for text in container.ulimits)
    kept = {key: value for key, value in service.items() if value not in (None, [], {})}
    text: str = yaml.safe_dump({"services": {"train": kept}}, sort_keys=False, width=120)
    return "# docker compose up --abort-on-container-exit\n" + text


def _command(plan: Plan) -> list[str]:
    """The target, under torchrun where the plan has it so."""
    agent = plan.agent
    argv = list(agent.argv)
    if agent.launcher != "torchrun" or agent.script is None:
        return argv
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={agent.processes}"]
    return [*argv[: agent.script], *torchrun, *argv[agent.script :]]


def _env(plan: Plan, container: ContainerPlan) -> dict[str, str]:
    env = {**container.env, **plan.agent.env}
    return {
        name: value for name, value in sorted(env.items()) if not value.startswith(_OURS) and "SEATRIAL" not in name
    }


def _mounts(plan: Plan, container: ContainerPlan) -> list[Mount]:
    """The user's folders and the driver's files; nothing from the run's folder, which is not there."""
    return [
        each for each in container.mounts if not each.target.startswith(_OURS) and plan.run_id not in each.source.parts
    ]


def _tmpfs(plan: Plan, container: ContainerPlan) -> list[str]:
    home = any(each.target == CONTAINER_HOME and plan.run_id in each.source.parts for each in container.mounts)
    own = [f"{each.target}:{each.options}" for each in container.tmpfs]
    return [f"{CONTAINER_HOME}:exec,mode=1777", *own] if home else own


def _as_option(mount: Mount) -> str:
    return f"type=bind,source={mount.source},target={mount.target}" + (",readonly" if mount.read_only else "")


def _ulimit(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    soft, _, hard = value.partition(":")
    return name, {"soft": int(soft), "hard": int(hard)} if hard else int(soft)


def _container(plan: Plan) -> ContainerPlan:
    if plan.container is None:
        raise UsageError(
            f"This plan has no container: it runs on the backend {plan.backend}", run="seatrial plan … --on docker"
        )
    return plan.container


def _image(plan: Plan) -> ImagePlan:
    assert plan.image is not None, "a container has an image"
    return plan.image
