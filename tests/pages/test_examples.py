"""The programs of examples/ train, hand over and answer on a CPU; their files are what checks accept.

The commands of each README are run by test_pages.py.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import manifest_rules

EXAMPLES = Path(__file__).parents[2] / "examples"
TIMEOUT_S = 240


def environment(project: str, **values: object) -> dict[str, str]:
    """Return what a program of this example needs: the modules next to the Dockerfiles, one thread."""
    given = {name: str(value) for name, value in values.items()}
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(EXAMPLES / project), **given}


def printed(project: str, script: str, *words: str, **environ: object) -> str:
    """Run a program of an example with this Python; return what it prints."""
    argv = [sys.executable, "-W", "ignore", str(EXAMPLES / project / script), *words]
    ended = subprocess.run(argv, env=environment(project, **environ), capture_output=True, text=True, timeout=TIMEOUT_S)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    """A folder of IDX files as MNIST has them, of 64 and 32 images."""
    numpy = pytest.importorskip("numpy")
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    folder = tmp_path / "mnist"
    folder.mkdir()
    random = numpy.random.default_rng(0)
    for part, count in (("train", 64), ("t10k", 32)):
        for name, shape, largest in (("images-idx3", (count, 28, 28), 256), ("labels-idx1", (count,), 10)):
            header = bytes([0, 0, 8, len(shape)]) + b"".join(size.to_bytes(4, "big") for size in shape)
            pixels = random.integers(largest, size=shape, dtype=numpy.uint8)
            (folder / f"{part}-{name}-ubyte.gz").write_bytes(gzip.compress(header + pixels.tobytes()))
    return folder


def test_every_example_has_a_readme() -> None:
    folders = {folder for folder in EXAMPLES.iterdir() if folder.is_dir()}
    assert len(folders) >= 7
    assert folders == {page.parent for page in EXAMPLES.glob("*/README.md")}


def seatrial(*words: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", "seatrial", *words], capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


DOCKERFILES = sorted(EXAMPLES.rglob("Dockerfile"))


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: str(file.relative_to(EXAMPLES)))
def test_dockerfile_gets_no_remark(file: Path) -> None:
    assert seatrial("build", "--check", str(file)) == f"{file}: no remarks\n"


def test_pytorchjob_is_what_the_operator_takes() -> None:
    (manifest,) = yaml.safe_load_all((EXAMPLES / "distributed" / "pytorchjob.yaml").read_text())
    try:
        assert manifest_rules.violations(manifest) == []
    except LookupError as missing:
        pytest.skip(str(missing))


def test_pytorchjob_gives_each_replica_a_gpu_the_script_and_the_folders_it_uses() -> None:
    manifest = yaml.safe_load((EXAMPLES / "distributed" / "pytorchjob.yaml").read_text())
    for replica in manifest["spec"]["pytorchReplicaSpecs"].values():
        (container,) = replica["template"]["spec"]["containers"]
        requests, limits = container["resources"]["requests"], container["resources"]["limits"]
        assert requests["nvidia.com/gpu"] == limits["nvidia.com/gpu"] == "1"
        variables = {each["name"]: each["value"] for each in container["env"]}
        assert "CUDA_VISIBLE_DEVICES" not in variables
        mounted = {each["mountPath"] for each in container["volumeMounts"]}
        assert {variables["MODELS"], str(Path(container["command"][1]).parent)} <= mounted


def test_mnist_reads_idx_files_and_saves_its_best_epoch(mnist: Path, tmp_path: Path) -> None:
    import torch

    output = printed("mnist", "train.py", "--data", str(mnist), "--out", str(tmp_path / "out"), EPOCHS=1)
    assert f"data: MNIST from {mnist}" in output
    weights = torch.load(tmp_path / "out" / "mnist_cnn.pth", weights_only=True)
    assert weights["classifier.1.weight"].shape == (128, 1600)


@pytest.mark.slow  # Keras and a framework take 5 to 10 s to start
@pytest.mark.parametrize("framework", ["jax", "tensorflow", "torch"])
def test_keras_mnist_trains_on_each_framework(mnist: Path, tmp_path: Path, framework: str) -> None:
    for needed in ("keras", framework):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed here")
    words = ("--data", str(mnist), "--models", str(tmp_path / "out"), "--epochs", "1")
    shown = printed("keras-mnist", "train.py", *words, KERAS_BACKEND=framework, SEATRIAL_EVENTS=tmp_path / "events")
    assert f"data: MNIST from {mnist}" in shown and f"on {framework}" in shown
    assert (tmp_path / "out" / "mnist.keras").is_file()
    assert json.loads((tmp_path / "events").read_text())["epoch"] == 1


def test_pipeline_hands_over_from_step_to_step(mnist: Path, tmp_path: Path) -> None:
    for name in ("processed", "models", "artifacts"):
        (tmp_path / name).mkdir()
    output = printed("pipeline", "preprocess/preprocess.py", RAW=mnist, PROCESSED=tmp_path / "processed")
    assert output == "MNIST: 64 images to train on, 32 to test with\n"
    printed("pipeline", "train/train.py", DATA=tmp_path / "processed", MODELS=tmp_path / "models", EPOCHS=1)
    printed("pipeline", "export/export.py", MODELS=tmp_path / "models", ARTIFACTS=tmp_path / "artifacts")
    report = json.loads((tmp_path / "artifacts" / "report.json").read_text())
    assert report["largest_difference"] < 1e-5
    assert report["test_accuracy"] == json.loads((tmp_path / "models" / "metrics.json").read_text())["test_accuracy"]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """The address of the inference service, over two trained models."""
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    for name, rate in (("good", 0.003), ("bad", 1e-9)):
        printed("trainers-and-inference", "trainer/train.py", OUTPUTS=tmp_path, NAME=name, LEARNING_RATE=rate, EPOCHS=2)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    script = EXAMPLES / "trainers-and-inference" / "inference" / "serve.py"
    service = subprocess.Popen(
        [sys.executable, str(script)], env=environment("trainers-and-inference", OUTPUTS=tmp_path, PORT=port)
    )
    address, until = f"http://127.0.0.1:{port}", time.monotonic() + 240
    try:
        while True:
            try:
                urllib.request.urlopen(f"{address}/health", timeout=5).close()
                break
            except urllib.error.URLError:
                assert time.monotonic() < until and service.poll() is None
                time.sleep(0.2)
        yield address
    finally:
        service.terminate()
        assert service.wait(120) == 0


def answer(address: str, body: object = None) -> tuple[int, dict[str, Any]]:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(address, data, timeout=300) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)


def test_inference_serves_the_better_model_and_refuses_other_bodies(served: str) -> None:
    assert answer(f"{served}/health") == (200, {"model": "good", "device": "cpu"})
    status, body = answer(f"{served}/predict", {"pixels": [0.5] * 64})
    assert status == 200 and 0 <= body["digit"] <= 9
    for wrong in ({"pixels": [1, 2]}, {"pixels": "x"}, {"picture": []}, [1]):
        assert answer(f"{served}/predict", wrong)[0] == 400
    assert answer(f"{served}/predict", {"pixels": [0.123456789] * 2000})[0] == 413
    assert answer(f"{served}/elsewhere")[0] == 404


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*/compose.yaml")), ids=lambda file: file.parent.name)
def test_compose_file_gets_no_warning(file: Path, tmp_path: Path) -> None:
    if shutil.which("docker") is None or subprocess.run(["docker", "info"], capture_output=True).returncode:
        pytest.skip("no Docker engine answers")
    project = tmp_path / file.parent.name
    shutil.copytree(file.parent, project)
    shown = seatrial("up", "--plan", "--gpus", "none", "-C", str(project))
    # Another program on this machine may hold the port, which the file cannot prevent.
    assert [line for line in shown.splitlines() if "warning" in line and "publishes port" not in line] == []
