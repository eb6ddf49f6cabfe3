"""The image of a cluster's pods: built by an engine of this machine, or a ready one that may not be here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from seatrial.backends import table
from seatrial.backends.base import ImageFacts
from seatrial.backends.kubernetes.survey import ClusterFacts
from seatrial.errors import ImageError, SeatrialError
from seatrial.images.plan import plan_image
from seatrial.images.requirements.pinned_pythons import index_door
from seatrial.job.model import Job
from seatrial.job.plan import Choice, ImagePlan
from seatrial.job.script import ScriptFacts
from seatrial.planning.cluster.machine import cluster_machine


def cluster_image(
    job: Job, script: ScriptFacts, facts: ClusterFacts, environ: Mapping[str, str], cache_folder: Path
) -> tuple[ImagePlan, tuple[Choice, ...]]:
    """For the newest GPUs and the oldest driver of the nodes. Raises ImageError, as ``_ready``."""
    request = job.gpus
    cpu_only = request.kind == "none" or (
        request.kind == "auto" and not any(node.allocatable for node in facts.nodes or ())
    )
    image, choices = plan_image(
        job,
        script=script,
        cpu_only=cpu_only,
        machine=cluster_machine(facts, job.kubernetes.node_selector),
        multi_gpu=request.kind == "all" or (request.count or 0) > 1 or script.multi_gpu_evidence is not None,
        door=index_door(job, cache_folder, environ),
    )
    return (image if image.build else _ready(job, image, environ)), choices


def _ready(job: Job, image: ImagePlan, environ: Mapping[str, str]) -> ImagePlan:
    """What a ready image says of itself, where an engine here has it. An image's own command must be known: the agent
    starts it.

    Raises ImageError when it is not.
    """
    facts = _facts_here(image.tag, environ)
    if facts is None and job.target.kind == "image" and not job.target.args:
        raise ImageError(
            f"The command of {image.tag} is unknown: no engine on this machine has it",
            cause="the agent starts the image's command, so it needs to know it",
            run=f"seatrial run --image {image.tag} … -- COMMAND   # or: docker pull {image.tag}",
        )
    known = {"entrypoint": facts.entrypoint, "cmd": facts.cmd, "env": facts.env} if facts else {}
    return image.model_copy(update={"python": job.image.python or "python3", **known})


def _facts_here(tag: str, environ: Mapping[str, str]) -> ImageFacts | None:
    for name in table.ENGINES:
        try:
            if (facts := table.engine(name, environ).images.image(tag)) is not None:
                return facts
        except SeatrialError:
            continue
    return None
