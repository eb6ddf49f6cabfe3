"""A project that is planned with uv and an index of this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from image_plans import SCRIPT, planned
from package_indexes import Index
from seatrial.errors import ConfigError, GpuContractError
from seatrial.images.resolve.uv import UvResolver
from seatrial.job.plan import ImagePlan
from seatrial.job.script import ScriptFacts
from seatrial.system.host import Host

NOTHING = ScriptFacts()


class Planner:
    """Plan a project with these requirements; ``mirror`` is PyTorch's index, by default without an answer."""

    def __init__(self, project: Path, index: Index) -> None:
        self.project, self.index, self.mirror = project, index, "http://127.0.0.1:9"
        self.environ = {"PIP_INDEX_URL": index.url, "PIP_CONFIG_FILE": os.devnull}
        self.limit_s = 30.0
        self.target = SCRIPT

    def __call__(self, requirements: str, /, script: ScriptFacts = NOTHING, **image: Any) -> ImagePlan:
        files = {"requirements.txt": requirements} if requirements else {}
        options = {"torch_index": self.mirror, **image}
        resolver = UvResolver(self.project / "cache", Host(self.environ), limit_s=self.limit_s)
        self.made = planned(self.project, files, script, resolver=resolver, runs=self.target, **options)
        assert all(choice.reason for choice in self.made.choices)
        return self.made.image

    def chosen(self, what: str) -> list[str]:
        return self.made.chosen(what)

    def refused(self, requirements: str, script: ScriptFacts = NOTHING) -> str:
        with pytest.raises((ConfigError, GpuContractError)) as caught:
            self(requirements, script)
        assert caught.value.run
        return "\n".join(map(str, (caught.value.message, caught.value.cause, caught.value.run)))


@pytest.fixture
def plan(tmp_path: Path, index: Index) -> Planner:
    return Planner(tmp_path, index)
