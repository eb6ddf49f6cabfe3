"""Plan the image of a project of a few files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from seatrial.images.plan import plan_image
from seatrial.images.resolve.uv import UvResolver
from seatrial.job.model import ImageOptions, Job, Target
from seatrial.job.plan import Choice, ImagePlan
from seatrial.job.script import ScriptFacts, script_facts
from seatrial.stack.machine import TargetMachine

SCRIPT = Target(kind="script", value="train.py")


class Planned(NamedTuple):
    image: ImagePlan
    choices: tuple[Choice, ...]

    def chosen(self, what: str) -> list[str]:
        return [choice.value for choice in self.choices if choice.what == what]

    def reason(self, what: str) -> str:
        return "\n".join(choice.reason for choice in self.choices if choice.what == what)


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write each; a name that ends with a slash is an empty folder's."""
    for name, text in files.items():
        path = folder / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.write_text(text)


def planned(
    project: Path,
    files: Mapping[str, str] | None = None,
    script: ScriptFacts | None = None,
    *,
    runs: Target = SCRIPT,
    nodes: int = 1,
    cpu_only: bool = True,
    machine: TargetMachine | None = None,
    multi_gpu: bool = False,
    resolver: UvResolver | None = None,
    **image: Any,
) -> Planned:
    """Write the files and plan; ``image``: its options; without ``script`` the target is read."""
    write_files(project, files or {})
    job = Job(project=project, target=runs, image=ImageOptions.model_validate(image), nodes=nodes)
    facts = script or script_facts(runs, project)
    return Planned(
        *plan_image(job, script=facts, cpu_only=cpu_only, machine=machine, multi_gpu=multi_gpu, resolver=resolver)
    )
