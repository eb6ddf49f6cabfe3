"""Scripts that know nothing of us, with the hook and without: its reports, and equal results."""

import pytest

from hooked_script import ENDING, last, run

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


def test_a_model_that_is_pickled_is_saved(tmp_path):
    body = """
import io, pickle
opt = torch.optim.SGD(net.parameters(), 0.1)
big = torch.randn(200, 1000).tolist()
for _ in range(40):
    net(torch.randn(4, 12)).sum().backward(); opt.step()
    pickle.dump({"net": net.state_dict(), "big": big}, io.BytesIO())
"""
    _, _, lines = run(tmp_path, body, measured=True)
    regions = last(lines, "anatomy")["regions"]
    assert regions["checkpoint"] > 0.5 * sum(regions.values())


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
