"""Messages as programs print them, with causes that threads or manuals established: explain finds each first."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.doctor.explain import explain_text
from seatrial.findings.catalogue import by_id

tomllib = pytest.importorskip("tomllib")  # Python 3.11
MESSAGES = tomllib.loads((Path(__file__).parents[2] / "findings" / "messages.toml").read_text())["message"]


def test_first_finding_is_the_cause() -> None:
    wrong = {}
    for message in MESSAGES:
        found = [finding.id for finding in explain_text(str(message["text"]))]
        if found[:1] != [message["finds"]]:
            wrong[message["text"]] = found
    assert wrong == {}
    assert by_id("harmless-note").severity == "info"


#: What the tutorials print, or what their commands provoke.
TUTORIALS = {
    "RuntimeError: CUDA not available": "no-cuda-device",
    "RuntimeError: CUDA version mismatch: PyTorch compiled with 12.1 but running with 11.8": "cuda-versions-differ",
    "CUDA version mismatch: PyTorch compiled with 12.1 but running with 11.8": "cuda-versions-differ",
    "WARNING: CUDA not available, falling back to CPU": "cpu-fallback",
    "No GPU resources available": "k8s-no-gpus",
    "Unit nvidia-docker.service could not be found.": "nvidia-docker-retired",
    'error: resource mapping not found for name: "m" namespace: "" from "j.yaml": no matches for kind "PyTorchJob" in '
    'version "kubeflow.org/v1"\nensure CRDs are installed first': "k8s-kind-missing",
    'no matches for kind "PyTorchJob"': "k8s-kind-missing",
    'error: the server doesn\'t have a resource type "pytorchjob"': "k8s-kind-missing",
    "error: Metrics API not available": "k8s-metrics-missing",
    "RuntimeError: Parent directory /models does not exist.": "output-folder-missing",
    "docker: unknown flag: --gpus\n\nRun 'docker run --help' for more information": "docker-without-gpus",
    "unknown flag: --gpus\nSee 'docker run --help'.": "docker-without-gpus",
    "E: The repository 'https://nvidia.github.io/nvidia-docker/ubuntu22.04 Release' does not have a Release file.": (
        "toolkit-repository-retired"
    ),
    "RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x1600 and 9216x128)": "linear-features",
}


def test_tutorials_messages_have_one_finding_each() -> None:
    assert {text: [finding.id for finding in explain_text(text)] for text in TUTORIALS} == {
        text: [id] for text, id in TUTORIALS.items()
    }


def test_retired_repository_is_replaced_by_the_toolkits() -> None:
    [found] = explain_text(
        "The repository 'https://nvidia.github.io/nvidia-docker/ubuntu22.04 Release' does not have a"
    )
    assert found.fix and "libnvidia-container/stable/deb" in found.fix and "base =" not in found.fix


def test_wrong_layer_is_named_with_both_numbers() -> None:
    [found] = explain_text("RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x1600 and 9216x128)")
    assert found.cause and "nn.Linear(9216, 128) expects 9216 features" in found.cause and "1600" in found.cause
    assert found.fix and found.fix.startswith("nn.Linear(1600, 128) ")


TRACEBACK = """Traceback (most recent call last):
  File "/workspace/train.py", line 9, in <module>
    {call}
{error}
"""
ABSENT = "FileNotFoundError: [Errno 2] No such file or directory: '/outputs/a.csv'"
REFUSED = "PermissionError: [Errno 13] Permission denied: '/outputs/a.csv'"


@pytest.mark.parametrize(
    ("call", "error", "id"),
    [
        ('with open("/outputs/a.csv", "w") as file:', ABSENT, "output-folder-missing"),
        ("open(path, mode='ab')", ABSENT, "output-folder-missing"),
        ('frame.to_csv("/outputs/a.csv")', ABSENT, "output-folder-missing"),
        ('plt.savefig("/outputs/a.csv")', ABSENT, "output-folder-missing"),
        ('torch.save(model.state_dict(), "/outputs/a.csv")', REFUSED, "output-not-writable"),
        ('os.makedirs("/outputs/a.csv")', REFUSED, "output-not-writable"),
        ('with open("/outputs/a.csv") as file:', ABSENT, "file-missing"),
        ('open(path, "r", encoding="utf-8")', ABSENT, "file-missing"),
        ('pd.read_csv("/outputs/a.csv")', ABSENT, "file-missing"),
        ('open("/outputs/a.csv", "rb")', REFUSED, "permission-denied"),
    ],
)
def test_failed_write_differs_from_missing_data(call: str, error: str, id: str) -> None:
    [found] = explain_text(TRACEBACK.format(call=call, error=error))
    assert found.id == id
    assert id != "output-folder-missing" or found.message.endswith(": /outputs")


def test_read_after_a_write_that_was_caught_is_a_read() -> None:
    written = TRACEBACK.format(call='torch.save(state, "last.pt")', error="RuntimeError: something")
    read = TRACEBACK.format(call='open("/data/a.csv")', error=ABSENT)
    assert "file-missing" in [finding.id for finding in explain_text(written + read)]


def test_harmless_note_is_left_out_with_a_failure() -> None:
    note = "This TensorFlow binary is optimized with oneAPI Deep Neural Network Library"
    assert [finding.id for finding in explain_text(note)] == ["harmless-note"]
    assert [finding.id for finding in explain_text(f"{note}\nRuntimeError: No CUDA GPUs are available")] == [
        "no-cuda-device"
    ]
