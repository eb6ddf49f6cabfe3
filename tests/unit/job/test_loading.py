"""seatrial.toml and flags → Job: every kind of value, what is refused, and jobs of earlier versions."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from fakes import load_job
from seatrial.errors import ConfigError, SeatrialError, UsageError
from seatrial.job.cluster import Volume
from seatrial.job.flags import in_tables
from seatrial.job.gpu_request import GpuRequest
from seatrial.job.keys import Mount, holds, typed_keys
from seatrial.job.model import ConfigFile, Criteria, DataMount, Job, Target, json_schema
from seatrial.job.value import Value
from tables import cases, constant


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "images.bin").write_bytes(b"x")
    (folder / "empty").mkdir()
    (folder / "train.py").touch()
    (folder / "other.py").touch()
    return folder


def load(project: Path, toml: str = "", **flags: Any) -> Job:
    (project / "seatrial.toml").write_text(toml)
    if not {"target", "module"} & set(flags) and "target" not in toml and "module" not in toml:
        flags["target"] = "train.py"
    return load_job(project, flags, recipes=("mnist",), cwd=project)


EXAMPLE = """
name = "baseline"
target = "train.py"
args = ["--epochs", "5"]
on = "docker"
gpus = 2
data = "./data"
models = "./models"
memory = "16GB"
shm_size = "4g"
gpu_memory = "4GB"
timeout = "2h"
secrets = ["HF_TOKEN"]
[env]
OMP_NUM_THREADS = 4
[image]
base = "python:3.11-slim-bookworm"
system_packages = ["gcc"]
[criteria]
mean_utilization = 70
finished_within = "10m"
max_image_size = "4GB"
model = "models/*.pth"
test_accuracy = ">= 0.985"
[watch]
hang_after = "10m"
command = "true"
[notify]
command = 'notify-send seatrial "$SEATRIAL_MESSAGE"'
[sweep]
search = "tpe"
trials = 40
metric = "accuracy:max"
[sweep.set]
lr = "log:1e-5..1e-1"
batch = [32, 64, 128]
"""


def test_every_kind_of_key_is_read(project: Path) -> None:
    job = load(project, EXAMPLE)
    assert job.target == Target(kind="script", value="train.py", args=("--epochs", "5"))
    assert job.gpus == GpuRequest("count", 2)
    assert job.data == DataMount(source=project / "data", read_only=True)
    assert job.models == DataMount(source=project / "models", read_only=False)
    assert (job.memory_bytes, job.shm_bytes, job.timeout_s) == (16_000_000_000, 4 * 2**30, 7200)
    assert job.env == {"OMP_NUM_THREADS": "4"}
    assert job.image.system_packages == ("gcc",)
    assert job.criteria == Criteria(
        mean_utilization_pct=70,
        finished_within_s=600,
        max_image_bytes=4_000_000_000,
        model=("models/*.pth",),
        metrics={"test_accuracy": ">= 0.985"},
    )


def test_flags_win_lists_add_up_tables_merge(project: Path) -> None:
    toml = """
        gpus = 2
        publish = ["80:80"]
        writable = true
        [env]
        A = "file"
        B = 2
        [criteria]
        accuracy = ">= 0.9"
        mean_utilization = false
    """
    flags = {"publish": ("81:81",), "writable": None, "env": ("A=flag", "C=a=b"), "criteria": {"finished_within": "5m"}}
    job = load(project, toml, gpus="device=0,2", **flags)
    assert (str(job.gpus), job.publish, job.writable) == ("device=0,2", ("80:80", "81:81"), True)
    assert job.env == {"A": "flag", "B": "2", "C": "a=b"}
    assert job.criteria == Criteria(mean_utilization_pct=None, finished_within_s=300, metrics={"accuracy": ">= 0.9"})


@cases("operator", "below", "at", "above")
def test_every_operator_that_is_judged_can_be_configured(
    project: Path, operator: str, below: bool, at: bool, above: bool
) -> None:
    condition = load(project, f"[criteria]\nbad_samples = '{operator} 3'").criteria.metrics["bad_samples"]
    assert [holds(condition, value) for value in (2.0, 3.0, 4.0)] == [below, at, above]


def test_a_target_on_the_command_line_brings_its_own_arguments(project: Path) -> None:
    toml = 'target = "train.py"\nargs = ["--epochs", "5"]'
    assert load(project, toml).target.args == ("--epochs", "5")
    assert load(project, toml, args=("--epochs", "1")).target.args == ("--epochs", "1")
    assert load(project, toml, target="other.py").target == Target(kind="script", value="other.py")


def test_paths_of_the_file_and_of_flags_count_from_their_own_folders(project: Path, tmp_path: Path) -> None:
    here = tmp_path / "here"
    (here / "data").mkdir(parents=True)
    (here / "data" / "x").touch()
    (project / "seatrial.toml").write_text('target = "train.py"\ndata = "data:rw"\nmounts = ["data:/extra:ro"]')
    assert load_job(project, {}, cwd=here).data == DataMount(source=project / "data", read_only=False)
    job = load_job(project, {"data": "data", "mounts": ["data:/more"]}, cwd=here)
    assert job.data == DataMount(source=here / "data", read_only=True)
    assert job.mounts == (
        Mount(source=project / "data", target="/extra", read_only=True),
        Mount(source=here / "data", target="/more"),
    )


BAD = {name: constant(__file__, name) for name in ("BAD_FILES", "BAD_FLAGS")}


@pytest.mark.parametrize("name", BAD["BAD_FILES"])
def test_bad_files(project: Path, name: str, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(ConfigError) as caught:
        load(project, BAD["BAD_FILES"][name])
    assert reported(caught.value, project) == snapshot


@pytest.mark.parametrize("name", BAD["BAD_FLAGS"])
def test_bad_flags(project: Path, name: str, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(UsageError) as caught:
        load(project, **BAD["BAD_FLAGS"][name])
    assert reported(caught.value, project) == snapshot


def reported(error: UsageError, project: Path) -> dict[str, str | None]:
    texts = {"type": type(error).__name__, "message": error.message, "cause": error.cause, "run": error.run}
    return {key: text and text.replace(str(project), "PROJECT") for key, text in texts.items()}


def test_two_files_are_one_too_many(project: Path) -> None:
    (project / "pyproject.toml").write_text("[tool.seatrial]\ngpus = 1")
    with pytest.raises(ConfigError, match="keep one of them"):
        load(project, "gpus = 1")


def test_the_file_can_report_all_that_a_job_holds() -> None:
    own = {"project", "hosts", "node_rank", "asks", "outputs", "own", "serve", "tuning"}
    assert set(ConfigFile.model_fields) - {"module", "args", "sweep"} == set(Job.model_fields) - own


def test_the_schema_names_every_key_and_is_json() -> None:
    schema = json.loads(json.dumps(json_schema()))
    assert set(schema["properties"]) == set(typed_keys(ConfigFile))
    assert all({"description", "$ref"} & set(entry) for entry in schema["properties"].values())


READ = constant(__file__, "READ")
REFUSED = constant(__file__, "REFUSED")


@pytest.mark.parametrize("line", ['data = "nix"', 'env_files = ["nix"]', 'target = "nix.py"'])
def test_what_is_missing_is_reported_for_the_file_that_names_it(project: Path, line: str) -> None:
    (project / "train.py").touch()
    with pytest.raises(SeatrialError) as caught:
        load(project, line)
    assert caught.value.message.startswith("seatrial.toml: ")
    key, _, value = line.partition(" = ")
    with pytest.raises(SeatrialError) as caught:
        load(project, "gpus = 1", **{key: json.loads(value)})
    assert "seatrial.toml" not in caught.value.message


def loaded(project: Path, key: str, value: Any, *, typed: bool) -> Any:
    """The job with this value in the file, or typed as a flag."""
    table, _, name = key.rpartition(".")
    value = [value] if key in ("devices", "ulimits", "publish") else value
    (project / "train.py").write_text("")
    line = f"{name} = {json.dumps(value)}\n"
    (project / "seatrial.toml").write_text("" if typed else f"[{table}]\n{line}" if table else line)
    flags = in_tables({key: [str(each) for each in value] if isinstance(value, list) else str(value)} if typed else {})
    return load_job(project, {"target": "train.py", **flags}, cwd=project)


@pytest.mark.parametrize("key", READ)
def test_the_documented_forms_are_read(tmp_path: Path, key: str) -> None:
    for value in READ[key]:
        for typed in (False, True):
            loaded(tmp_path, key, value, typed=typed)


@pytest.mark.parametrize("key", REFUSED)
def test_what_the_engine_would_refuse_is_refused_in_the_file_and_as_a_flag(tmp_path: Path, key: str) -> None:
    for value in REFUSED[key]:
        for typed in (False, True)[: 1 if isinstance(value, bool) else 2]:
            with pytest.raises(ConfigError):
                loaded(tmp_path, key, value, typed=typed)
                pytest.fail(f"{value!r}, typed: {typed}")


def test_a_relative_working_directory_is_the_projects(tmp_path: Path) -> None:
    for value, folder in (("sub/../own", "/workspace/own"), ("/app", "/app")):
        assert loaded(tmp_path, "workdir", value, typed=True).folder_inside == folder


def test_a_login_in_an_index_is_in_no_json(tmp_path: Path) -> None:
    job = loaded(tmp_path, "image.index_url", "https://me:hunter2@pypi.org/simple", typed=False)
    assert job.image.index_url == "https://me:hunter2@pypi.org/simple"
    assert json.loads(job.model_dump_json())["image"]["index_url"] == "https://pypi.org/simple"


#: What version 0.1.0 wrote, when a Job held its GPU request and its mounts as text; every table of the file is in it.
RECORDED = (Path(__file__).parents[2] / "recorded" / "job-0.1.0.json").read_text()


def test_a_job_of_an_older_run_is_read_as_values() -> None:
    job = Job.model_validate_json(RECORDED)
    assert job.gpus == GpuRequest("count", count=2, capabilities=("compute", "utility"))
    assert job.mounts == (
        Mount(source=Path("/home/ada/mnist/data"), target="/extra", read_only=True),
        Mount(source=Path("/home/ada/mnist/extra"), target="/more"),
    )
    assert job.kubernetes.data == Volume(kind="pvc", value="mnist", path="small")
    assert (job.criteria.metrics, job.criteria.mean_utilization_pct) == ({"test_accuracy": ">= 0.985"}, None)


@pytest.mark.parametrize(("own", "seen"), [({}, "/workspace/lib:/workspace/."), ({"PYTHONPATH": "x"}, "x")])
def test_the_exported_python_path_counts_inside_of_the_project(
    project: Path, monkeypatch: pytest.MonkeyPatch, own: dict[str, str], seen: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"lib:{project}:/usr/lib/elsewhere:")
    assert load(project, target="train.py", env=own).env["PYTHONPATH"] == seen


def test_threads_that_make_the_same_values_for_the_first_time_do_not_disturb_each_other(
    request: pytest.FixtureRequest,
) -> None:
    kinds: list[type[Value]] = [type(f"Kind{at}", (Value,), {"__module__": __name__}) for at in range(300)]
    request.addfinalizer(partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1e-6)
    with ThreadPoolExecutor(4) as pool:
        made = [[*each] for each in pool.map(lambda _: [kind() for kind in kinds], range(4))]
    assert made == [[kind() for kind in kinds]] * 4
