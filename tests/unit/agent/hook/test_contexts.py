"""Wrapped functions of torch still work: contexts without gradients, loaders without a length."""

import os
import subprocess
import sys

import pytest

from hooked_script import PREAMBLE, last, run
from seatrial.agent.hook import install

pytestmark = pytest.mark.torch
pytest.importorskip("torch")


def test_evaluation_without_loader_and_without_modes(tmp_path):
    body = """
opt = torch.optim.SGD(net.parameters(), 0.1)
x, y = data.tensors
import time
for step in range(30):
    opt.zero_grad(); loss = F.cross_entropy(net(x), y); loss.backward(); opt.step(); losses.append(loss.item())
    if step % 10 == 9:
        with torch.no_grad():
            until = time.time() + 0.3
            while time.time() < until:
                net(x)
"""
    _, _, lines = run(tmp_path, body, measured=True)
    reported = last(lines, "anatomy")
    assert reported["regions"]["evaluation"] > 0.55  # the last one came after the last step


def test_modes_report_evaluation_from_training_and_a_teacher_is_neither(tmp_path):
    body = """
import time
teacher = nn.Linear(12, 3).eval()
opt = torch.optim.SGD(net.parameters(), 0.1)
x, y = data.tensors
for step in range(40):
    net.train()
    with torch.no_grad(): teacher(x)
    opt.zero_grad(); loss = F.cross_entropy(net(x), y); loss.backward(); opt.step(); losses.append(loss.item())
    if step % 10 == 9:
        net.eval(); time.sleep(0.2)
"""
    _, _, lines = run(tmp_path, body, measured=True)
    reported = last(lines, "anatomy")
    assert 0.5 < reported["regions"]["evaluation"] < 0.8


def test_script_and_trace_know_their_contexts(tmp_path):
    body = """
@torch.jit.script
def twice(x):
    with torch.no_grad():
        return x * 2
@torch.no_grad()
def thrice(x):
    return x * 3
x = torch.ones(2, requires_grad=True)
assert not twice(x).requires_grad and not thrice(x).requires_grad and (x * 2).requires_grad
with torch.inference_mode():
    assert (x * 2).is_inference()
try:
    with torch.no_grad():
        raise KeyError
except KeyError:
    assert torch.is_grad_enabled()
torch.autograd.grad((x * 2).sum(), x)
losses.append(1)
"""
    run(tmp_path, body, measured=True)


def test_a_loader_without_a_length_is_measured(tmp_path):
    body = """
class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        while True:
            yield torch.randn(12), 1
opt = torch.optim.SGD(net.parameters(), 0.1)
for step, (x, y) in enumerate(DataLoader(Endless(), batch_size=8)):
    opt.zero_grad(); loss = F.cross_entropy(net(x), y); loss.backward(); opt.step(); losses.append(loss.item())
    if step > 40: break
"""
    _, _, lines = run(tmp_path, body, measured=True)
    assert not any("hook_stopped" in line for line in lines)
    assert last(lines, "anatomy")["steps"] == 42


def test_a_script_without_steps_reports_what_torch_it_has(tmp_path):
    _, _, lines = run(tmp_path, "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '-1'\n", measured=True)
    training = last(lines, "training")
    assert training["cuda_used"] is False and training["visible_changed"] == "-1" and "cuda_build" in training


def test_what_comes_after_the_last_step_is_not_in_the_steps(tmp_path):
    body = """
import time
opt = torch.optim.SGD(net.parameters(), 0.1)
for step in range(20):
    opt.zero_grad(); loss = net(data.tensors[0]).sum(); loss.backward(); opt.step(); losses.append(loss.item())
time.sleep(1.5)
"""
    _, _, lines = run(tmp_path, body, measured=True)
    assert last(lines, "anatomy")["seconds"] < 1.2 and last(lines, "anatomy")["steps"] == 20


def test_warnings_and_tracebacks_name_lines_of_the_script_and_none_of_the_hooks(tmp_path):
    body = """
import warnings
warnings.simplefilter("always")
opt = torch.optim.SGD(net.parameters(), 0.1)
def callers(which):
    for level in range(2, 9):  # of a file of torch, of torch's iterator, of the loop
        warnings.warn("%s, %d callers up" % (which, level), stacklevel=level)
class Warns(torch.utils.data.Dataset):
    def __len__(self): return 600
    def __getitem__(self, i):
        if i % 96 == 0: callers("data")
        if i == 599: raise ValueError("the last one")
        return data[i % 256]
loss_hook = lambda gradient: callers("backward")
for x, y in DataLoader(Warns(), batch_size=16):
    loss = F.cross_entropy(net(x), y); loss.register_hook(loss_hook); opt.zero_grad(); loss.backward(); opt.step()
"""
    outputs = []
    for measured in (False, True):
        (tmp_path / "train.py").write_text(PREAMBLE + body)
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SEATRIAL_EVENTS": str(tmp_path / "events.jsonl")}
        if measured:
            install.install(str(tmp_path / "hooks"), env, None, measure_steps=True)
        ended = subprocess.run([sys.executable, "train.py"], env=env, capture_output=True, text=True, cwd=tmp_path)
        assert ended.returncode == 1 and "ValueError: the last one" in ended.stderr
        outputs.append(ended.stderr)
    assert outputs[0].count("callers up") >= 200
    assert outputs[1] == outputs[0]
