"""The hook under other versions of torch: SEATRIAL_TORCHES names interpreters and the folders of their torch.

SEATRIAL_TORCHES="python3.8=/path/torch-1.13.1:python3.9=/path/torch-2.0.1"
"""

import json
import os
import subprocess
import sys

import pytest

from seatrial.agent.hook import install

GIVEN = [one.partition("=")[::2] for one in os.environ.get("SEATRIAL_TORCHES", "").split(":") if "=" in one]

SCRIPT = """
import hashlib, sys, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(7); torch.set_num_threads(1)
data = TensorDataset(torch.randn(512, 1, 28, 28), torch.randint(0, 10, (512,)))
net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(676, 10))
if "compiled" in sys.argv: net = torch.compile(net, backend="aot_eager")
losses, opt = [], torch.optim.Adadelta(net.parameters())
for epoch in range(2):
    for x, y in DataLoader(data, batch_size=16, shuffle=True):
        opt.zero_grad(); loss = F.cross_entropy(net(x), y); loss.backward(); opt.step(); losses.append(loss.item())
    with torch.no_grad():
        for x, y in DataLoader(data, batch_size=64): net(x)
print(hashlib.sha256(repr(losses).encode()).hexdigest())
"""


@pytest.mark.slow
@pytest.mark.skipif(not GIVEN, reason="SEATRIAL_TORCHES names no other versions of torch")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(("python", "folder"), GIVEN)
def test_losses_are_equal_and_steps_are_counted(tmp_path, python, folder, compiled):
    def run(measured):
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SEATRIAL_EVENTS": str(events), "PYTHONPATH": folder}
        if measured:
            install.install(str(tmp_path / "hooks"), env, None, measure_steps=True)
        command = [python or sys.executable, "-c", SCRIPT, *(["compiled"] if compiled else [])]
        ended = subprocess.run(command, env=env, capture_output=True, text=True)
        if compiled and "has no attribute 'compile'" in ended.stderr:
            pytest.skip("this torch has no torch.compile")
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    events = tmp_path / "events.jsonl"
    assert run(measured=False) == run(measured=True)
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    assert not [line for line in lines if "hook_stopped" in line]
    reported = [line["anatomy"] for line in lines if "anatomy" in line][-1]
    assert reported["steps"] == 64 and reported["examples"] == 1024 - 16
    assert reported["regions"]["evaluation"] > 0 and reported["window"]["regions"]["optimizer"] > 0
