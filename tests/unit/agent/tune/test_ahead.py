"""Processes that were started ahead: they import, wait, become the trial that they are told, and never outlive it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from seatrial.agent.hook import install as hook
from seatrial.agent.tune import trial
from seatrial.agent.tune.ahead import Ahead, how_many
from seatrial.agent.tune.spec import Spec
from seatrial.probe import proc

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

#: Its head imports; what follows leaves traces in begun.txt, and an optimizer's steps.
SCRIPT = """
import os, sys
import torch
import torch.utils.data as d
from torch.utils.data import DataLoader, TensorDataset
open("begun.txt", "a").write("%d %s\\n" % (os.getpid(), os.environ.get("SEATRIAL_TUNE")))
torch.set_num_threads(1); __import__("time").sleep(0.3)
net = torch.nn.Linear(4, 2); opt = torch.optim.SGD(net.parameters(), 0.1)
data = TensorDataset(torch.randn(64, 4))
while True:
    for [x] in DataLoader(data, batch_size=8):
        loss = net(x).square().mean(); opt.zero_grad(); loss.backward(); opt.step()
"""


@pytest.fixture(autouse=True)
def others_live_on(monkeypatch):
    """A trial's end is that of all processes below its driver, which here is the tests' own process: what other tests
    have started below it, such as the fork server, is not the trial's."""
    below, others = proc.descendants, {each.pid for each in proc.descendants(os.getpid())}
    monkeypatch.setattr(proc, "descendants", lambda pid: [each for each in below(pid) if each.pid not in others])
    bystander = subprocess.Popen(["sleep", "60"])
    others.add(bystander.pid)
    yield
    lived = state(bystander.pid) not in (None, "Z")
    bystander.kill()
    bystander.wait()
    assert lived, "a trial's end was that of a process of another test"


@pytest.fixture
def spec(tmp_path, monkeypatch):
    """spec(script) → a Spec whose trials run it with the hook; all in a folder of the test's."""
    monkeypatch.chdir(tmp_path)
    env = {"PYTHONPATH": ""}
    hook.install(str(tmp_path / "hooks"), env, None, measure_steps=True)
    for name, value in env.items():
        monkeypatch.setenv(name, value)

    def spec(script):
        (tmp_path / "train.py").write_text(script)
        folder = tmp_path / "tune"
        return Spec(argv=[sys.executable, "train.py"], folder=str(folder), steps=20, seconds=1.0)

    return spec


def until(holds, seconds=30.0):
    end_s = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def begun(tmp_path):
    path = tmp_path / "begun.txt"
    return path.read_text().splitlines() if path.exists() else []


def state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None


def test_a_process_started_ahead_waits_behind_its_imports_and_is_the_trial_that_it_is_told(spec, tmp_path):
    asked = spec(SCRIPT)
    ahead = Ahead(asked, 1)
    try:
        first = trial.run(asked, 1, {}, 0, 60.0, ahead)
        assert first.measured and len(ahead._waiting) == 1
        [waiting] = ahead._waiting
        until(lambda: waiting.held is not None)
        assert waiting.held == {"clean": True, "waits": True} and state(waiting.process.pid) in "SR"
        time.sleep(0.2)
        assert len(begun(tmp_path)) == 1  # not a line behind its imports
        second = trial.run(asked, 2, {"workers": 1}, 3, 60.0, ahead)
        assert second.report["pid"] == waiting.process.pid
        assert second.measured and second.applied == {"workers": 1} and second.report["seed_offset"] == 3
        assert second.report["losses"][0] != first.report["losses"][0]  # another seed
        until(lambda: ahead._waiting[0].held is not None)
        third = trial.run(asked, 3, {}, 0, 60.0, ahead)
        assert third.losses[:30] == first.losses[:30] and third.applied == {}  # as if it never had waited
    finally:
        ahead.end()
    assert not [each for each in Path("/proc").iterdir() if each.name.isdigit() and _is_ours(each, tmp_path)]


def _is_ours(process, tmp_path):
    try:
        return process.joinpath("cwd").readlink() == tmp_path and b"train.py" in (process / "cmdline").read_bytes()
    except OSError:
        return False


def test_while_a_trial_measures_what_was_started_ahead_stands_still(spec, tmp_path):
    asked = spec(SCRIPT.replace("import os, sys\n", "import os, sys\nimport slow\n"))
    (tmp_path / "slow.py").write_text("import time\n[time.sleep(0.01) for _ in range(3000)]\n")
    ahead = Ahead(asked, 1)
    slow = ahead._start()
    ahead._waiting.append(slow)
    try:
        (tmp_path / "slow.py").write_text("")
        now = ahead._start()
        (Path(now.folder) / "release.json").write_text('{"SEATRIAL_TRIAL": "{}"}')
        until(lambda: now.measures or ahead.look(now))
        ahead.look(now)
        until(lambda: state(slow.process.pid) == "T")
        now.process.kill()
        now.process.wait()
        ahead.go_on()
        until(lambda: state(slow.process.pid) in ("S", "R"))
    finally:
        ahead.end()
    assert slow.process.returncode == -signal.SIGKILL and not Path(slow.folder).exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "head",
    [
        "import torch\n",
        "import argparse\nDATA = argparse.ArgumentParser().parse_args()\nimport torch\n",
        "def main():\n    import torch\n    return torch\ntorch = main()\n",
        "import local\nfrom local import torch\n",
        "import importlib\ntorch = importlib.import_module('torch')\n",
        "try:\n    import torch, missing_one\nexcept ImportError:\n    import torch\n",
        "if True:\n    import torch\n    import numpy\nelse:\n    import tensorflow\n",
    ],
    ids=["first", "behind work", "in a function", "by a local module", "by name", "tried", "under if"],
)
def test_wherever_torch_is_imported_the_trial_is_told_in_time(spec, tmp_path, head):
    (tmp_path / "local.py").write_text("import torch\nVALUE = torch.zeros(3)\n")
    asked = spec(SCRIPT.replace("import os, sys\nimport torch\n", "import os, sys\n" + head))
    ahead = Ahead(asked, 1)
    try:
        made = trial.run(asked, 1, {"workers": 1}, 0, 60.0, ahead)
        assert made.measured and made.applied == {"workers": 1}, made.output
        waits = list(ahead._waiting)
        if "parse_args" in head or "def main" in head or "import_module" in head:
            assert not waits  # it does more than import before
    finally:
        ahead.end()


def test_a_process_that_waits_ends_when_its_driver_is_killed(spec, tmp_path):
    asked = spec(SCRIPT)
    driver = (
        "import sys, time; from seatrial.agent.tune.ahead import Ahead; from seatrial.agent.tune.spec import Spec\n"
        f"ahead = Ahead(Spec(argv={asked.argv!r}, folder={asked.folder!r}), 1); started = ahead._start()\n"
        "print(started.process.pid, flush=True); time.sleep(60)"
    )
    source = str(Path(trial.__file__).parents[3])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([source, os.environ["PYTHONPATH"]])}
    process = subprocess.Popen([sys.executable, "-c", driver], env=env, stdout=subprocess.PIPE, text=True)
    pid = int(process.stdout.readline())
    until(lambda: (Path(asked.folder) / "01" / "held.json").exists())
    assert json.loads((Path(asked.folder) / "01" / "held.json").read_text())["waits"]
    process.kill()
    process.wait()
    until(lambda: state(pid) in (None, "Z"), 5)


def test_few_cores_or_little_memory_start_nothing_ahead():
    assert how_many(2, None) == how_many(3, 1 << 40) == how_many(16, 2 << 30) == 0
    assert how_many(4, 64 << 30) == 1 and how_many(16, None) == 2
