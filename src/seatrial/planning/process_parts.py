"""What a process of this machine needs: an interpreter, and the GPUs by CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import os
from pathlib import Path

from seatrial.backends.containers.env_file import read_env_file
from seatrial.errors import UsageError
from seatrial.images.recipes import recipe
from seatrial.job.model import Job
from seatrial.job.reading.constants import ANY
from seatrial.job.script import ScriptFacts
from seatrial.planning.local_gpus import gpu_count, gpu_plan, selected
from seatrial.planning.local_python import choose_python
from seatrial.planning.multi_host import meeting
from seatrial.planning.ray import ray_env
from seatrial.planning.secrets import without_secrets
from seatrial.planning.site import Parts, Site
from seatrial.planning.target_command import local_places, target_argv
from seatrial.system.typed_path import as_typed


def process_parts(job: Job, site: Site, script: ScriptFacts) -> Parts:
    """Raises UsageError for a folder that is not there or not writable, ImageError when no interpreter fits."""
    _refuse_unwritable(script)
    gpus = selected(site)
    python = choose_python(job, script, site.host, cpu_only=not gpus)
    places = local_places(job, site.outputs, site.resumed.checkpoints if site.resumed else None)
    argv, script_index = target_argv(job.target, None, str(python.interpreter), places)
    from_files = {
        name: value for path in job.env_files for name, value in read_env_file(path, site.host.environ).items()
    }
    own = without_secrets({**from_files, **job.env}, job)
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in gpus)} if gpus else {}
    return Parts(
        places=places,
        argv=tuple(argv),
        script=script_index,
        gpus=gpu_plan(job, site, "host" if gpu_count(site) else "none"),
        keeps_checkpoints=job.target.kind == "recipe" and recipe(job.target.value).trains,
        evidence_dir=str(site.record),
        secrets_dir=str(site.secrets_folder) if job.secrets else None,
        meeting=meeting(job),
        env={**own, **ray_env(script.ray_evidence, None, {**site.host.environ, **own}), **python.env, **visible},
        python=str(python.interpreter),
        venv=python.venv,
        choices=python.choices,
        warnings=python.warnings,
    )


def _refuse_unwritable(script: ScriptFacts) -> None:
    """Raises UsageError: the script is certain to write where this user cannot, as late as in its last line."""
    for write in script.writes:
        if not write.certain or not write.path.startswith("/"):
            continue
        path = Path(write.path.partition(ANY)[0] + ("x" if ANY in write.path else ""))
        folder = path if write.folder and ANY not in write.path else path.parent
        nearest = next(each for each in (folder, *folder.parents) if os.path.lexists(each))
        if nearest.is_dir() and not os.access(nearest, os.W_OK):
            raise UsageError(
                f"{write}, and this user cannot write to {nearest}: the run would fail there",
                cause="--on local runs the script as this user; in a container ./models is mounted at /models",
                run=f'sudo install -d -o "$USER" {as_typed(folder)}   # or: seatrial run … --on docker',
            )
