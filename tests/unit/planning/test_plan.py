"""make_plan on every backend: places, targets, GPUs and nodes, and what a script's imports bring."""

from __future__ import annotations

import hashlib
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from planning_sites import READY, SCRIPT, a_site, chosen, facts_of, plan_of
from seatrial.errors import SeatrialError, TargetError, UsageError
from seatrial.images.requirements.project import project_needs
from seatrial.job.keys import DataMount
from seatrial.job.model import ImageOptions, Job, Target
from seatrial.job.plan import Plan
from seatrial.job.script import script_facts
from seatrial.job.tables import Changes
from seatrial.planning.plan import make_plan, with_defaults
from tables import cases

BACKENDS = ("docker", "podman", "local", "k8s")
TARGETS = {
    "script": Target(kind="script", value="train.py", args=("--epochs", "5")),
    "ddp": Target(kind="script", value="ddp.py"),
    "module": Target(kind="module", value="trainer"),
    "recipe": Target(kind="recipe", value="mnist-deep"),
    "matmul": Target(kind="recipe", value="matmul"),
    "bench": Target(kind="recipe", value="bench", args=("mnist",)),
    "image": Target(kind="image", value="", args=("train", "--fast")),
}
GIB = 2**30


def reported(plan: Plan, folder: Path) -> str:
    """Return the lines that a reviewer looks for."""
    agent, count = plan.agent, len(plan.agent.gpus) or plan.agent.gpu_count or 0
    nodes = f"{agent.processes} processes on each of {agent.nodes} nodes"
    lines = [
        "runs      " + " ".join(agent.argv),
        f"in        {agent.workdir}, outputs in {agent.run_dir}",
        f"as        {agent.launcher}, {nodes}, {agent.restarts} restarts",
        f"meets at  {agent.rendezvous}, as node {agent.node_rank} {agent.node_rank_variable or ''}".rstrip(),
        f"GPUs      {agent.gpu_mode}, {count} by {plan.injection}, check {agent.check}",
        "told      " + " ".join(f"{name}={value}" for name, value in agent.env.items()),
        f"evidence  {agent.evidence_dir or 'in the log'}",
    ]
    if plan.container is not None:
        lines.append("mounts    " + " ".join(mount.target for mount in plan.container.mounts))
        lines.append(f"network   {plan.container.network}")
    if plan.cluster is not None:
        pods = plan.cluster
        lines.append(f"pods      {pods.nodes} × {pods.gpus} GPUs as {pods.kind}, code {pods.code}")
    lines += [f"warning   {warning}" for warning in plan.warnings]
    text = "\n".join(lines).replace(str(folder), "~")
    return text.replace(plan.python, "PYTHON") if plan.python else text


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("target", list(TARGETS))
def test_a_plan(backend: str, target: str, tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    project, texts = tmp_path / "mnist", []
    ddp = "import torch.distributed as dist\ndist.init_process_group('nccl')\n"
    facts_of(project, "print('one process')\n", ddp=ddp, trainer="print('a module')\n")
    for nodes in (1, 2):
        for gpus in (0, 1, 2):
            hosts: dict[str, Any] = {"hosts": ("a", "b"), "node_rank": 1} if nodes == 2 and backend != "k8s" else {}
            count = str(gpus) if gpus else "none"
            fields = {"gpus": count, "nodes": nodes, "image": ImageOptions(ready=READY), **hosts}
            job = Job(project=project, target=TARGETS[target], backend=backend, **fields)
            site = a_site(backend, tmp_path, project, gpus=gpus)
            try:
                plan = make_plan(with_defaults(job, site.backend.traits), site, script_facts(job.target, project))
                text = reported(plan, tmp_path)
            except SeatrialError as error:
                text = f"refused   {error.message}".replace(str(tmp_path), "~")
            texts.append(f"=== {target} on {backend}, {gpus} GPUs, {nodes} node{'s' * (nodes > 1)}\n{text}")
    assert "\n".join(texts) == snapshot


@pytest.mark.parametrize("reads", [True, False])
def test_a_folder_that_a_local_script_cannot_see_is_a_warning(tmp_path: Path, reads: bool) -> None:
    source = "print(__import__('os').environ['SEATRIAL_DATA_DIR'])" if reads else "print('/data')"
    plan = plan_of(tmp_path, source, "local", data=DataMount(source=tmp_path, read_only=True))
    assert any(warning.startswith("--data has no effect") for warning in plan.warnings) is not reads


def test_reads_whose_paths_are_unknown_are_one_choice(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "cfg = unknown()\n" + "open(cfg.path)\n" * 5)
    [found] = [each for each in plan.choices if each.what == "not checked"]
    assert found.value == "files read at train.py:2, train.py:3, train.py:4 and 2 more"


def test_changes_of_another_script_are_left_out_with_a_sentence(tmp_path: Path) -> None:
    own = plan_of(tmp_path, backend="local", tune=Changes(script="train.py", workers=4))
    assert own.agent.changes == {"workers": 4}
    other = plan_of(tmp_path, backend="local", tune=Changes(script="other.py", workers=4))
    assert other.agent.changes is None and chosen(other, "changes").value == "none"
    reason = "[tune] was measured on other.py and is not applied; for this one: seatrial tune train.py --save"
    assert chosen(other, "changes").reason == reason


@pytest.mark.parametrize(
    ("bound", "gpus", "measured_on"),
    [
        ({"gpu": "none"}, 0, None),
        ({"gpu": "NVIDIA H200"}, 0, "NVIDIA H200"),
        ({"gpu": "none"}, 1, "the CPU"),
        ({"gpu": "of the host"}, 1, None),
        ({"gpu": "of the host", "digest": "of the script"}, 1, None),
        ({"gpu": "of the host", "digest": "0" * 64}, 1, "train.py as it was before an edit"),
        ({}, 1, None),
    ],
)
def test_changes_measured_on_another_gpu_or_before_an_edit_are_left_out(
    tmp_path: Path, bound: dict[str, str], gpus: int, measured_on: str | None
) -> None:
    source = "import torch\n"
    known = {"of the script": hashlib.sha256(source.encode()).hexdigest()}
    if gpus:
        known["of the host"] = plan_of(tmp_path, source, gpus=gpus).gpus[0].name
    tune = Changes(script="train.py", workers=4, **{key: known.get(value, value) for key, value in bound.items()})
    plan = plan_of(tmp_path, source, gpus=gpus, tune=tune)
    reason = chosen(plan, "changes").reason
    assert plan.agent.changes == (None if measured_on else {"workers": 4})
    if measured_on:
        assert reason.startswith(f"[tune] was measured on {measured_on} and is not applied; for this one: ")
    assert ("does not name the script's digest" in reason) is (not measured_on and len(bound) < 2)
    assert not (measured_on or len(bound) < 2) or reason.endswith("seatrial tune train.py --save")


def test_changes_measured_on_a_gpu_are_left_out_where_a_scheduler_picks_it(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, backend="k8s", gpus=1, tune=Changes(gpu="NVIDIA H200", workers=4))
    assert plan.agent.changes is None and chosen(plan, "changes").value == "none"


# --------------------------------------------------------------------- horovod

HOROVOD = "import torch\nimport horovod.torch as hvd\nhvd.init()\n"


def test_horovod_is_a_rank_for_each_gpu_and_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "requirements.txt").write_text("torch\nhorovod[pytorch]==0.28.1\nnumpy\n")
    for gpus, launcher in ((0, "none"), (1, "none"), (2, "torchrun")):
        plan = plan_of(tmp_path, HOROVOD, gpus=gpus)
        agent = plan.agent
        assert (agent.launcher, agent.processes, agent.stand_ins) == (launcher, max(1, gpus), ("horovod",))
    assert plan.image is not None
    assert not any("horovod" in text for text in plan.image.context_texts.values())
    assert chosen(plan, "horovod").value == "seatrial's stand-in on torch.distributed"
    assert chosen(plan, "horovod").reason.startswith("train.py:2 imports horovod.torch; Horovod is not installed: its")
    assert "horovod is left out" in chosen(plan, "packages").reason
    assert any(warning.startswith("This is not Horovod: train.py:2") for warning in plan.warnings)
    optional = f"{HOROVOD}def never(): import horovod.tensorflow\nif x: hvd.elastic\n"
    assert plan_of(tmp_path, optional, gpus=2).agent.stand_ins == ("horovod",)


@pytest.mark.parametrize("file", ["other.txt", "other.yaml", "other.toml"])
def test_a_list_that_the_image_names_may_bring_horovod(tmp_path: Path, file: str) -> None:
    (tmp_path / "project").mkdir()
    pip = file.endswith("yaml") * "dependencies:\n- pip:\n"
    (tmp_path / "project" / file).write_text(f"{pip}{'  - ' * bool(pip)}horovod\n")
    plan = plan_of(tmp_path, HOROVOD, gpus=2, image=ImageOptions(requirements=(f"-r {file}",)))
    assert chosen(plan, "horovod").value == "as image.requirements has it"


def test_options_of_a_build_are_named_where_nothing_is_built(tmp_path: Path) -> None:
    image = ImageOptions(ready=READY, requirements=("einops",), max_size_bytes=2**30)
    warned = f"{READY} is used as it is: requirements, max_size of [image] has no effect"
    assert warned in plan_of(tmp_path, "", image=image).warnings
    assert not any("[image]" in each for each in plan_of(tmp_path, "", ready=True).warnings)


def test_an_image_may_have_its_own_horovod(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, HOROVOD, gpus=2, ready=True)
    assert plan.agent.stand_ins == ("horovod",)
    assert any("has no Horovod, seatrial's stand-in" in warning for warning in plan.warnings)
    other = plan_of(tmp_path, "import horovod.tensorflow as hvd\n", gpus=2, ready=True)
    assert (other.agent.stand_ins, other.agent.launcher) == (("horovod",), "torchrun")
    assert [each for each in other.warnings if each.endswith("fails there: seatrial has no stand-in for that part")]
    assert not any("torch.distributed" in each for each in other.warnings)


MIRRORED = "tf.distribute.MirroredStrategy"


@cases("source", "part", "instead")
def test_part_of_horovod_without_a_stand_in_is_refused(tmp_path: Path, source: str, part: str, instead: str) -> None:
    with pytest.raises(TargetError) as refused:
        plan_of(tmp_path, source, gpus=2)
    assert part in refused.value.message and refused.value.run is not None
    assert instead in refused.value.run and "seatrial run train.py --gpus 2" in refused.value.run


@pytest.mark.parametrize(
    "optional",
    ["if x: import horovod.tensorflow as hvd\n", "try: import horovod.keras as hvd\nexcept ImportError: hvd = None\n"],
)
def test_tensorflow_with_optional_horovod_gets_no_ranks_of_torch(tmp_path: Path, optional: str) -> None:
    plan = plan_of(tmp_path, f"import tensorflow as tf\n{optional}", gpus=2)
    assert (plan.agent.launcher, plan.agent.processes, plan.agent.stand_ins) == ("none", 1, ("horovod",))
    [warning] = [each for each in plan.warnings if "train.py:2 may import horovod." in each]
    assert MIRRORED in warning and not any("torch" in each for each in plan.warnings)
    ranks = plan_of(tmp_path, f"import torch\n{optional}torch.distributed.init_process_group()\n", gpus=2)
    assert ranks.agent.launcher == "torchrun"  # for a reason of its own


# ---------------------------------------------------------------- memory of GPUs


@cases("source", "gpus", "size", "words")
def test_gpu_memory_is_a_limit_or_one_sentence(
    tmp_path: Path, source: str, gpus: int, size: int, words: str | None
) -> None:
    with pytest.raises(UsageError, match=words) if words else nullcontext():
        plan = plan_of(tmp_path, source, gpus=gpus, gpu_memory_bytes=size)
        assert plan.agent.gpu_memory_bytes == size
        assert chosen(plan, "GPU memory").reason.startswith("--gpu-memory: on each GPU")


@cases("name", "value", "does")
def test_variable_that_tutorials_call_a_limit_is_explained(tmp_path: Path, name: str, value: str, does: str) -> None:
    of_job = chosen(plan_of(tmp_path, ready=True, env={name: value}), name)
    assert of_job.value == value and "no memory limit" in of_job.reason and does in of_job.reason
    assert "--gpu-memory SIZE" in of_job.reason
    source = f"import os\nimport torch\n\nos.environ['{name}'] = '{value}'\n"
    of_script = chosen(plan_of(tmp_path, source, ready=True), name)
    assert of_script.value == value and "(train.py:4)" in of_script.reason


# ------------------------------------------------------------------------- ray

TUNE = "from ray import tune\n"
STORE = "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES"


def test_extras_of_ray_come_from_the_imports(tmp_path: Path) -> None:
    for source, packages in (
        ("from ray.tune.schedulers import ASHAScheduler\n", {"ray", "ray[tune]"}),
        ("from ray.tune.search.optuna import OptunaSearch\n", {"ray", "ray[tune]", "optuna"}),
        ("import ray\nfrom ray import train, tune\n", {"ray", "ray[train]", "ray[tune]"}),
        ("import ray\n", {"ray"}),
        ("import raytracing_of_ones_own\n", {"raytracing-of-ones-own"}),
    ):
        assert {*project_needs(tmp_path, facts_of(tmp_path, source), tmp_path).requirements.lines} == packages


def test_a_working_directory_above_the_project_is_one_on_the_machine_alone(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--workdir \.\.: a container has no folder above the project"):
        plan_of(tmp_path, "print()\n", "docker", workdir="..")
    assert chosen(plan_of(tmp_path, "print()\n", "local", workdir=".."), "working directory").value == ".."


@pytest.mark.parametrize("backend", ["docker", "podman", "local"])
def test_a_working_directory_that_is_missing_is_refused_on_every_engine(tmp_path: Path, backend: str) -> None:
    with pytest.raises(UsageError, match=r"--workdir nosub: folder .*nosub not found"):
        plan_of(tmp_path, "print()\n", backend, workdir="nosub")
    (tmp_path / "project" / "nosub").mkdir()
    choice = chosen(plan_of(tmp_path, "print()\n", backend, workdir="nosub"), "working directory")
    assert choice.value == "nosub" and str(tmp_path) in choice.reason


@pytest.mark.parametrize(
    ("backend", "keys", "shm_bytes"),
    [
        ("docker", {"shm_bytes": 3 * GIB}, 3 * GIB),
        ("docker", {"memory_bytes": 4 * GIB}, 2 * GIB),
        ("docker", {}, (64 * 10**9 * 19 // 20) // 2),
        ("docker", {"memory_bytes": 64 * GIB, "gpus": 2}, 32 * GIB),
        ("k8s", {"memory_bytes": 64 * GIB}, 32 * GIB),
        ("k8s", {}, 64 * GIB),
    ],
)
def test_shm_is_half_of_the_memory_for_ray_too(
    tmp_path: Path, backend: str, keys: dict[str, Any], shm_bytes: int
) -> None:
    """Ray goes to /tmp and warns where it does not; a smaller one ends many loader workers with "Bus error"."""
    plan = plan_of(tmp_path, TUNE, backend, ready=True, **keys)
    place = plan.container or plan.cluster
    assert place is not None and place.shm_bytes == shm_bytes
    assert plan.agent.env["RAY_USAGE_STATS_ENABLED"] == "0"
    assert int(plan.agent.env[STORE]) <= 0.95 * shm_bytes


@pytest.mark.parametrize(
    ("keys", "warned"),
    [
        ({"memory_bytes": 30 * GIB, "shm_bytes": 31 * GIB}, "--shm-size 31 GiB is more than --memory 30 GiB: "),
        ({"shm_bytes": 60 * GIB}, "--shm-size 60 GiB is more than this host's 64 GB: "),
        ({"memory_bytes": 60 * GIB}, "--memory 60 GiB is more than this host's 64 GB: "),
        ({"memory_bytes": 8 * GIB, "shm_bytes": GIB}, ""),
    ],
)
def test_memory_that_is_not_there_is_warned_of(tmp_path: Path, keys: dict[str, int], warned: str) -> None:
    found = [each for each in plan_of(tmp_path, "print()", ready=True, **keys).warnings if " is more than " in each]
    assert (len(found), found[:1]) == (bool(warned), [f"{warned}a script that fills it may be killed"][: bool(warned)])


def test_a_device_that_is_not_there_is_refused_where_containers_have_this_machines(tmp_path: Path) -> None:
    for there in ("/dev/null", "/dev/null:/dev/x:r", "vendor.com/class=x", "/dev/none/x"):
        plan_of(tmp_path, "print()", ready=True, devices=(there,))
    with pytest.raises(UsageError, match="--device /dev/nosuch: this machine has no such device") as raised:
        plan_of(tmp_path, "print()", ready=True, devices=("/dev/nosuch:/dev/x",))
    assert raised.value.run == "ls /dev"


def test_facts_of_ray_are_one_process_for_all_gpus(tmp_path: Path) -> None:
    loop = "import torch\ndef loop():\n    torch.distributed.init_process_group()\n"
    for each in (TUNE, f"{loop}from ray.train.torch import TorchTrainer\nTorchTrainer(loop).fit()\n"):
        plan = plan_of(tmp_path, each, gpus=2, ready=True)
        assert (plan.agent.launcher, plan.agent.processes) == ("none", 1)
        script = script_facts(SCRIPT, tmp_path / "project")
        assert script.multi_gpu_evidence is not None and script.launcher_evidence is None
