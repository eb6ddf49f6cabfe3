"""explain: a part of a message, and files: logs, receipts, folders of runs, and what is none of them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import fork_server
from seatrial.doctor.explain import explain_text
from seatrial.findings.catalogue import entries
from tables import cases

LOG = "epoch 1\nRuntimeError: CUDA error: no kernel image is available for execution on the device\n"


@cases("part", "id")
def test_a_part_is_enough(part: str, id: str) -> None:
    assert [finding.id for finding in explain_text(part)] == [id]


@pytest.mark.parametrize(("size", "advised"), [("6.91 GiB", True), ("12.40 MiB", False)])
def test_reserved_and_unallocated_memory_of_an_oom_decides_the_fix(size: str, advised: bool) -> None:
    [found] = explain_text(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. Of the allocated memory 68.20 GiB is "
        f"allocated by PyTorch, and {size} is reserved by PyTorch but unallocated. If reserved"
    )
    assert found.id == "cuda-out-of-memory"
    assert ("expandable_segments:True" in found.fix and size in found.cause) is advised


def test_words_of_several_messages_list_them(tmp_path: Path) -> None:
    done = run("Out of memory", folder=tmp_path)
    assert done.returncode == 1 and not done.stderr
    assert {"seatrial explain cuda-out-of-memory", "seatrial explain host-out-of-memory"} <= {
        line.strip() for line in done.stdout.splitlines()
    }


@pytest.mark.parametrize(
    "part", ["error", "not found", "does not exist", "failed", "CUDA", "could not select", "o kernel imag"]
)
def test_too_little_prints_nothing(part: str) -> None:
    assert explain_text(part) == []


def test_any_three_words_of_a_symptom_lead_to_it_or_to_few() -> None:
    for entry in entries():
        for symptom in entry.symptoms:
            words = symptom.split()
            if len(words) < 5 or any(mark in symptom for mark in "{…"):
                continue
            found = [finding.id for finding in explain_text(" ".join(words[1:5]))]
            assert not found or entry.id in found or len(found) == 1, (symptom, found)
            assert len(found) <= 3


def run(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return fork_server.server().run(["explain", *words], folder, os.environ, 60)


def test_a_log_is_read(tmp_path: Path) -> None:
    (tmp_path / "my train.log").write_text(LOG)
    done = run("--json", "my train.log", folder=tmp_path)
    [finding] = json.loads(done.stdout)
    assert finding["id"] == "no-kernel-image" and finding["evidence"][0].startswith("line 2: ")


def test_a_receipt_and_the_folder_of_a_run(tmp_path: Path) -> None:
    found = {"id": "of-another-release", "severity": "warning", "message": "a sentence", "cause": "why", "fix": "do",
             "evidence": ["x"]}  # fmt: skip
    folder = tmp_path / "20261122-040506-abc"
    folder.mkdir()
    (folder / "receipt.json").write_text(json.dumps({"findings": [found, "no finding", {"severity": "bad"}]}))
    for name in (str(folder), str(folder / "receipt.json")):
        done = run(name, "--json", folder=tmp_path)
        assert done.returncode == 0 and json.loads(done.stdout) == [found]
    (folder / "receipt.json").write_text(json.dumps({"findings": []}))
    (folder / "stderr.log").write_text(LOG)
    assert "no-kernel-image" in run(str(folder), folder=tmp_path).stdout


@pytest.mark.parametrize("content", [b"", b"[1, 2]", b'{"findings": 3}', b"\xff\xfe\x00", b"[" * 100_000, b'{"a": '])
def test_a_file_that_holds_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "receipt.json").write_bytes(content)
    done = run("receipt.json", folder=tmp_path)
    assert done.returncode == 1 and "No known failure found" in done.stdout and not done.stderr


def test_what_is_not_there(tmp_path: Path) -> None:
    done = run("train.log", folder=tmp_path)
    assert done.returncode == 2 and "File not found: train.log" in done.stderr and "fix: ls ." in done.stderr
    (tmp_path / "empty").mkdir()
    assert "is a folder without a receipt or a log" in run("empty", folder=tmp_path).stderr
    assert "No known failure found" in run("KeyError: 'x'", folder=tmp_path).stdout
    assert "no-cuda-device" in run("RuntimeError: No CUDA GPUs are available", folder=tmp_path).stdout
