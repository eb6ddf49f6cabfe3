"""The stages as a Compose file that ``docker compose up`` runs without seatrial: the same order, and no proof.

Each stage is a service on its own image; one that needs others waits for their successful end. Outputs are written
straight into the project, and a second ``up`` runs everything again: Compose knows neither digests nor leases.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from seatrial.errors import SeatrialError
from seatrial.job.serving import CONTAINER_PORT
from seatrial.pipelines.request import UpRequest
from seatrial.pipelines.stages.graph import Graph, Stage
from seatrial.planning.equivalent import as_yaml, compose_service
from seatrial.runs import launch

_HEAD = """\
# Written by `seatrial plan --as compose` from the stages of seatrial.toml; it needs seatrial no more.
# docker compose -f FILE up
"""

#: What a health check runs: images have no curl.
_PROBE = "import urllib.request as r; r.urlopen('http://127.0.0.1:{port}/v2/health/ready', timeout=4)"

_TO_BUILD = "# first: seatrial up {0}   # the image of {0} cannot be written as a Dockerfile; this builds it\n"


def stages_as_compose(graph: Graph, request: UpRequest, environ: Mapping[str, str]) -> str:
    """The text of the file. Raises SeatrialError naming the stage that cannot be written so."""
    services = {stage.name: _service(graph, stage, environ) for stage in graph.chosen(request.names)}
    unwritten = [name for name, service in services.items() if service.get("pull_policy") == "never"]
    return _HEAD + "".join(map(_TO_BUILD.format, unwritten)) + as_yaml({"services": services})


def _service(graph: Graph, stage: Stage, environ: Mapping[str, str]) -> dict[str, Any]:
    job = graph.job(stage, planning=True).model_copy(update={"outputs": ()})
    try:
        plan = launch.plan_only(job, environ)
        recipe = plan.image.plain_dockerfile if plan.image is not None and plan.image.build else None
        service = compose_service(plan, recipe, here=True)
    except SeatrialError as error:
        raise type(error)(f"stages.{stage.name}: {error.message}", cause=error.cause, run=error.run) from None
    if recipe is not None and plan.image is not None:  # stages of one recipe share one image, under a tag of its own
        digest = hashlib.sha256(recipe.encode()).hexdigest()[:12]
        service = {"image": f"{plan.image.tag.rpartition(':')[0]}:compose-{digest}", **service}
    if job.serve is not None:
        service["healthcheck"] = {
            "test": ["CMD", "python3", "-c", _PROBE.format(port=CONTAINER_PORT)],
            "interval": "10s", "timeout": "5s", "start_period": "120s", "retries": 3,
        }  # fmt: skip
    if stage.needs:
        service["depends_on"] = {need: {"condition": "service_completed_successfully"} for need in stage.needs}
    return service
