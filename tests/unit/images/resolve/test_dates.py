"""The date of a project limits what its list leaves open, where releases of that day can be installed."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from typing import Any

import pytest

from package_indexes import Index, serving

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the wheels are for x86-64")
BUILD = {"setup.py": "", "pyproject.toml": "[build-system]\nrequires = []\n"}


@pytest.fixture
def index() -> Iterator[Index]:
    with serving() as server:
        for name, *releases in (("six", "1.10 2020-01-01", "1.17 2024-01-01"), ("young", "3.0 2024-01-01")):
            for version, day in map(str.split, releases):
                server.has(name, file := f"{name}-{version}-py3-none-any.whl")
                server.uploaded[file] = day
        for version, day in (("0.21", "2021-01-01"), ("0.26", "2022-10-01")):
            server.source("built", version, BUILD)
            server.uploaded[f"built-{version}.tar.gz"] = day
        server.has("undated", "undated-1.0-py3-none-any.whl", "undated-2.0-py3-none-any.whl")
        server.needs["top-1.0"] = ("six>=1.17",)
        server.has("top", "top-1.0-py3-none-any.whl")
        server.uploaded["top-1.0-py3-none-any.whl"] = "2021-01-01"
        yield server


@pytest.mark.parametrize(
    ("requirements", "installed"),
    [
        ("six", "six==1.10"),
        ("six>=1.17", "six==1.17"),
        ("six==1.17", "six==1.17"),
        ("six\nyoung", "six==1.10 young==3.0"),
        ("six\nundated", "six==1.10 undated==2.0"),
        ("six\nbuilt", "six==1.10 built==0.21"),
        ("six\ntop", "six==1.17 top==1.0"),
    ],
)
def test_what_is_open_is_of_the_day_if_that_can_be_installed(plan: Any, requirements: str, installed: str) -> None:
    made = plan(requirements, as_of="2021-06-01")
    texts = "\n".join([*made.context_texts.values(), *plan.chosen("from source")])
    assert all(each in texts for each in installed.split()), texts
    assert plan.chosen("as of") == ["2021-06-01"] * ("six==1.10" in installed)


@pytest.mark.parametrize(("age_days", "release"), [(1, "1.17"), (900, "1.10"), (20_000, "1.17")])
def test_day_is_that_of_the_newest_file_unless_it_is_recent_or_unknown(plan: Any, age_days: int, release: str) -> None:
    (script := plan.project / "train.py").write_text("import six\n")
    (plan.project / "requirements.txt").write_text("six")
    plan.index.uploaded["six-1.17-py3-none-any.whl"] = time.strftime("%Y-%m-%d")
    for each in (script, plan.project / "requirements.txt"):
        os.utime(each, (then := time.time() - age_days * 86_400, then))
    assert f"six=={release}" in "\n".join(plan("").context_texts.values())
