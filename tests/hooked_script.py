"""Scripts run with the hook in their Python, and its reports."""

import json
import os
import subprocess
import sys

from seatrial.agent.hook import install

PREAMBLE = """
import hashlib, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(7); torch.set_num_threads(1)
data = TensorDataset(torch.randn(256, 12), torch.randint(0, 3, (256,)))
net = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 3))
losses = []
"""
ENDING = "\nprint(hashlib.sha256(repr(losses).encode()).hexdigest())\n"


def run(tmp_path, body, *, measured, preamble=PREAMBLE, ending=ENDING, **variables):
    script = tmp_path / "train.py"
    script.write_text(preamble + body + ending)
    events = tmp_path / "events.jsonl"
    events.unlink(missing_ok=True)
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SEATRIAL_EVENTS": str(events), **variables}
    if measured:
        install.install(str(tmp_path / "hooks"), env, None, measure_steps=True)
    ended = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    lines = [json.loads(line) for line in events.read_text().splitlines()] if events.exists() else []
    return ended.stdout, ended.stderr, lines


def last(lines, key):
    return [line[key] for line in lines if key in line][-1]
