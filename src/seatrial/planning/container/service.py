"""Plan additions to a container that Compose makes: the agent, the GPUs' way in, labels, and nothing else.

User, network, volumes, limits and root file system stay the file's business, so the plan's ContainerPlan holds only
what the override adds (compose/override.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from seatrial.backends.containers.mounts import shielded
from seatrial.errors import UsageError
from seatrial.job.in_container import (
    AGENT_GRACE_S,
    AGENT_PYTHON_FLAGS,
    CONTAINER_AGENT,
    CONTAINER_PLAN,
    CONTAINER_RUN,
    PYTHON_COMMAND,
)
from seatrial.job.model import Job
from seatrial.job.plan import Choice, ContainerPlan
from seatrial.job.script import ScriptFacts
from seatrial.planning.container.env import service_env
from seatrial.planning.container.env import shielded as unsteered
from seatrial.planning.container.parts import planned_image, way_in
from seatrial.planning.container.plan import agent_command, agent_mounts, container_labels, hidden_folders
from seatrial.planning.process import gpu_plan, selected
from seatrial.planning.site import Parts, Places, Site


def service_parts(job: Job, site: Site, script: ScriptFacts) -> Parts:
    """Raises UsageError: the service has nothing to run."""
    service = site.service
    assert service is not None
    if not service.argv:
        raise UsageError(
            f"The service {service.name} has no command, and neither has its image", run="docker compose config"
        )
    image, image_choices = planned_image(job, site, script, selected(site))
    injected = way_in(job, site)
    places = Places(project=service.workdir, run=CONTAINER_RUN, data=None, models=None, resume=None)
    env, target_env = service_env(service, image, injected)
    mounts, masks = shielded(service.mounts, hidden_folders(job, site))
    container = ContainerPlan(
        name=f"seatrial-{site.run_id}",
        hostname=None,
        command=agent_command(site, image),
        user=None,
        groups=injected.groups,
        workdir=service.workdir,
        env=env,
        mounts=(*mounts, *injected.mounts, *agent_mounts(site)),
        tmpfs=masks,
        devices=injected.devices,
        gpus_flag=injected.gpus_flag,
        runtime=injected.runtime,
        read_only_root=service.read_only_root,
        labels=container_labels(job, site),
        stop_timeout_s=math.ceil(job.grace_s) + AGENT_GRACE_S,
    )
    return Parts(
        places=places,
        argv=service.argv,
        script=None,
        gpus=gpu_plan(job, site, injected.strategy),
        keeps_checkpoints=False,
        env=target_env,
        image=image,
        container=container,
        choices=(*image_choices, Choice(what="GPU injection", value=injected.strategy, reason=injected.reason)),
        warnings=injected.warnings,
    )


def compared(job: Job, site: Site, env: Mapping[str, str]) -> tuple[ContainerPlan, dict[str, str]]:
    """Return what a service that becomes no run gets to compare its mounts, and what its command gets back of ``env``.

    Args:
        env: the image's.
    """
    service = site.service
    assert service is not None
    loaders = {name: value for name, value in {**env, **service.environment}.items() if not name.startswith("PYTHON")}
    safe, back = unsteered(service.environment, loaders, service.filled)
    mounts, masks = shielded(service.mounts, hidden_folders(job, site))
    container = ContainerPlan(
        name=service.name,
        hostname=None,
        command=(*PYTHON_COMMAND, *AGENT_PYTHON_FLAGS, CONTAINER_AGENT, CONTAINER_PLAN, *service.argv),
        user=None,
        workdir=service.workdir,
        env=safe,
        mounts=(*mounts, *(mount for mount in agent_mounts(site) if mount.read_only)),
        tmpfs=masks,
    )
    return container, back
