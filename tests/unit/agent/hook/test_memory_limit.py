"""--gpu-memory in real interpreters: with small packages in the frameworks' place, and with torch itself."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent_process import FLOOR
from seatrial.agent.hook import install
from tables import constant

SCRIPTS = constant(__file__, "scripts")


pythons = pytest.mark.parametrize("python", [p for p in (sys.executable, FLOOR) if p])


def run(tmp_path, python, program, limit_bytes=4_000_000_000, **variables):
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path), **variables}
    install.install(str(tmp_path / "hooks"), env, limit_bytes, measure_steps=False)
    command = [python, "-c", program]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout


@pythons
def test_torch_gets_its_fraction_when_cuda_starts_and_not_before(tmp_path, python):
    (tmp_path / "torch.py").write_text(SCRIPTS["torch"])
    program = "import torch; print('imported'); [call() for call in torch.cuda.queued]; print(torch.cuda.current)"
    printed = run(tmp_path, python, program).splitlines()
    assert printed == ["imported", "0.5 on 0 current 0", "0.5 on 1 current 1", "0"]


@pythons
def test_a_rank_touches_its_own_gpu_only_and_more_than_all_is_all(tmp_path, python):
    (tmp_path / "torch.py").write_text(SCRIPTS["torch"])
    program = "import torch; [call() for call in torch.cuda.queued]"
    printed = run(tmp_path, python, program, limit_bytes=9_000_000_000, LOCAL_RANK="1")
    assert printed == "1.0 on 1 current 1\n"


@pythons
def test_another_tensorflow_than_any_that_was_tried_still_imports(tmp_path, python):
    (tmp_path / "tensorflow.py").write_text("print('mine')")
    (tmp_path / "jaxlib").mkdir()
    (tmp_path / "jaxlib" / "xla_client.py").write_text("print('xla')")
    events = tmp_path / "events.jsonl"
    program = "import tensorflow, jaxlib.xla_client"
    assert run(tmp_path, python, program, SEATRIAL_EVENTS=str(events)) == "mine\nxla\n"
    reported = [json.loads(line)["gpu_memory"] for line in events.read_text().splitlines()]
    assert [each["framework"] for each in reported] == ["tensorflow", "jax"] and all(
        each["failed"] for each in reported
    )


@pythons
@pytest.mark.parametrize("own", [None, "print('mine')"])
def test_the_users_own_sitecustomize_still_runs(tmp_path, python, own):
    if own:
        (tmp_path / "sitecustomize.py").write_text(own)
    assert run(tmp_path, python, "print('script')") == ("mine\n" if own else "") + "script\n"


@pythons
def test_a_missing_framework_is_missing_as_ever(tmp_path, python):
    program = "try:\n    import tensorflow\nexcept ModuleNotFoundError as error: print(error)"
    assert run(tmp_path, python, program) == "No module named 'tensorflow'\n"


@pytest.mark.slow
@pytest.mark.torch
def test_the_real_torch_takes_it(tmp_path):
    pytest.importorskip("torch")
    program = "import torch; print(any('set_torch' in str(c[0].__code__.co_names) for c in torch.cuda._queued_calls))"
    assert run(tmp_path, sys.executable, program) == "True\n"


def test_remove_leaves_nothing(tmp_path):
    install.install(str(tmp_path / "hooks"), {}, 1, measure_steps=True)
    install.remove(str(tmp_path / "hooks"))
    assert not Path(tmp_path / "hooks").exists()
