"""The look inside: the program and its modules, run by a plain interpreter that has nothing of ours installed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from seatrial.doctor.inspection import LOADER, modules


@pytest.mark.parametrize("gpus", [False, True])
def test_it_runs_without_anything_installed(gpus: bool) -> None:
    order = json.dumps({"modules": modules(), "gpus": gpus})
    argv = [sys.executable, "-I", "-S", "-c", LOADER]  # -S: no site-packages
    done = subprocess.run(argv, input=order, capture_output=True, text=True, timeout=60)
    facts = json.loads(done.stdout)
    assert facts["python"] and isinstance(facts["device_nodes"], list) and facts["shm_bytes"] != 0
    assert facts["distributions"] == {} and facts["torch"] is None
    assert ("cuda" in facts) is gpus
    assert done.stderr == ""


def test_only_what_decides_about_gpus_leaves_the_environment() -> None:
    order = json.dumps({"modules": modules(), "gpus": False})
    env = {"CUDA_VISIBLE_DEVICES": "7", "HF_TOKEN": "secret", "PATH": "/usr/bin"}
    argv = [sys.executable, "-I", "-S", "-c", LOADER]
    done = subprocess.run(argv, input=order, capture_output=True, text=True, timeout=60, env=env)
    assert json.loads(done.stdout)["env"] == {"CUDA_VISIBLE_DEVICES": "7"} and "secret" not in done.stdout
