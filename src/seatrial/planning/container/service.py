"""Plan additions to a container that Compose makes: the agent, the GPUs' way in, labels, and nothing else.

User, network, volumes, limits and root file system stay the file's business, so the plan's ContainerPlan holds only
what the override adds (compose/override.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from seatrial.backends.containers.injection import InjectionPlan
from seatrial.backends.containers.mounts import shielded
from seatrial.errors import UsageError
from seatrial.job.in_container import AGENT_GRACE_S, AGENT_PYTHON_FLAGS, CONTAINER_AGENT, CONTAINER_PLAN, CONTAINER_RUN
from seatrial.job.model import Job
from seatrial.job.plan import Choice, ContainerPlan, ImagePlan, Mount
from seatrial.job.script import ScriptFacts
from seatrial.planning.container.env import service_env
from seatrial.planning.container.parts import WITHOUT_AGENT, planned_image, way_in
from seatrial.planning.container.plan import caller_in, container_labels, hidden_folders, plan_companion
from seatrial.planning.process import gpu_plan, selected
from seatrial.planning.site import Parts, Places, ServiceSite, Site


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
    more_env = {**places.env(), "SEATRIAL_RUN_ID": site.run_id} if image.python is None else {}
    container, target_env = _container(job, site, service, image, injected, more_env)
    warnings = injected.warnings
    companion = None
    if image.python is None:
        warnings = (*warnings, WITHOUT_AGENT)
        companion = _companion(container, site, injected) if selected(site) else None
    return Parts(
        places=places,
        argv=service.argv,
        script=None,
        gpus=gpu_plan(job, site, injected.strategy),
        keeps_checkpoints=False,
        evidence_dir=CONTAINER_RUN if image.python is None else None,
        env=target_env,
        image=image,
        container=container,
        companion=companion,
        choices=(*image_choices, Choice(what="GPU injection", value=injected.strategy, reason=injected.reason)),
        warnings=warnings,
    )


def _container(
    job: Job,
    site: Site,
    service: ServiceSite,
    image: ImagePlan,
    injected: InjectionPlan,
    more_env: Mapping[str, str],
) -> tuple[ContainerPlan, dict[str, str]]:
    """Return what is added, and the variables that only the target gets."""
    env, target_env = service_env(service, image, injected)
    ours = [*injected.mounts]
    command: tuple[str, ...] = ()
    if image.python is not None:
        command = (image.python, *AGENT_PYTHON_FLAGS, CONTAINER_AGENT, CONTAINER_PLAN)
        ours += [
            Mount(source=site.outputs, target=CONTAINER_RUN),
            Mount(source=site.agent_archive, target=CONTAINER_AGENT, read_only=True),
            Mount(source=site.record / "agent.json", target=CONTAINER_PLAN, read_only=True),
        ]
    mounts, masks = shielded(service.mounts, hidden_folders(job, site))
    return (
        ContainerPlan(
            name=f"seatrial-{site.run_id}",
            hostname=None,
            command=command,
            user=None,
            groups=injected.groups,
            workdir=service.workdir,
            env={**env, **more_env},
            mounts=(*mounts, *ours),
            tmpfs=masks,
            devices=injected.devices,
            gpus_flag=injected.gpus_flag,
            runtime=injected.runtime,
            read_only_root=service.read_only_root,
            labels=container_labels(job, site, image),
            stop_timeout_s=math.ceil(job.grace_s) + (AGENT_GRACE_S if command else 0),
        ),
        target_env,
    )


def _companion(container: ContainerPlan, site: Site, injected: InjectionPlan) -> ContainerPlan:
    """Plan the checks for a service without Python: as the caller, with the agent."""
    user, userns, _ = caller_in(site.engine, site.host.uid, site.host.gid)
    agent = (
        Mount(source=site.agent_archive, target=CONTAINER_AGENT, read_only=True),
        Mount(source=site.record / "agent.json", target=CONTAINER_PLAN, read_only=True),
    )
    return plan_companion(container, injected, site.record, user=user, userns=userns, agent=agent)
