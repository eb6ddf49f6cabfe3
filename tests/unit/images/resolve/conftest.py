"""A project that is planned with uv and an index of this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from package_indexes import Index
from seatrial.errors import ConfigError, GpuContractError
from seatrial.images.plan import plan_image
from seatrial.images.resolve.uv import UvResolver
from seatrial.job.model import ImageOptions, Job, Target
from seatrial.job.plan import Choice, ImagePlan
from seatrial.job.script import ScriptFacts
from seatrial.system.host import Host


class Planner:
    """Plan a project with these requirements; ``mirror`` is PyTorch's index, by default without an answer."""

    def __init__(self, project: Path, index: Index) -> None:
        self.project, self.index, self.mirror = project, index, "http://127.0.0.1:9"
        self.environ = {"PIP_INDEX_URL": index.url, "PIP_CONFIG_FILE": os.devnull}
        self.limit_s = 30.0
        self.choices: tuple[Choice, ...] = ()

    def __call__(
        self, requirements: str, *, imports: tuple[str, ...] = (), gpu: str | None = None, **image: object
    ) -> ImagePlan:
        (self.project / "requirements.txt").write_text(requirements)
        options = ImageOptions.model_validate({"torch_index": self.mirror, "target": gpu, **image})
        job = Job(project=self.project, target=Target(kind="script", value="train.py"), image=options)
        resolver = UvResolver(self.project / "cache", Host(self.environ), limit_s=self.limit_s)
        facts = ScriptFacts(imports=imports)
        plan, self.choices = plan_image(job, script=facts, cpu_only=gpu is None, resolver=resolver)
        return plan

    def chosen(self, what: str) -> list[str]:
        return [choice.value for choice in self.choices if choice.what == what]

    def refused(self, requirements: str, **more: object) -> str:
        with pytest.raises((ConfigError, GpuContractError)) as caught:
            self(requirements, **more)  # type: ignore[arg-type]
        assert caught.value.run
        return "\n".join(map(str, (caught.value.message, caught.value.cause, caught.value.run)))


@pytest.fixture
def plan(tmp_path: Path, index: Index) -> Planner:
    return Planner(tmp_path, index)
