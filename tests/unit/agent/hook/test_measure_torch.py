"""Scripts that know nothing of us, with the hook and without: its reports, and equal results."""

import os
import subprocess
import sys

import pytest

from hooked_script import ENDING, PREAMBLE, last, run
from seatrial.agent.hook import install

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

PLAIN = """
opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
for epoch in range(8):
    for x, y in DataLoader(data, batch_size=16, shuffle=True):
        opt.zero_grad(); loss = F.cross_entropy(net(x), y); loss.backward(); opt.step(); losses.append(loss.item())
"""


def test_steps_examples_regions_and_settings_of_a_plain_loop(tmp_path):
    _, _, lines = run(tmp_path, PLAIN, measured=True)
    reported, training = last(lines, "anatomy"), last(lines, "training")
    assert reported["steps"] == 8 * 16
    assert reported["examples"] == 8 * 256 - 16  # the first step's time is not in it, nor are its examples
    assert sum(reported["regions"].values()) == pytest.approx(reported["seconds"], rel=0.02)
    assert {"data", "other"} <= set(reported["regions"])
    assert {"data", "forward", "backward", "optimizer", "other"} <= set(reported["window"]["regions"])
    assert sum(reported["window"]["regions"].values()) == pytest.approx(reported["window"]["seconds"], rel=0.02)
    assert reported["pass"] == [16, 16]
    assert training["device"] == "cpu" and training["optimizer"] == "SGD"
    assert training["loader"] == {
        "workers": 0, "pin_memory": False, "persistent_workers": False, "batch_size": 16, "length": 16,
    }  # fmt: skip


def test_evaluation_between_steps_is_reported_as_evaluation(tmp_path):
    body = (
        PLAIN
        + """
    for x, y in DataLoader(data, batch_size=8):
        with torch.no_grad(): net(x); import time; time.sleep(0.004)
"""
    )
    reported = last(run(tmp_path, body, measured=True)[2], "anatomy")
    assert reported["steps"] == 128 and reported["examples"] == 2048 - 16
    assert reported["regions"]["evaluation"] > 0.5 * reported["seconds"]


def test_a_slow_dataset_is_time_in_data(tmp_path):
    body = """
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 256
    def __getitem__(self, i):
        import time; time.sleep(0.001); return data[i]
""" + PLAIN.replace("DataLoader(data", "DataLoader(Slow()").replace("range(8)", "range(1)")  # fmt: skip
    reported = last(run(tmp_path, body, measured=True)[2], "anatomy")
    assert reported["regions"]["data"] > 0.7 * reported["seconds"]


ACCUMULATED = """
opt = torch.optim.AdamW(net.parameters(), 0.01)
for number, (x, y) in enumerate(DataLoader(data, batch_size=16)):
    loss = F.cross_entropy(net(x), y); loss.backward(); losses.append(loss.item())
    if number % 4 == 3: opt.step(); opt.zero_grad()
"""
CLOSURE = """
opt = torch.optim.LBFGS(net.parameters(), max_iter=3)
for x, y in DataLoader(data, batch_size=64):
    def closure():
        opt.zero_grad(); loss = F.cross_entropy(net(x), y); loss.backward(); losses.append(loss.item()); return loss
    opt.step(closure)
"""
TWO_OPTIMIZERS = """
first, second = torch.optim.Adam(net[0].parameters(), 0.01), torch.optim.Adam(net[3].parameters(), 0.01)
for x, y in DataLoader(data, batch_size=16):
    loss = F.cross_entropy(net(x), y); loss.backward(); losses.append(loss.item())
    for opt in (first, second): opt.step(); opt.zero_grad()
"""
NO_LOADER = """
opt = torch.optim.Adam(net.parameters(), 0.01)
for step in range(64):
    pick = torch.randint(0, 256, (32,)); x, y = data.tensors[0][pick], data.tensors[1][pick]
    opt.zero_grad(); loss = F.cross_entropy(net(x), y); loss.backward(); opt.step(); losses.append(loss.item())
"""
AUTOCAST = PLAIN.replace("F.cross_entropy(net(x), y)", "autocast_loss(x, y)").replace(
    "opt =",
    "def autocast_loss(x, y):\n"
    "    with torch.autocast('cpu', torch.bfloat16): return F.cross_entropy(net(x), y)\n"
    "opt =",
)
WORKERS = PLAIN.replace("shuffle=True", "shuffle=True, num_workers=2, persistent_workers=True").replace(
    "range(8)", "range(2)"
)
SPAWNED = """
if __name__ == '__main__':
""" + "\n".join(
    "    " + line
    for line in PLAIN.replace("shuffle=True", "num_workers=1, multiprocessing_context='spawn'")
    .replace("range(8)", "range(1)")
    .splitlines()
)
GAN = """
other = nn.Linear(3, 1)
opt, adversary = torch.optim.Adam(net.parameters(), 0.01), torch.optim.Adam(other.parameters(), 0.01)
for x, _ in DataLoader(data, batch_size=16):
    adversary.zero_grad(); bad = other(net(x).detach()).mean(); bad.backward(); adversary.step()
    opt.zero_grad(); loss = -other(net(x)).mean(); loss.backward(); opt.step(); losses.append(loss.item())
"""
SCRIPTS = {
    "plain": (PLAIN, 128),
    "accumulated": (ACCUMULATED, 4),
    "closure": (CLOSURE, 4),
    "two optimizers": (TWO_OPTIMIZERS, 16),
    "no loader": (NO_LOADER, 64),
    "autocast": (AUTOCAST, 128),
    "workers": (WORKERS, 32),
    "spawned workers": (SPAWNED, 16),
    "gan": (GAN, 16),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_losses_are_equal_bit_for_bit_and_nothing_is_printed(tmp_path, name):
    body, steps = SCRIPTS[name]
    guarded = "\nif __name__ == '__main__':" + ENDING.replace("\n", "\n    ")
    with_hook = run(tmp_path, body, measured=True, ending=guarded)
    without = run(tmp_path, body, measured=False, ending=guarded)
    assert with_hook[:2] == without[:2] and without[2] == []
    assert not [line for line in with_hook[2] if "hook_stopped" in line]
    assert last(with_hook[2], "anatomy")["steps"] == steps


def test_forked_children_of_the_script_report_nothing(tmp_path):
    body = (
        PLAIN.replace("range(8)", "range(1)")
        + "import os\nif os.fork() == 0: losses = []; opt.step(); exit()\nos.wait()\n"
    )
    lines = run(tmp_path, body, measured=True)[2]
    assert len({line["anatomy"]["pid"] for line in lines if "anatomy" in line}) == 1


def test_an_error_in_the_hook_switches_it_off_and_reports_so(tmp_path):
    body = (
        "import seatrial_hook.steps as r\ndef bad(*_): raise RuntimeError('ours')\nr.Recorder.stepped = bad\n" + PLAIN
    )
    with_hook = run(tmp_path, body, measured=True)
    without = run(tmp_path, PLAIN, measured=False)
    assert with_hook[:2] == without[:2]
    assert last(with_hook[2], "hook_stopped")["reason"] == "RuntimeError: ours"


def test_saving_is_measured_and_public_functions_keep_their_identity(tmp_path):
    body = """
import io, pickle, sys
opt = torch.optim.SGD(net.parameters(), 0.1)
big = torch.randn(200, 1000).tolist()
for _ in range(40):
    net(torch.randn(4, 12)).sum().backward(); opt.step()
    torch.save({"net": net.state_dict(), "big": big}, io.BytesIO())
assert torch.save is torch.serialization.save and type(pickle.dump).__name__ == "builtin_function_or_method"
assert sys.excepthook is sys.__excepthook__
"""
    _, _, lines = run(tmp_path, body, measured=True)
    regions = last(lines, "anatomy")["regions"]
    assert regions["checkpoint"] > 0.5 * sum(regions.values())


def test_steps_of_optimizers_that_come_and_go_and_examples_of_the_sampler(tmp_path):
    body = """
import copy
def images(batch): return tuple(zip(*batch))
for client in range(12):
    local = copy.deepcopy(net); opt = torch.optim.SGD(local.parameters(), 0.1)
    for x, y in DataLoader(data, batch_size=64, collate_fn=images):
        opt.zero_grad(); F.cross_entropy(local(torch.stack(x)), torch.stack(y)).backward(); opt.step()
"""
    reported = last(run(tmp_path, body, measured=True)[2], "anatomy")
    assert reported["steps"] == 48 and reported["examples"] == 12 * 256 - 64
    assert reported["regions"].get("evaluation", 0) < 0.1 * reported["seconds"]


def test_gathered_gradients_of_updates_by_hand_are_one_step(tmp_path):
    body = """
for number in range(120):
    net(torch.randn(4, 12)).sum().backward()
    if number % 3 == 2:
        with torch.no_grad():
            for p in net.parameters(): p -= 0.01 * p.grad
        net.zero_grad()
"""
    assert last(run(tmp_path, body, measured=True)[2], "anatomy")["steps"] == 40


def test_functions_that_wait_may_take_their_tensor_by_name_within_a_window(tmp_path):
    body = PLAIN.replace("losses.append", "torch.nonzero(input=x); torch.histc(input=x, bins=4); losses.append")
    _, _, lines = run(tmp_path, body, measured=True)
    assert last(lines, "anatomy")["window"]["steps"] >= 10 and not any("hook_stopped" in line for line in lines)


def test_torch_is_as_it_was_between_windows(tmp_path):
    body = PLAIN + "assert 'item' not in vars(torch.Tensor), 'a window was left open'\n"
    assert run(tmp_path, body.replace("range(8)", "range(3)"), measured=True)[2]


@pytest.mark.slow
def test_compiled_steps_are_equal_too(tmp_path):
    body = """
net = torch.compile(net)
opt = torch.optim.Adam(net.parameters(), 0.01)
@torch.compile
def step(x, y):
    loss = F.cross_entropy(net(x), y); loss.backward(); opt.step(); opt.zero_grad(); return loss
for epoch in range(13):
    for x, y in DataLoader(data, batch_size=16): losses.append(step(x, y).item())
"""
    with_hook, without = run(tmp_path, body, measured=True), run(tmp_path, body, measured=False)
    assert with_hook[0] == without[0]
    assert last(with_hook[2], "anatomy")["steps"] == 208


@pytest.mark.slow
def test_compiling_is_reported_when_it_begins_and_not_of_a_run_that_has_trained(tmp_path):
    body = """
net = torch.compile(net, backend="aot_eager")
opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(30):
    net(torch.randn(4, 12)).sum().backward(); opt.step()
"""
    _, _, lines = run(tmp_path, body, measured=True)
    reported = [line["training"] for line in lines if "training" in line]
    assert reported[0]["compiles_since_s"] > 0 and "compiles_since_s" not in reported[-1]


@pytest.mark.slow
def test_a_compiled_optimizers_steps_are_counted_and_its_graphs_are_the_same(tmp_path):
    body = """
opt = torch.optim.Adam(net.parameters(), 0.01)
@torch.compile(backend="aot_eager")
def step(): opt.step()
for epoch in range(3):
    for x, y in DataLoader(data, batch_size=16):
        loss = F.cross_entropy(net(x), y); loss.backward(); step(); opt.zero_grad(set_to_none=False)
        losses.append(loss.item())
import torch._dynamo.utils
print(dict(torch._dynamo.utils.counters["stats"]))
"""
    with_hook, without = run(tmp_path, body, measured=True), run(tmp_path, body, measured=False)
    assert with_hook[0] == without[0]
    assert last(with_hook[2], "anatomy")["steps"] == 48


def test_an_evaluation_that_is_left_early_is_evaluation_and_the_next_pass_is_not(tmp_path):
    body = """
import time
opt = torch.optim.SGD(net.parameters(), 0.1)
for epoch in range(4):
    for number, (x, y) in enumerate(DataLoader(data, batch_size=16)):
        loss = F.cross_entropy(net(x), y); loss.backward(); losses.append(loss.item())
        if number % 2: opt.step(); opt.zero_grad()
    for number, (x, y) in enumerate(DataLoader(data, batch_size=8)):
        time.sleep(0.02)
        if number == 4: break
"""
    reported = last(run(tmp_path, body, measured=True)[2], "anatomy")
    assert reported["steps"] == 32 and reported["examples"] == 4 * 256 - 32
    assert 0.25 < reported["regions"]["evaluation"] < 0.6  # 3 or 4 of them, 0.1 s each, on a busy machine


def test_collectives_of_the_script_are_communication(tmp_path):
    body = """
import os, time
import torch.distributed as dist
dist.init_process_group("gloo", init_method="file://" + os.getcwd() + "/meet", rank=0, world_size=1)
opt = torch.optim.SGD(net.parameters(), 0.1)
for x, y in DataLoader(data, batch_size=16):
    loss = F.cross_entropy(net(x), y); loss.backward(); dist.all_reduce(loss.detach()); dist.barrier()
    opt.step(); opt.zero_grad(); losses.append(loss.item())
dist.destroy_process_group()
"""
    with_hook, without = run(tmp_path, body, measured=True), run(tmp_path, body.replace("meet", "here"), measured=False)
    assert with_hook[0] == without[0]
    assert last(with_hook[2], "anatomy")["regions"]["communication"] > 0


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
