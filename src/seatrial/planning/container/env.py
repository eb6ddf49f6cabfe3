"""Variables of a container: what its first process has, and what only the target gets, from the agent."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from seatrial.backends.containers.injection import InjectionPlan
from seatrial.backends.containers.mounts import home_env, inside
from seatrial.backends.containers.run_options import proxy_env, read_env_file
from seatrial.images.base import DEFAULT_BASE
from seatrial.job.in_container import CONTAINER_HOME
from seatrial.job.model import Job
from seatrial.job.plan import Choice, ImagePlan, Mount
from seatrial.job.reading.signs import GATED
from seatrial.job.script import ScriptFacts
from seatrial.planning.site import ServiceSite
from seatrial.system.host import HUB_TOKEN, WANDB_KEY, Host, login

#: Variables that steer the loader, the C library or Python in every process that has them: for the target, not for
#: PID 1, whose evidence such a library in the project could forge. Source: ld.so(8); glibc manual, "Environment
#: Variables"; python(1).
STEERING = re.compile(r"LD_|GLIBC_|GCONV_|MALLOC_|PYTHON|(LOCPATH|NLSPATH|HOSTALIASES|RES_OPTIONS|TZDIR)$")
OURS = {"PYTHONUNBUFFERED": "1"}  # else the last lines before a crash are lost in a buffer

#: Packages whose ``token=True`` is a login at huggingface.co.
_OF_THE_HUB = {"datasets", "diffusers", "huggingface_hub", "peft", "sentence_transformers", "transformers"}

#: Store → (its clients and kinds of paths, variables of which any is a login, the folder of one in HOME).
#: Sources: docs.cloud.google.com/docs/authentication/application-default-credentials;
#: docs.aws.amazon.com/boto3/latest/guide/credentials.html.
_STORES = {
    "Google Cloud": (r"google\.cloud(\..*)?|gcsfs|remote\.gc?s", {"GOOGLE_APPLICATION_CREDENTIALS"}, ".config/gcloud"),
    "AWS": (r"boto3|botocore|s3fs|remote\.s3a?", {"AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_ROLE_ARN"}, ".aws"),
}


def plan_env(
    job: Job, image: ImagePlan, injection: InjectionPlan, host: Host, filled: Sequence[Mount]
) -> tuple[dict[str, str], dict[str, str], tuple[str, ...]]:
    """Return PID 1's variables on top of the image's, those that the agent adds for the target alone, and warnings.

    ``filled``: mounts that the user or an earlier target may have put files into.
    """
    env, warnings = _wished(job, image, injection, host)
    container, target = without_steering(env)
    container.update(library_path(injection, {}, image.env))
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
    job: Job, script: ScriptFacts, env: Mapping[str, str], host: Host, image: ImagePlan | None = None
) -> tuple[dict[str, str], list[Choice]]:
    """Return variables for trackers that would wait for a login, and what the run lacks: it has none of this machine's.

    A tracker that a built ``image`` does not get waits for nothing.
    Source: docs.wandb.ai/platform/hosting/env-vars, WANDB_MODE; an argument of wandb.init goes before it.
    """
    variables, choices, given = dict[str, str](), [], {*env, *job.secrets}
    named = next(filter(GATED.fullmatch, (word.partition("=")[2] or word for word in job.target.args)), None)
    where, hub = script.where.get("wandb"), _OF_THE_HUB & script.where.keys() and (named or script.hub_evidence)
    locked = "".join(image.context_texts.values()) if image and job.image.base == DEFAULT_BASE else ""
    lacks = " --hash=" in locked and not re.search(r"(?m)^wandb\b", locked)
    if where is not None and not lacks and given.isdisjoint({WANDB_KEY, "WANDB_MODE"}):
        variables["WANDB_MODE"] = "offline"
        reason = f"{where} imports wandb, and the run has no key: {_way(WANDB_KEY, host)}; later: wandb sync"
        choices.append(Choice(what="Weights & Biases", value="offline, in ./wandb", reason=reason))
    if hub and given.isdisjoint({HUB_TOKEN, "HUGGING_FACE_HUB_TOKEN"}):
        reason = f"{hub} takes one, and the run has none: {_way(HUB_TOKEN, host)}"
        choices.append(Choice(what="Hugging Face", value="no token", reason=reason))
    for store, (clients, names, folder) in _STORES.items() if job.backend != "k8s" else ():
        used = next((place for name, place in script.modules.items() if re.fullmatch(clients, name)), None)
        if used and given.isdisjoint(names) and not any(each.target.endswith(f"/{folder}") for each in job.mounts):
            reason = f"{used} opens it, and the run has no login: --mount ~/{folder}:{CONTAINER_HOME}/{folder}"
            choices.append(Choice(what=store, value="no credentials", reason=f"{reason} gives it yours"))
    return variables, choices


def _way(name: str, host: Host) -> str:
    """Return how the user can give the run a secret, as a phrase for the reason of a choice."""
    if host.env.get(name):
        return f"--secret {name} gives it yours"
    known = login(name, host.env)
    return f"--secret {name} gives it yours, of {known[1]}" if known else f"export {name}=…, and --secret {name}"


def service_env(
    service: ServiceSite, image: ImagePlan, injection: InjectionPlan
) -> tuple[dict[str, str], dict[str, str]]:
    """Return (variables that are added to a container of somebody else's, what its target alone gets).

    What steers the loader stays out of PID 1; Python's variables, which the agent ignores, serve health checks.
    """
    own = dict(service.environment)
    added = {**OURS, **injection.env, **library_path(injection, own, image.env)}
    added = {name: value for name, value in added.items() if name not in OURS or name not in own}
    loaders = {name: value for name, value in {**image.env, **own, **added}.items() if not name.startswith("PYTHON")}
    safe, target = shielded({}, loaders, service.filled)
    return {**added, **safe}, target


def without_steering(env: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Split off, for the target alone, the variables that steer the loader, the C library or Python."""
    steering = {name: value for name, value in env.items() if STEERING.match(name) and value != OURS.get(name)}
    return {name: value for name, value in env.items() if name not in steering}, steering


def _wished(job: Job, image: ImagePlan, injection: InjectionPlan, host: Host) -> tuple[dict[str, str], tuple[str, ...]]:
    """Merge what goes on top of the image's variables: ours, then env files, then ``--env``. Never a secret."""
    from_user: dict[str, str] = {}
    for path in job.env_files:
        from_user.update(read_env_file(path, host))
    from_user.update(job.env)
    ours = {**home_env(host.user_name), **OURS, **proxy_env(host), **injection.env}
    if job.cpus is not None:
        # torch and OpenBLAS count the host's cores, not the quota's: more threads than it grants stall each other.
        ours["OMP_NUM_THREADS"] = str(max(1, math.ceil(job.cpus)))
    secret = [name for name in job.secrets if name in from_user]
    env = {name: value for name, value in {**ours, **from_user}.items() if name not in job.secrets}
    env.update(library_path(injection, from_user, image.env))
    warnings = tuple(f"{name} is a secret: its value from --env is not used" for name in secret)
    visible, has_gpus, ours = {"CUDA_VISIBLE_DEVICES"}, injection.strategy != "none", {**injection.env}
    hijacked = sorted(from_user.keys() & (ours.keys() | visible if has_gpus else ours.keys() - visible))
    if has_gpus and from_user.get(*visible) in ("", "-1"):
        warnings += ("CUDA_VISIBLE_DEVICES, set by you, hides every GPU; --gpus none plans a run on the CPU",)
    elif hijacked:
        warnings += (f"{', '.join(hijacked)}: set by you, so the GPUs that CUDA sees may differ from the plan",)
    return env, warnings


def library_path(
    injection: InjectionPlan, from_user: Mapping[str, str], from_image: Mapping[str, str]
) -> dict[str, str]:
    """Return LD_LIBRARY_PATH with the driver's folder last, so that an image's forward-compatibility libraries win."""
    if not injection.driver_library_folders:
        return {}
    path = from_user.get("LD_LIBRARY_PATH", from_image.get("LD_LIBRARY_PATH", ""))
    folders = [folder for folder in path.split(":") if folder and folder not in injection.driver_library_folders]
    return {"LD_LIBRARY_PATH": ":".join([*folders, *injection.driver_library_folders])}


def _unsteered(name: str, value: str, filled: Sequence[str]) -> str:
    """Return PID 1's value of an image's variable: of a path to libraries, folders that no mount fills; else "".

    An empty entry, as ``ENV LD_LIBRARY_PATH=/opt:$LD_LIBRARY_PATH`` leaves one, is the working directory (ld.so(8)).
    """
    if name != "LD_LIBRARY_PATH":
        return OURS.get(name, "")
    folders = [folder for folder in value.split(":") if folder.startswith("/")]
    return ":".join(folder for folder in folders if not any(inside(folder, target) for target in filled))
