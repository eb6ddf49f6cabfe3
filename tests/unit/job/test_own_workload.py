"""A workload of the user's own: what is read from its file, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.errors import ConfigError
from seatrial.job.own_workload import blocked_mount, read_own, replicas, volume_kinds

POD = """
      metadata: {labels: {app: mine}}
      spec:
        terminationGracePeriodSeconds: 60
        containers:
        - name: pytorch
          image: pytorch/pytorch:1.13.1-cuda11.6-cudnn8-runtime
          command: [python3, /app/train.py]
          args: ["--epochs=$(EPOCHS)", "$$(HOME)"]
          env: [{name: EPOCHS, value: "3"}]
          resources: {limits: {nvidia.com/gpu: 1, cpu: 8}, requests: {cpu: 4}}
          volumeMounts: [{name: code, mountPath: /app}, {name: out, mountPath: /out}]
        volumes: [{name: code, configMap: {name: code}}, {name: out, persistentVolumeClaim: {claimName: out}}]
"""
JOB = f"apiVersion: batch/v1\nkind: Job\nmetadata: {{name: mine}}\nspec:\n    template:{POD}"
PYTORCH = (
    "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: mine, namespace: team}\nspec:\n"
    f"  pytorchReplicaSpecs:\n   Master:\n    template:{POD}\n   Worker:\n    replicas: 3\n    template:{POD}"
)


def read(folder: Path, text: str, **given: object):
    file = folder / "job.yaml"
    file.write_text(text)
    return read_own(file, folder, given)


@pytest.mark.parametrize(("text", "kind", "nodes"), [(JOB, "job", 1), (PYTORCH, "pytorchjob", 4)])
def test_the_file_decides_kind_image_command_pods_and_gpus(tmp_path, text, kind, nodes):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("import torch\n")
    own, flags = read(tmp_path, "# mine\n---\n" + text)
    assert own.argv == ("python3", "/app/train.py", "--epochs=3", "$(HOME)") and own.script == "src/train.py"
    assert (flags["kubernetes"]["kind"], flags["nodes"], flags["gpus"], flags["grace"]) == (kind, nodes, "1", "50s")
    assert flags["image"] == {"ready": "pytorch/pytorch:1.13.1-cuda11.6-cudnn8-runtime"}
    assert flags["kubernetes"].get("namespace") == ("team" if nodes == 4 else None)
    assert volume_kinds(replicas(own.manifest)[0][0]) == {"/app": None, "/out": "persistentVolumeClaim"}


def test_options_next_to_the_file_are_kept_and_others_refused(tmp_path):
    _, flags = read(tmp_path, JOB, name="mine", kubernetes={"context": "prod"}, image={"target": "h100"}, args=[])
    assert flags["name"] == "mine" and flags["kubernetes"]["context"] == "prod" and flags["image"]["target"] == "h100"
    with pytest.raises(ConfigError, match="--gpus, --queue: with --file, the file decides"):
        read(tmp_path, JOB, gpus="2", kubernetes={"queue": "a"})


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("metadata: {name: mine}", "metadata: {generateName: mine-}", "name is missing"),
        ("          command: [python3, /app/train.py]\n", "", "its container has no command"),
        ("spec:\n    template", "spec:\n    parallelism: 2\n    template", "completionMode: Indexed"),
        ("- name: pytorch\n", "- {name: a}\n        - name: b\n", "several containers"),
        ("        containers:", "        kontainers:", "containers is missing"),
        ("nvidia.com/gpu: 1", "nvidia.com/gpu: one", "cannot be run"),
        ("kind: Job", "kind: CronJob", "has batch/v1 CronJob; --file takes one object"),
        ("batch/v1\nkind: Job", "jobset.x-k8s.io/v1alpha2\nkind: JobSet", "v1alpha2 JobSet; --file takes one object"),
        ("apiVersion", "kind: List\n---\napiVersion", "has None List, batch/v1 Job; --file takes one object"),
        (JOB, "- 1\n", "has no object"),
        (JOB, "# nothing\n", "has nothing"),
    ],
)
def test_what_no_run_can_be_made_of_is_refused_by_name(tmp_path, old, new, why):
    assert old in JOB
    with pytest.raises(ConfigError, match=why):
        read(tmp_path, JOB.replace(old, new, 1))


def test_replicas_may_differ_in_their_commands_and_not_in_their_images(tmp_path):
    head, worker = PYTORCH.split("   Worker:")
    own, _ = read(tmp_path, head + "   Worker:" + worker.replace("/app/train.py", "/app/other.py"))
    assert own.argv[1] == "/app/train.py"
    with pytest.raises(ConfigError, match="Master and Worker differ in GPUs, image or workingDir"):
        read(tmp_path, head + "   Worker:" + worker.replace("1.13.1", "2.0.1"))


@pytest.mark.parametrize("line", ["cd /src && torchrun $(nproc) train.py --lr 1", "exec python -u ./a/train.py;"])
def test_a_script_is_found_in_a_shells_line_which_stays_as_it_is(tmp_path, line):
    (tmp_path / "train.py").write_text("import torch\n")
    text = JOB.replace("[python3, /app/train.py]", f"[sh, -c, {line!r}]")
    own, _ = read(tmp_path, text)
    assert own.argv[:3] == ("sh", "-c", line) and own.script == "train.py"


@pytest.mark.parametrize(
    ("volume", "mount", "blocked"),
    [
        ("configMap: {name: code}", "/app/models", True),
        ("secret: {secretName: code}", "/app/models/", True),
        ("projected: {sources: [{configMap: {name: code}}]}", "/app/a/b", True),
        ("configMap: {name: code, items: [{key: a, path: models/a}]}", "/app/models", False),
        ("emptyDir: {}", "/app/models", False),
        ("configMap: {name: code}", "/apple", False),
    ],
)
def test_a_mount_inside_a_read_only_volume_is_named(tmp_path, volume, mount, blocked):
    own, _ = read(
        tmp_path, JOB.replace("configMap: {name: code}", volume).replace("mountPath: /out", f"mountPath: {mount}")
    )
    assert (f"mounts {mount} inside /app, a " in (blocked_mount(own) or "")) is blocked
