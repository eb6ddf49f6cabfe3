"""What a process of this machine needs: an interpreter, and the GPUs by CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

from seatrial.backends.containers.env_file import read_env_file
from seatrial.images.recipes import recipe
from seatrial.job.model import Job
from seatrial.job.script import ScriptFacts
from seatrial.planning.local_gpus import gpu_count, gpu_plan, selected
from seatrial.planning.local_python import choose_python
from seatrial.planning.multi_host import meeting
from seatrial.planning.ray import ray_env
from seatrial.planning.secrets import without_secrets
from seatrial.planning.site import Parts, Site
from seatrial.planning.target_command import local_places, target_argv


def process_parts(job: Job, site: Site, script: ScriptFacts) -> Parts:
    """Raises UsageError for a folder that is not there, ImageError when no interpreter fits."""
    gpus = selected(site)
    python = choose_python(job, script, site.host, cpu_only=not gpus)
    places = local_places(job, site.outputs, site.resumed.checkpoints if site.resumed else None, site.view)
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
