"""The date of a project limits what its list leaves open, where releases of that day can be installed."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from typing import Any

import pytest

from package_indexes import Index, serving
from seatrial.images.requirements.pip_format import Needs, Requirements
from seatrial.images.resolve.answers import ResolveRequest, Unreachable
from seatrial.images.resolve.dates import dated
from seatrial.images.resolve.uv import UvResolver
from seatrial.job.script import ScriptFacts

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
        for name in ("mixed", "compiled", "before", "recent"):  # an old wheel and a newer source
            server.has(name, file := f"{name}-1.0{'.dev5' * (name in ('before', 'recent'))}-py3-none-any.whl")
            server.source(name, "2.0", {**BUILD, **({"a.c": ""} if name != "mixed" else {})})
            server.uploaded |= {file: "2018-01-01", f"{name}-2.0.tar.gz": "2021-01-01"}
        server.uploaded["recent-1.0.dev5-py3-none-any.whl"] = "2020-12-01"
        for version, day in (("1.0", "2020-01-01"), ("2.0", "2021-01-01")):  # the second needs what came later
            server.has("ahead", file := f"ahead-{version}-py3-none-any.whl")
            server.uploaded[file] = day
        server.needs["ahead-2.0"] = ("wheeled",)
        server.source("wheeled", "1.0", BUILD)
        server.has("wheeled", "wheeled-1.1-py3-none-any.whl", "wheeled-9.0-py3-none-any.whl")
        server.uploaded |= {"wheeled-1.0.tar.gz": "2020-01-01", "wheeled-1.1-py3-none-any.whl": "2022-01-01"}
        server.uploaded["wheeled-9.0-py3-none-any.whl"] = "2025-01-01"
        server.source("gap", "1.0", BUILD)
        for each in (
            "old 1.0 2016",
            "old 2.0 2018",
            "holds 1.0 2020",
            "gap 2.0 2019",
            "late 1.0 2019",
            "late 2.0 2022",
        ):
            name, version, year = each.split()
            server.has(name, file := f"{name}-{version}-py3-none-any.whl")
            server.uploaded |= {file: f"{year}-01-01", f"{name}-{version}.tar.gz": f"{year}-01-01"}
        server.source("old", "2.0", BUILD)
        server.needs |= {"holds-1.0": ("old<2",), "gap-2.0": ("late>=2",), "gapped-1.0": ("gap",)}
        server.has("gapped", "gapped-1.0-py3-none-any.whl")
        server.uploaded |= {"gapped-1.0-py3-none-any.whl": "2020-01-01", "gap-1.0.tar.gz": "2018-01-01"}
        for name in ("brings", "sourced"):
            server.has(name, file := f"{name}-1.0-py3-none-any.whl")
            server.uploaded[file] = "2020-01-01"
        server.needs |= {"brings-1.0": ("six",), "sourced-1.0": ("six", "built")}
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
        ("brings", "six==1.10 brings==1.0"),
        ("sourced", "six==1.10 sourced==1.0"),
        ("mixed", "mixed==2.0"),
        ("compiled", "compiled==1.0"),
        ("before", "before==2.0"),  # though it compiles: its only wheel is a pre-release
        ("recent", "recent==2.0"),
        ("old\nholds", "old==1.0 holds==1.0"),
        ("gapped", "gapped==1.0 gap==2.0 late==2.0"),
        ("ahead", "ahead==2.0 wheeled==1.1"),
        ("ahead\nbuilt==0.21", "ahead==2.0 wheeled==1.1 built==0.21"),
    ],
)
def test_what_is_open_is_of_the_day_if_that_can_be_installed(plan: Any, requirements: str, installed: str) -> None:
    made = plan(requirements, as_of="2021-06-01")
    texts = "\n".join([*made.context_texts.values(), *plan.chosen("from source")])
    assert all(each in texts for each in installed.split()), texts
    assert plan.chosen("as of") == ["2021-06-01"] * (installed not in ("six==1.17", "six==1.17 top==1.0"))


@pytest.mark.parametrize(("jax", "flax"), [("0.4.30", "2024-07-18"), ("0.4.1", "2023-06-02")])
def test_jax_dates_what_uses_it_and_no_other_package(jax: str, flax: str) -> None:
    lines = (f"jax=={jax}", "flax", "six")
    request = ResolveRequest(lines, python="3.11", sources=())
    found = dated(request, Needs(Requirements(lines=lines), "requirements.txt", "listed", as_of="2023-06-01"))
    own = dict(found.dates)
    assert [own.get(name, found.as_of) for name in ("flax", "etils")] == [flax] * 2
    assert own.get("six", found.as_of) == "2023-06-02"


def test_packages_of_jaxs_day_are_not_shown_as_of_the_codes(plan: Any) -> None:
    for row in ("jax 0.4.30 2024-06-18", "flax 0.6 2023-01-01", "flax 0.8 2024-06-01"):
        name, version, day = row.split()
        plan.index.has(name, file := f"{name}-{version}-py3-none-any.whl")
        plan.index.uploaded[file] = day
    made = plan("jax\nflax\nsix\n", as_of="2023-06-01")
    assert {"flax==0.8", "six==1.10"} <= {*"\n".join(made.context_texts.values()).split()}
    (row,) = (each for each in plan.made.choices if each.what == "as of")
    assert row.reason.startswith("jax, six: ")


def test_a_framework_of_the_day_that_excludes_a_package_gives_way_to_the_next_years(plan: Any) -> None:
    rows = "numpy 1.26.4 2024-01-01,torch 2.0.1 2023-05-08,torch 2.1.2 2023-12-14,torch 2.4.1 2024-09-04"
    for row in (*rows.split(","), "torch 2.13.0 2026-01-01", "picky 1.0 2024-01-01"):
        name, version, day = row.split()
        plan.index.has(name, file := f"{name}-{version}-py3-none-any.whl")
        plan.index.uploaded[file] = day
    for torch, vision in (("2.0.1", "0.15.2"), ("2.1.2", "0.16.2"), ("2.4.1", "0.19.1"), ("2.13.0", "0.28.0")):
        plan.index.has("torchvision", f"torchvision-{vision}-py3-none-any.whl")
        plan.index.needs[f"torchvision-{vision}"] = (f"torch=={torch}",)
    plan.index.needs["picky-1.0"] = ("torch!=2.1.2",)
    assert plan("torch\ntorchvision\npicky==1.0\n", as_of="2024-01-15").stack["torch"] == "2.4.1"


def test_a_package_that_needs_an_older_torch_is_of_torchs_day_and_not_an_ancient_one(plan: Any) -> None:
    of_torch = ("torch 2.2.0 2024-01-30", "numpy 1.19.5 2021-01-05")
    for row in (*of_torch, "fits 1.0 2017-01-01", "fits 2.0 2021-01-01", "fits 2.1 2024-02-01"):
        name, version, day = row.split()
        plan.index.has(name, file := f"{name}-{version}-py3-none-any.whl")
        plan.index.uploaded[file] = day
    plan.index.needs |= {"fits-2.0": ("torch<2",), "fits-2.1": ("torch<3", "six>=1.17")}
    made = plan("torch==2.2.0\nfits\nlate\n", as_of="2021-06-01")
    assert {"fits==2.1", "six==1.17", "late==1.0"} <= {*"\n".join(made.context_texts.values()).split()}


def test_the_days_newest_release_does_not_make_another_listed_package_ancient(plan: Any) -> None:
    for row in ("hub 0.9 2020-12-01", "hub 1.0 2021-02-01", "user 1.0 2017-01-01", "user 2.0 2021-01-01"):
        name, version, day = row.split()
        plan.index.has(name, file := f"{name}-{version}-py3-none-any.whl")
        plan.index.uploaded[file] = day
    plan.index.needs["user-2.0"] = ("hub<1",)
    made = plan("user\nhub\n", as_of="2021-06-01")
    assert {"user==2.0", "hub==0.9"} <= {*"\n".join(made.context_texts.values()).split()}


def test_a_day_before_packages_had_wheels_for_the_python_is_not_that_of_the_packages(plan: Any) -> None:
    plan("six", as_of="2018-06-01")
    assert plan.chosen("as of") == ["2020-02-14"]


@pytest.mark.parametrize(("age_days", "release"), [(1, "1.17"), (900, "1.10"), (20_000, "1.17")])
def test_day_is_that_of_the_newest_file_unless_it_is_recent_or_unknown(plan: Any, age_days: int, release: str) -> None:
    (script := plan.project / "train.py").write_text("import six\n")
    (plan.project / "requirements.txt").write_text("six")
    plan.index.uploaded["six-1.17-py3-none-any.whl"] = time.strftime("%Y-%m-%d")
    for each in (script, plan.project / "requirements.txt"):
        os.utime(each, (then := time.time() - age_days * 86_400, then))
    assert f"six=={release}" in "\n".join(plan("").context_texts.values())


def test_a_slow_index_takes_no_day_away_in_silence(plan: Any) -> None:
    plan.index.delay_s, plan.limit_s = 2.0, 1.0
    made = plan("six", as_of="2021-06-01")
    assert "did not answer within 1 s" in "".join(made.warnings)
    plan.index.delay_s, plan.limit_s = 0.0, 30.0
    assert "six==1.10" in "\n".join(plan("six", as_of="2021-06-01").context_texts.values())


def test_a_lock_whose_newer_releases_no_index_named_is_not_remembered(
    plan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as silent:
        silent.setattr(UvResolver, "_newest", lambda *_: Unreachable("no index answered"))
        made = plan("ahead", as_of="2021-06-01")
        assert "no index answered" in "".join(made.warnings) and "ahead==1.0" not in str(made.context_texts)
    assert "ahead==2.0" in "\n".join(plan("ahead", as_of="2021-06-01").context_texts.values())


@pytest.mark.parametrize(
    ("page", "requirements", "installed", "row"),
    [
        ("## Requirements\n- six 1.10\n", "six", "six==1.10", "six 1.10 (README.md:2)"),
        ("Tested with six (1.10)", "brings", "six==1.10", "six 1.10 (README.md:1)"),
        ("## Requirements\n- six 1.12\n", "six", "six==1.17", "none"),
        ("## Requirements\n- six 1.10\n", "six==1.17", "six==1.17", ""),
        ("## Requirements\n- six>=1.10\n", "six", "six==1.17", ""),
    ],
)
def test_releases_of_a_readme_come_before_newer_ones(
    plan: Any, page: str, requirements: str, installed: str, row: str
) -> None:
    (plan.project / "README.md").write_text(page)
    assert installed in "\n".join(plan(requirements).context_texts.values())
    assert plan.chosen("named releases") == [row] * bool(row)


def test_python_of_a_release_that_a_readme_names_has_its_reason(plan: Any) -> None:
    plan.index.wheels("tokenizers", "0.10.3", "38 39")
    plan.index.wheels("tokenizers", "0.13.3", "38 39 310 311")
    (plan.project / "README.md").write_text("## Requirements\n- tokenizers 0.10.3\n")
    assert plan("tokenizers").base == "python:3.9-slim-bookworm"
    assert plan.made.reason("python") == "tokenizers 0.10.3 (README.md:2) has no wheel for Python 3.11"


@pytest.mark.parametrize(
    ("requirements", "installed"),
    [
        ("brings==1.0", "six==1.10"),
        ("brings==1.0\nundated", "six==1.17"),
        ("brings==1.0\nsix", "six==1.17"),
        ("brings==1.0\ntop==1.0", "six==1.17"),
    ],
)
def test_what_pins_require_is_as_old_as_the_newest_pin(plan: Any, requirements: str, installed: str) -> None:
    assert installed in "\n".join(plan(requirements).context_texts.values())


@pytest.mark.parametrize(("page", "python"), [("3.9", "3.9"), ("3.6.12", "3.8"), ("3.9 or newer", ""), ("3.99", "")])
def test_python_of_a_readme_comes_first(plan: Any, page: str, python: str) -> None:
    (plan.project / "README.md").write_text(f"Tested on Python {page}")
    plan("six")
    assert plan.chosen("python") == [python] * bool(python)


@pytest.mark.parametrize(
    ("requirements", "installed"),
    [
        ("early\nlimit", "early==1.0"),  # uv takes the pre-release, whose requirements fit
        ("early>=2.0rc1\nlimit", "early==2.0rc1"),
        ("only", "only==0.1b1"),
    ],
)
def test_a_pre_release_is_chosen_only_where_there_is_no_other(plan: Any, requirements: str, installed: str) -> None:
    for name, *versions in (("early", "1.0", "2.0rc1"), ("limit", "1.0", "2.0"), ("only", "0.1b1")):
        plan.index.has(name, *(f"{name}-{version}-py3-none-any.whl" for version in versions))
    plan.index.needs |= {"early-1.0": ("limit<2", "built"), "early-2.0rc1": ("limit<3",)}  # built has no wheel
    made = plan(requirements)
    assert installed in "\n".join(made.context_texts.values())


def test_a_pre_release_stays_where_the_list_fits_no_other(plan: Any) -> None:
    plan.index.has("early", "early-1.0-py3-none-any.whl", "early-2.0rc1-py3-none-any.whl")
    plan.index.has("limit", "limit-1.0-py3-none-any.whl", "limit-2.0-py3-none-any.whl")
    plan.index.needs["early-1.0"] = ("limit<2",)
    assert "early==2.0rc1" in "\n".join(plan("early\nlimit==2.0").context_texts.values())


def test_a_package_is_not_older_for_a_dependency_without_a_wheel(plan: Any) -> None:
    for version, day in (("1.0", "2020-01-01"), ("2.0", "2023-01-01")):
        plan.index.has("config", file := f"config-{version}-py3-none-any.whl")
        plan.index.uploaded[file] = day
    plan.index.needs |= {"config-1.0": ("six<1.17",), "config-2.0": ("six<1.17", "built")}
    made = plan("config\nsix")
    assert {"config==2.0", "six==1.10"} <= {*"\n".join(made.context_texts.values()).split()}
    assert plan.chosen("from source") == ["built"]


def test_a_newer_package_gives_way_although_an_old_release_of_its_rival_has_no_wheel(plan: Any) -> None:
    for each in ("models-1.1", "models-1.3", "hub-0.9", "hub-1.2"):
        plan.index.has(each.partition("-")[0], file := f"{each}-py3-none-any.whl")
        plan.index.uploaded[file] = "2024-01-01"
    plan.index.needs |= {"models-1.1": ("hub<1",), "models-1.3": ("hub<1",)}
    plan.index.source("models", "1.2", BUILD)
    plan.index.uploaded["models-1.2.tar.gz"] = "2024-01-01"
    made = plan("models<2\nhub\n", as_of="2024-06-01")
    assert {"models==1.3", "hub==0.9"} <= {*"\n".join(made.context_texts.values()).split()}
    assert not plan.chosen("from source")


@pytest.mark.parametrize(("listed", "installed"), [("tqdm", "1.0"), ("tqdm==2.0", "2.0")])
def test_a_release_that_a_page_installs_gives_way_to_the_list(plan: Any, listed: str, installed: str) -> None:
    for version in ("1.0", "2.0"):
        for name in ("tqdm", "xformers"):
            plan.index.has(name, f"{name}-{version}-py3-none-any.whl")
        plan.index.needs[f"xformers-{version}"] = (f"tqdm=={version}",)
    (plan.project / "README.md").write_text("```\npip install xformers==1.0\n```\n")
    script = ScriptFacts(imports=("tqdm", "xformers"), where={"xformers": "train.py:1"})
    assert f"xformers=={installed}" in "\n".join(plan(listed, script).context_texts.values())


@pytest.mark.parametrize(("bound", "installed"), [("six", "peft==0.1"), ("six>1.17", "git+https://")])
def test_a_repository_without_a_commit_is_of_the_day_of_the_pins_if_that_fits(
    plan: Any, bound: str, installed: str
) -> None:
    for version, day in (("0.1", "2020-02-01"), ("0.9", "2024-01-01")):
        plan.index.has("peft", file := f"peft-{version}-py3-none-any.whl")
        plan.index.uploaded[file] = day
    plan.index.needs["peft-0.1"] = (bound,)
    texts = plan("brings==1.0\ngit+https://github.com/huggingface/peft.git\n").context_texts.values()
    assert installed in "\n".join(texts)
