"""Mounts: no link that a script could have made points outside the project."""

from pathlib import Path

import pytest

from seatrial.backends.containers.mounts import check_sources, make_folder_inside, real_source
from seatrial.errors import UntrustedPathError, UsageError
from seatrial.job.plan import Mount


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project" / "data").mkdir(parents=True)
    (tmp_path / "secrets").mkdir()
    return tmp_path / "project"


def real(source: Path, project: Path) -> Path:
    return real_source(source, project, "--data", state=project.parent / "state")


@pytest.mark.parametrize("way", ["link", "folder/link", "link/below", "data/../link", "chain"])
def test_a_link_out_of_the_project_is_refused(project: Path, tmp_path: Path, way: str) -> None:
    (project / "folder").mkdir()
    (tmp_path / "secrets" / "below").mkdir()
    for name in ("link", "folder/link"):
        (project / name).symlink_to(tmp_path / "secrets")
    (project / "chain").symlink_to("folder/link")
    with pytest.raises(UsageError, match="points outside the project") as refused:
        real(project / way, project)
    assert str(tmp_path / "secrets") in refused.value.message


@pytest.mark.parametrize("way", ["state", "state/projects", "link-to-state"])
def test_the_state_folder_is_nobodys_data(project: Path, tmp_path: Path, way: str) -> None:
    (tmp_path / "state" / "projects").mkdir(parents=True)
    (tmp_path / "link-to-state").symlink_to("state")
    with pytest.raises(UsageError, match="state folder"):
        real(tmp_path / way, project)


def test_a_ring_of_links_is_no_traceback(project: Path) -> None:
    (project / "ring").symlink_to("ring")
    (project / "there").symlink_to("back")
    (project / "back").symlink_to("there")
    for name in ("ring", "there", "ring/below"):
        source = real(project / name, project)
        with pytest.raises(UntrustedPathError):
            check_sources([Mount(source=source, target="/data")], project)


def test_what_became_a_link_after_the_plan_is_refused_at_the_start(project: Path, tmp_path: Path) -> None:
    (project / "a" / "b").mkdir(parents=True)
    mounts = [
        Mount(source=project / "data", target="/data"),
        Mount(source=project / "a" / "b", target="/b"),
        Mount(source=project, target="/workspace"),
        Mount(source=project / "not there", target="/c"),
        Mount(source=tmp_path / "secrets", target="/d"),
    ]
    check_sources(mounts, project)
    (project / "data").rename(project / "moved")
    (project / "data").symlink_to(tmp_path / "secrets")
    with pytest.raises(UntrustedPathError, match="became a symlink"):
        check_sources(mounts, project)
    (project / "data").unlink()
    (project / "a").rename(project / "moved again")
    (project / "a").symlink_to(tmp_path)
    with pytest.raises(UntrustedPathError, match="is a symlink"):
        check_sources(mounts, project)


def test_folders_are_made_in_the_project_through_no_link(project: Path, tmp_path: Path) -> None:
    assert make_folder_inside(project / "x" / "y", project) and (project / "x" / "y").is_dir()
    assert make_folder_inside(project, project)
    assert not make_folder_inside(tmp_path / "elsewhere", project)
    (project / "out").symlink_to(tmp_path / "secrets")
    with pytest.raises(UntrustedPathError):
        make_folder_inside(project / "out" / "planted", project)
    assert list((tmp_path / "secrets").iterdir()) == [] and not (tmp_path / "elsewhere").exists()
