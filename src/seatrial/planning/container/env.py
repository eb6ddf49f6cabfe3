"""Variables of a container: what its first process has, and what only the target gets, from the agent."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from seatrial.backends.containers.injection import InjectionPlan
from seatrial.backends.containers.mounts import home_env, inside
from seatrial.backends.containers.run_options import proxy_env, read_env_file
from seatrial.images.base import DEFAULT_BASE
from seatrial.job.in_container import CONTAINER_HOME
from seatrial.job.model import Job
from seatrial.job.plan import Choice, ImagePlan, Mount
from seatrial.job.reading.signs import GATED, REPORT_TO
from seatrial.job.script import ScriptFacts
from seatrial.planning.site import ServiceSite
from seatrial.stack.facts import table
from seatrial.system.host import Host, login, logins
from seatrial.system.names import SECRET

#: Variables that steer the loader, the C library or Python in every process that has them: for the target, not for
#: PID 1, whose evidence such a library in the project could forge. Source: ld.so(8); glibc manual, "Environment
#: Variables"; python(1).
STEERING = re.compile(r"LD_|GLIBC_|GCONV_|MALLOC_|PYTHON|(LOCPATH|NLSPATH|HOSTALIASES|RES_OPTIONS|TZDIR)$")
OURS = {"PYTHONUNBUFFERED": "1"}  # else the last lines before a crash are lost in a buffer

#: Packages whose ``token=True`` is a login at huggingface.co.
_OF_THE_HUB = {"datasets", "diffusers", "huggingface_hub", "peft", "sentence_transformers", "transformers"}
#: Variables that forbid it downloads, and those that move its cache. Source: logins.toml.
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_CACHES = {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE"}
#: Variables of sessions, of launchers and of the machine's own GPUs and Pythons.
_USUAL = re.compile(table("import_names")["usual_variables"])
#: Library → variables that change what it does, but for paths and logins.
_OF_LIBRARIES: dict[str, str] = table("import_names")["variables"]
_MOST_NAMED = 3
#: Prefix of a noted use → its words.
_VERBS = {"remote.": "opens {}://", "subprocess.": "runs {}", REPORT_TO: "reports to it", "": "imports {}"}
_KEYLESS = {"", "offline", "dryrun", "disabled"}  #: modes in which a tracker needs no key
_REPORTS = re.compile(r"transformers\.(Seq2Seq)?Trainer|trl\.\w+Trainer")


def plan_env(
    job: Job, image: ImagePlan, injection: InjectionPlan, host: Host, filled: Sequence[Mount]
) -> tuple[dict[str, str], dict[str, str], tuple[str, ...]]:
    """Return PID 1's variables on top of the image's, those that the agent adds for the target alone, and warnings.

    ``filled``: mounts that the user or an earlier target may have put files into.
    """
    env, warnings = _wished(job, image, injection, host)
    container, target = without_steering(env)
    container.update(injection.library_path({}, image.env))
    safe, back = shielded(container, image.env, [mount.target for mount in filled])
    return {**container, **safe}, {**back, **target}, warnings


def shielded(
    env: Mapping[str, str], image: Mapping[str, str], filled: Sequence[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return PID 1's values of variables by which an image steers the loader, and what the target gets back of them.

    ``env``: of the container, on top of the ``image``'s. ``filled``: targets of mounts with files of others.
    """
    safe, back = {}, {}
    for name, value in image.items():
        if STEERING.match(name) and (own := _unsteered(name, env.get(name, value), filled)) != value:
            safe[name], back[name] = own, value
    return safe, back


def without_login(
    job: Job, script: ScriptFacts, env: Mapping[str, str], host: Host, lists: Mapping[str, str] | None = None
) -> tuple[dict[str, str], list[Choice]]:
    """Return variables for services that would wait for a login, and what the run lacks: it has none of this machine's.

    ``lists``: of the image's packages; transformers' trainer before 5 reports to all trackers in them.
    """
    packages = "\n".join((lists or {}).values()) if job.image.base == DEFAULT_BASE else ""
    variables, choices, given = dict[str, str](), [], {*env, *job.secrets, *script.variables}
    named = next(filter(GATED.fullmatch, (word.partition("=")[2] or word for word in job.target.args)), None)
    hub = _OF_THE_HUB & script.where.keys() and (named or script.hub_evidence)
    places = ({"hub.token": hub} if hub else {}) | {**script.modules, **script.where}
    reports = re.search(r"(?m)^transformers==[0-4]\.", packages) and next(filter(_REPORTS.fullmatch, places), None)
    for service, row in logins().items():
        row = {**row, "kept": None, "way": row.get("pods", "")} if job.backend == "k8s" else row
        used = [each for each in places if re.fullmatch(row["modules"], each.removesuffix("=").removeprefix(REPORT_TO))]
        listed = "package" in row and re.search(rf"(?m)^{row['package']}(?![\w.-])", packages)
        by = next((each for each in places if re.fullmatch(row["by"], each)), None) if "by" in row else reports
        used = [by] if by and listed and "offline" in row and not used else used
        way, kept = _way(row, host), row.get("kept")
        mounted = kept and any(each.target.endswith(f"/{kept}") for each in job.mounts)
        no_use = not used or (" --hash=" in packages and "package" in row and not listed)
        begin = f"run.{row.get('package')}="
        runs = [(*each[len(begin) :].split("|", 1), where) for each, where in places.items() if each.startswith(begin)]
        enough = {*row["names" if {each[0] for each in runs} <= _KEYLESS else "given"]}  # a mode goes before variables
        if no_use or not way or mounted or any(each.endswith("=") for each in used) or given & enough:
            continue
        prefix = next(filter(used[0].startswith, _VERBS))
        uses = row.get("uses", _VERBS[prefix]).format(used[0].removeprefix(prefix))
        uses += ", which reports to it by default" * (used[0] == reports)
        uses += f", {places[row['online']]} fails offline" if row.get("online") in places else ""
        reason = f"{places[used[0]]} {uses}, and the run has {row['lacks']}: {way}"
        value, reason = _outcome(runs, row, reason, way)
        choices.append(Choice(what=service, value=value, reason=reason))
        variables |= row.get("offline", {})
    return variables, choices


def without_variables(job: Job, script: ScriptFacts, env: Mapping[str, str], host: Host) -> Iterator[str]:
    """Yield a warning for variables of this shell that choose GPUs or that the script reads, and the run lacks."""
    known = {*env, *job.secrets, *script.variables, *(name for row in logins().values() for name in row["names"])}
    visible = host.env.get("CUDA_VISIBLE_DEVICES", "")
    if "," in visible and job.gpus.kind == "auto" and job.backend != "k8s" and "CUDA_VISIBLE_DEVICES" not in known:
        yield f"CUDA_VISIBLE_DEVICES={visible} does not apply to the run; to use these GPUs: --gpus device={visible}"
    read = {each: where for each, where in script.read_variables.items() if not _USUAL.fullmatch(each)}
    for library in _OF_LIBRARIES.keys() & script.where.keys():
        read |= {each: library for each in host.env if re.fullmatch(_OF_LIBRARIES[library], each) and each not in read}
    given = {*env, *job.secrets, *host.env}
    for name, where in {each.name: each.where for each in script.env_checks if not each.values}.items():
        if name not in given and (name.startswith("SLURM_") or not _USUAL.fullmatch(name)):
            way = f"--secret {name}" if SECRET.search(name) else f"-e {name}=VALUE"
            of_rank = re.fullmatch("SLURM_(PROCID|LOCALID|NTASKS|NPROCS)", name)
            way = "srun sets it for each rank; torchrun sets RANK and WORLD_SIZE" if of_rank else way
            yield f"{where} needs the variable {name}, which is not set: {way}"
    local = [(each[6:], where) for each, where in script.remote.items() if each.startswith("local.")]
    way = "" if job.backend == "k8s" else "--network host or "
    is_shared = re.match("host$|container:", job.network or "") or job.own  # a pod's containers share localhost
    is_typed = any(re.search(r"(UR[IL]|HOST|ADDR|SERVER|ENDPOINT).*=|://", f"{k}={v}") for k, v in job.env.items())
    for place, where in () if is_shared or is_typed else local:
        yield f"{where} connects to {place}, the container itself, not the host: use {way}the service's address"
    if names := [each for each in read if each in host.env and each not in known]:
        shown = ", ".join(f"{each} ({read[each]})" for each in names[:_MOST_NAMED])
        flags = " ".join(f"{'--secret' if SECRET.search(each) else '-e'} {each}" for each in names)
        yield f"the target reads {shown}, set on this machine but not in the run; to pass: {flags}"


def without_models(script: ScriptFacts, env: Mapping[str, str], mounts: Sequence[Mount], host: Host) -> Iterator[str]:
    """Yield a warning about a model that the script may not download, and that the run's cache lacks."""
    given = {name: (value, f"-e {name}") for name, value in env.items()} | script.variables
    value, where = next((given[name] for name in _OFFLINE if name in given), ("", ""))
    home = env.get("HF_HOME", "")
    mount = max((each for each in mounts if inside(home, each.target)), key=lambda each: len(each.target), default=None)
    moved = _CACHES & given.keys() or "HF_HOME" in script.variables or (home and not mount)
    if value.upper() not in ("1", "ON", "TRUE", "YES") or not script.hub_model or moved:
        return
    model, used = script.hub_model
    lacks = f"{where} forbids downloads, and the run's cache lacks {model} ({used})"
    if not mount:  # of a pod, whose cache is empty
        yield f"{lacks}; set -e HF_HOME=… to a folder of a volume that has the model"
        return
    cache, folder = mount.source / Path(home).relative_to(mount.target), f"hub/models--{model.replace('/', '--')}"
    own = Path(host.env.get("HF_HOME") or f"{host.env.get('HOME')}/.cache/huggingface")
    way = f"--mount {own}:{home}" if (own / folder).exists() else f"HF_HOME={cache} hf download {model}"
    if not (cache / folder).exists():
        yield f"{lacks}; {way}"


def _outcome(runs: Sequence[Sequence[str]], row: Mapping[str, Any], reason: str, way: str) -> tuple[str, str]:
    """Return a choice's value and reason, by the (mode, folder, place) of calls that begin a tracker's run."""
    mode, folder, where = next((each for each in runs if each[0] not in _KEYLESS), [*runs, ("", ".", "")][0])
    if mode not in _KEYLESS:
        value = "stops without a key" if {"*"} != {each[0] for each in runs} == {mode} else "by its mode"
        return value, f"{where} sets its mode; in online mode, a run without a key stops: {way}"
    reason, place = f"{where} runs it {mode}" if mode else reason, f"{folder}/" * (folder != ".")
    value, typed = row["then"].replace("./", place or "./"), place.replace(" ", r"\ ")  # of a shell
    later = row.get("later", "").replace(" wandb/", f" {typed}wandb/")
    return (mode, reason) if mode == "disabled" else (value, f"{reason}; later: {later}" if later else reason)


def _way(row: Mapping[str, Any], host: Host) -> str:
    """Return how the user can give the run what it lacks, as a phrase for the reason of a choice; "" if none can."""
    names = row.get("given", ())
    secrets = " ".join(f"--secret {name}" for name in names)
    known = next(filter(None, (login(name, host.env) for name in names)), None)
    if names and (host.env.get(names[0]) or known):
        return f"{secrets} gives it yours{f', of {known[1]}' if known and not host.env.get(names[0]) else ''}"
    if kept := row.get("kept"):
        return f"--mount ~/{kept}:{CONTAINER_HOME}/{kept} gives it yours"
    export = "; ".join(f"export {name}=…" for name in names)
    return f"{export}, and {secrets}" if names else row.get("way", "")


def service_env(
    service: ServiceSite, image: ImagePlan, injection: InjectionPlan
) -> tuple[dict[str, str], dict[str, str]]:
    """Return (variables that are added to a container of somebody else's, what its target alone gets).

    What steers the loader stays out of PID 1; Python's variables, which the agent ignores, serve health checks.
    """
    own = dict(service.environment)
    added = {**OURS, **injection.env, **injection.library_path(own, image.env)}
    added = {name: value for name, value in added.items() if name not in OURS or name not in own}
    every = {name: value for name, value in {**image.env, **own, **added}.items() if not name.startswith("PYTHON")}
    safe, target = shielded({}, every, service.filled)
    return {**added, **safe}, target


def without_steering(env: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Split off, for the target alone, the variables that steer the loader, the C library or Python."""
    steering = {name: value for name, value in env.items() if STEERING.match(name) and value != OURS.get(name)}
    return {name: value for name, value in env.items() if name not in steering}, steering


def _wished(job: Job, image: ImagePlan, injection: InjectionPlan, host: Host) -> tuple[dict[str, str], tuple[str, ...]]:
    """Merge what goes on top of the image's variables: ours, then env files, then ``--env``. Never a secret."""
    from_files = {name: value for path in job.env_files for name, value in read_env_file(path, host).items()}
    from_user = {**from_files, **job.env}
    ours = {**home_env(host.user_name), **OURS, **proxy_env(host), **injection.env}
    if job.cpus is not None:
        # torch and OpenBLAS count the host's cores, not the quota's: more threads than it grants stall each other.
        ours["OMP_NUM_THREADS"] = str(max(1, math.ceil(job.cpus)))
    env = {name: value for name, value in {**ours, **from_user}.items() if name not in job.secrets}
    env.update(injection.library_path(from_user, image.env))
    secret = (name for name in job.secrets if name in from_user)
    warnings = tuple(f"{name} is a secret: its value from --env is not used" for name in secret)
    visible, has_gpus, ours = {"CUDA_VISIBLE_DEVICES"}, injection.strategy != "none", {**injection.env}
    hijacked = sorted(from_user.keys() & (ours.keys() | visible if has_gpus else ours.keys() - visible))
    if has_gpus and from_user.get(*visible) in ("", "-1"):
        warnings += ("CUDA_VISIBLE_DEVICES, set by you, hides every GPU; --gpus none plans a run on the CPU",)
    elif hijacked:
        warnings += (f"{', '.join(hijacked)}: set by you, so the GPUs that CUDA sees may differ from the plan",)
    return env, warnings


def _unsteered(name: str, value: str, filled: Sequence[str]) -> str:
    """Return PID 1's value of an image's variable: of a path to libraries, folders that no mount fills; else "".

    An empty entry, as ``ENV LD_LIBRARY_PATH=/opt:$LD_LIBRARY_PATH`` leaves one, is the working directory (ld.so(8)).
    """
    if name != "LD_LIBRARY_PATH":
        return OURS.get(name, "")
    folders = [folder for folder in value.split(":") if folder.startswith("/")]
    return ":".join(folder for folder in folders if not any(inside(folder, target) for target in filled))
