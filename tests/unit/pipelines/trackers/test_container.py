"""What a tracker's container may see and do, read from its plan."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from seatrial.backends.base import EngineFacts
from seatrial.images.trackers import tracker_image
from seatrial.job.model import ImageOptions, Job, Target
from seatrial.pipelines.trackers import container
from seatrial.pipelines.trackers.container import Host, Wanted, container_plan
from seatrial.runs.store import RunStore

ENGINE = EngineFacts("docker", available=True, reason="docker 99 responds")
TOKEN = "a-token_of-enough-length"


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    project = tmp_path / "project"
    (project / ".seatrial").mkdir(parents=True)
    return RunStore(project, {"SEATRIAL_STATE": str(tmp_path / "state")})


def a_host(store: RunStore) -> Host:
    state = store.record.parents[1]
    return Host(1000, 1000, container.programs(state), state)


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_it_sees_little_and_listens_on_the_loopback_address(store: RunStore, name: str) -> None:
    plan = container_plan(Wanted(name, 6006, TOKEN), store, ENGINE, a_host(store), "net")  # type: ignore[arg-type]
    assert plan.publish == ("127.0.0.1:6006:8000",) and plan.network == "net" and plan.read_only_root
    assert plan.user == "1000:1000" and not plan.capabilities and not plan.devices
    writable = {mount.target for mount in plan.mounts if not mount.read_only}
    assert writable == ({"/data"} if name == "mlflow" else set())
    assert all(not mount.source.is_relative_to(store.record) for mount in plan.mounts), "records stay out of sight"
    shown = plan.model_dump_json()
    assert TOKEN not in shown and hashlib.sha256(TOKEN.encode()).hexdigest() in shown
    if name == "tensorboard":
        assert "/project/.seatrial" in {each.target for each in plan.tmpfs}


def test_a_state_folder_in_the_project_is_covered(tmp_path: Path) -> None:
    store = RunStore(tmp_path, {"SEATRIAL_STATE": str(tmp_path / "state")})
    plan = container_plan(Wanted("tensorboard", 6006, TOKEN), store, ENGINE, a_host(store), "net")
    assert "/project/state" in {each.target for each in plan.tmpfs}


def test_on_the_hosts_network_it_binds_the_loopback_address_itself(store: RunStore) -> None:
    plan = container_plan(Wanted("mlflow", 5001, TOKEN), store, ENGINE, a_host(store), "host")
    assert plan.env["SEATRIAL_LISTEN"] == "127.0.0.1:5001" and plan.publish == () and plan.network_alias is None


def test_folders_of_the_file_are_shown_too(store: RunStore) -> None:
    wanted = Wanted("tensorboard", 6006, TOKEN, ("out/tb", "runs"))
    words = container_plan(wanted, store, ENGINE, a_host(store), "net").command
    assert "out/tb=/project/out/tb" in words and words.count("runs=/project/runs") == 1
    assert "seatrial=/events" in words


def test_programs_are_a_copy_that_a_run_cannot_write(store: RunStore) -> None:
    folder = container.programs(store.record.parents[1])
    assert {path.name for path in folder.iterdir()} >= {"guard.py", "mirror.py", "tensorboard.py", "mlflow.py"}
    assert folder == container.programs(store.record.parents[1])


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_images_are_locked(tmp_path: Path, name: str) -> None:
    job = Job(project=tmp_path, target=Target(kind="recipe", value="digits"), image=ImageOptions())
    image = tracker_image(name, job)
    [lines] = [text.splitlines() for text in image.context_texts.values()]
    assert all("==" in line for line in lines) and {line.partition("==")[0] for line in lines} >= {name, "uvicorn"}
    assert "--no-deps" in (image.dockerfile or "") and "seatrial.built" in (image.dockerfile or "")
    other = job.model_copy(update={"image": ImageOptions(index_url="https://user:word@index.example/simple")})
    assert tracker_image(name, other).tag != image.tag and "word" not in (tracker_image(name, other).dockerfile or "")
