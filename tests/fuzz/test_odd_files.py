"""Paths that are not files, lead elsewhere or have no end, under every name that a plan reads."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes import load_job
from fuzz.attack import one_case
from seatrial.errors import ConfigError, TargetError
from seatrial.images.dockerfile.context import with_code
from seatrial.images.lint.check import check_dockerfile
from seatrial.images.plan import plan_image
from seatrial.job.plan import ImagePlan
from seatrial.job.script import ScriptFacts, script_facts
from seatrial.system.project_files import read_bytes, read_text

NAMES = (
    "requirements.txt",
    "pyproject.toml",
    "environment.yml",
    "environment.yaml",
    "setup.py",
    "seatrial.toml",
    "seatrial.lock",
)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def nowhere(path: Path) -> None:
    path.symlink_to("not there")


def itself(path: Path) -> None:
    path.symlink_to(path.name)


def outside(path: Path) -> None:
    secret = path.parent.parent / "secret"
    secret.write_text("ghp_0123456789abcdef\n")
    path.symlink_to("../secret")


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**34)


def no_text(path: Path) -> None:
    path.write_bytes(b"a = 1\n\xff\xfe\xfd")


def planned(project: Path) -> object:
    job = load_job(project, {"target": "train.py"})
    facts = script_facts(job.target, project)
    return plan_image(job, script=facts, cpu_only=True)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("make", [fifo, folder, device, nowhere, itself, outside, huge, no_text])
def test_a_plan_reports_what_is_wrong_with_it(project: Path, name: str, make: Callable[[Path], None]) -> None:
    make(project / name)
    error = one_case(planned, project)
    assert isinstance(error, ConfigError)
    assert name in error.message
    assert "ghp_" not in f"{error.message}{error.cause}{error.run}"
    assert error.run


@pytest.mark.parametrize("make", [fifo, device, outside, huge])
def test_uv_lock(project: Path, make: Callable[[Path], None]) -> None:
    (project / "pyproject.toml").write_text('[project]\nname = "x"\ndependencies = ["torch"]\n')
    make(project / "uv.lock")
    assert "uv.lock" in str(one_case(planned, project))


@pytest.mark.parametrize("make", [device, outside])
def test_a_script_that_leads_out(project: Path, make: Callable[[Path], None]) -> None:
    (project / "train.py").unlink()
    make(project / "train.py")
    assert isinstance(one_case(planned, project), TargetError)


@pytest.mark.parametrize("make", [fifo, folder, device, nowhere, outside, huge])
def test_an_imported_module_is_passed_over(project: Path, make: Callable[[Path], None]) -> None:
    (project / "train.py").write_text("import helper\nimport transformers\n")
    make(project / "helper.py")
    assert one_case(planned, project) is None


def test_an_imported_module_that_is_no_text_is_refused(project: Path) -> None:
    (project / "train.py").write_text("import helper\nimport transformers\n")
    no_text(project / "helper.py")
    assert "helper.py:2: (unicode error)" in str(one_case(planned, project))


def test_a_relative_import_does_not_climb_out(project: Path) -> None:
    (project.parent / "secret.py").write_text("import found_outside\n")
    lines = ("    from .. import secret", "    from ..secret import x")
    (project / "train.py").write_text("\n".join(("try:", *lines, "except ImportError:", "    pass")))
    job = load_job(project, {"target": "train.py"})
    facts = script_facts(job.target, project)
    assert (facts.imports, facts.optional_imports) == ((), ())


@pytest.mark.parametrize(
    "line", ["-r ../secret", "-c ../secret", "-r /etc/hostname", "-r inside/../../secret", "-r link"]
)
def test_requirements_include_only_the_project(project: Path, line: str) -> None:
    (project.parent / "secret").write_text("ghp_0123456789abcdef\n")
    (project / "inside").mkdir()
    (project / "link").symlink_to("../secret")
    (project / "requirements.txt").write_text(f"{line}\n")
    error = one_case(planned, project)
    assert isinstance(error, ConfigError)
    assert "points outside the project" in error.message
    assert "ghp_" not in error.message


def test_links_inside_the_project_are_followed(project: Path) -> None:
    (project / "deps").mkdir()
    (project / "deps" / "all.txt").write_text("tqdm\n")
    (project / "requirements.txt").symlink_to("deps/all.txt")
    assert "tqdm" in str(planned(project))


def test_a_project_that_is_a_link(project: Path) -> None:
    (project / "requirements.txt").write_text("tqdm\n")
    link = project.parent / "link"
    link.symlink_to(project)
    assert "tqdm" in str(planned(link))


@pytest.mark.parametrize("make", [fifo, folder, device, nowhere, itself, huge])
def test_dockerfile(project: Path, make: Callable[[Path], None]) -> None:
    make(project / "Dockerfile")
    assert "Dockerfile" in str(one_case(check_dockerfile, project / "Dockerfile"))


def test_code_that_leads_out_goes_into_no_image(project: Path) -> None:
    outside(project / "key")
    (project / "again.py").symlink_to("train.py")
    plan, _ = plan_image(load_job(project, {"target": "train.py"}), script=ScriptFacts(), cpu_only=True)
    layered: ImagePlan = with_code(plan, project)
    assert {"code/train.py", "code/again.py"} <= set(layered.context_files)
    assert "code/key" not in layered.context_files


def test_a_folder_on_the_way_that_leads_out(project: Path) -> None:
    (project.parent / "elsewhere").mkdir()
    (project.parent / "elsewhere" / "a.txt").write_text("x")
    (project / "there").symlink_to("../elsewhere")
    with pytest.raises(ConfigError, match="points outside the project"):
        read_bytes(project / "there" / "a.txt", inside=project)


def test_text_names_the_line(project: Path) -> None:
    (project / "a.txt").write_bytes(b"one\ntwo \xff\n")
    with pytest.raises(ConfigError, match=r"^a\.txt:2: not UTF-8 text"):
        read_text(project / "a.txt", inside=project)


def test_a_file_that_grows_while_it_is_read(project: Path) -> None:
    """/proc's files report 0 bytes and have more."""
    with pytest.raises(ConfigError, match="at most"):
        read_bytes(Path("/proc/self/maps"), inside=None, limit_bytes=100)
