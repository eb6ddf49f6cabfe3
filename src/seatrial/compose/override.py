"""Write the override file: what the plans add to the user's services. Pure.

``!reset`` takes a key away, ``!override`` replaces a list (docs.docker.com/reference/compose-file/merge; from 2.24).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import yaml

from seatrial.backends.containers.docker_and_podman import Docker
from seatrial.compose.client import escaped
from seatrial.compose.service import COMPLETED, RESERVED, Service, is_nvidias, value_at
from seatrial.job.plan import ContainerPlan, Mount, Plan
from seatrial.planning.container.plan import GPU_DEVICE
from seatrial.planning.portable import gpu_reservation

#: The keys of one service in the override.
Entry = dict[str, Any]


class _Marked(NamedTuple):
    """A value with Compose's mark: ``!override`` replaces the user's, ``!reset`` removes it."""

    mark: str
    value: Any


_GONE = _Marked("!reset", None)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _marked(dumper: _Dumper, marked: _Marked) -> yaml.Node:
    node = dumper.represent_data(marked.value)
    node.tag = marked.mark
    return node


_Dumper.add_representer(_Marked, _marked)


def override(
    services: Mapping[str, Service],
    plans: Mapping[str, Plan],
    waits: Sequence[tuple[str, str]],
    others: Mapping[str, ContainerPlan] = {},
    *,
    builds: Mapping[str, Entry] = {},
    secrets: Mapping[str, Entry] = {},
) -> str:
    """Write the text of the override file for ``plans`` of runs and ``others``, what other services get.

    ``waits``: (task, reader) pairs: the reader starts after the task's successful end.
    ``builds``: service → keys of its build that are replaced. ``secrets``: the same of the file's.
    """
    entries: dict[str, Entry] = {}
    for name, service in services.items():
        entry = service_entry(service, plans[name]) if name in plans else {}
        entry |= _mounts(service, others[name]) if name in others else {}
        if added := [writer for writer, reader in waits if reader == name]:
            entry["depends_on"] = {writer: {"condition": COMPLETED} for writer in added}
        entry |= {"build": builds[name]} if builds.get(name) else {}
        if entry:
            entries[name] = entry
    whole = {"services": entries, **({"secrets": dict(secrets)} if secrets else {})}
    text: str = yaml.dump(whole, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)
    return f"# By seatrial up: what it adds to the Compose file, which stays as it is.\n{text}"


def service_entry(service: Service, plan: Plan) -> Entry:
    """Return the entry that a run's plan adds to its service."""
    container = plan.container
    assert container is not None
    entry = _mounts(service, container) | _agent(service, Docker.own_options)
    entry |= {"group_add": list(container.groups)} if container.groups else {}
    entry |= _gpus(service, container)
    entry["labels"] = dict(container.labels)
    entry["stop_grace_period"] = f"{container.stop_timeout_s}s"
    return entry


def _mounts(service: Service, container: ContainerPlan) -> Entry:
    """Return the mounts, and the agent as PID 1, which compares them and runs what the service would run."""
    own = {each.target for each in service.by_path}
    lists = {
        "volumes": [_mount(each) for each in container.mounts if each.target not in own],
        "tmpfs": [f"{each.target}:{each.options}" for each in container.tmpfs],
    }
    gone = {"command": _GONE} if service.config.get("command") else {}
    env = {name: value.replace("$", "$$") for name, value in sorted(container.env.items())}
    some = {key: each for key, each in {**lists, "environment": env}.items() if each}
    return {"entrypoint": escaped(container.command), **gone, **some}


def _agent(service: Service, own: Mapping[str, Any]) -> Entry:
    """Return log settings that keep the agent's evidence uncut, and no init, terminal or standard input."""
    options = dict(option.split("=", 1) for option in own["log_options"])
    entry: Entry = {"logging": _Marked("!override", {"driver": own["log_driver"], "options": options})}
    entry |= {key: False for key in ("init", "tty", "stdin_open") if service.config.get(key)}
    return entry


def _gpus(service: Service, container: ContainerPlan) -> Entry:
    """Return the GPUs in this host's form, which replaces every form in which the file requests them."""
    entry, config = Entry(), service.config
    reserved = value_at(config, RESERVED)
    requests = [each for each in reserved if not is_nvidias(each)]
    requests += [gpu_reservation(container.gpus_flag)] if container.gpus_flag else []
    if names := [name for name in container.devices if not name.startswith("/")]:
        requests.append({"driver": "cdi", "device_ids": names, "capabilities": ["gpu"]})
    if reserved or requests:
        devices = _Marked("!override", requests) if requests else _GONE
        entry["deploy"] = {"resources": {"reservations": {"devices": devices}}}
    if config.get("gpus"):
        entry["gpus"] = _GONE
    if container.runtime:
        entry["runtime"] = container.runtime
    elif config.get("runtime") == "nvidia":
        entry["runtime"] = _GONE
    nodes = [f"{node}:{node}" for node in container.devices if node.startswith("/")]
    own = [each for each in config.get("devices") or () if not GPU_DEVICE.match(str(each.get("source")))]
    if nodes or len(own) != len(config.get("devices") or ()):
        kept = [f"{each['source']}:{each['target']}:{each.get('permissions', 'rwm')}" for each in own]
        entry["devices"] = _Marked("!override", [*kept, *nodes]) if kept or nodes else _GONE
    return entry


def _mount(mount: Mount) -> dict[str, Any]:
    return {
        "type": "bind",
        "source": str(mount.source).replace("$", "$$"),
        "target": mount.target,
        "read_only": mount.read_only,
        "bind": {"create_host_path": False},
    }
