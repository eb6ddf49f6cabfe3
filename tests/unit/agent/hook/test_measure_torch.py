"""Scripts that know nothing of us, with the hook and without: its reports, and equal results."""

import os
import subprocess
import sys

import pytest

from hooked_script import ENDING, PREAMBLE, last, run
from seatrial.agent.hook import install
from seatrial.common.signals import read_anatomy
from tables import cases, constant

pytestmark = pytest.mark.torch
pytest.importorskip("torch")
SCRIPTS = constant(__file__, "scripts")
PLAIN = SCRIPTS["plain"]


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
    loader = {"workers": 0, "pin_memory": False, "persistent_workers": False, "batch_size": 16, "length": 16}
    assert training["loader"] == loader


@cases("body", "region", "share", "of_seconds", "steps", "examples")
def test_time_is_reported_as_what_it_was_spent_on(tmp_path, body, region, share, of_seconds, steps, examples):
    lines = run(tmp_path, body, measured=True)[2]
    reported = last(lines, "anatomy")
    assert reported["steps"] == steps and examples in (None, reported["examples"])
    spent = reported["regions"].get(region, 0) / (1 if of_seconds is False else reported["seconds"])
    assert share[0] <= spent <= share[1] and not any("hook_stopped" in line for line in lines)


STEPS = {"plain": 128, "accumulated": 4, "closure": 4, "two-optimizers": 16, "no-loader": 64, "autocast": 128,
         "workers": 32, "spawned-workers": 16, "gan": 16, "collectives": 16}  # fmt: skip
COMPILED = [pytest.param(name, steps, marks=pytest.mark.slow)
            for name, steps in (("compiled-step", 208), ("compiled-optimizer", 48))]  # fmt: skip


@pytest.mark.parametrize(("name", "steps"), [*STEPS.items(), *COMPILED])
def test_losses_are_equal_bit_for_bit_and_nothing_is_printed(tmp_path, name, steps):
    guarded = "\nif __name__ == '__main__':" + ENDING.replace("\n", "\n    ")
    with_hook = run(tmp_path, SCRIPTS[name], measured=True, ending=guarded)
    without = run(tmp_path, SCRIPTS[name], measured=False, ending=guarded)
    assert with_hook[0] == without[0] and without[2] == []
    assert name not in STEPS or with_hook[1] == without[1]
    assert not [line for line in with_hook[2] if "hook_stopped" in line]
    reported = last(with_hook[2], "anatomy")
    assert reported["steps"] == steps and (name != "collectives" or reported["regions"]["communication"] > 0)


def test_forked_children_of_the_script_report_nothing(tmp_path):
    forks = "import os\nif os.fork() == 0: losses = []; opt.step(); exit()\nos.wait()\n"
    lines = run(tmp_path, PLAIN.replace("range(8)", "range(1)") + forks, measured=True)[2]
    assert len({line["anatomy"]["pid"] for line in lines if "anatomy" in line}) == 1


def test_an_error_in_the_hook_switches_it_off_and_reports_so(tmp_path):
    ours = "import seatrial_hook.steps as r\ndef bad(*_, **__): raise RuntimeError('ours')\nr.Recorder.stepped = bad\n"
    with_hook, without = run(tmp_path, ours + PLAIN, measured=True), run(tmp_path, PLAIN, measured=False)
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


@cases("batches", "each", "examples")
def test_examples_are_those_of_the_batches_that_a_step_uses(tmp_path, batches, each, examples):
    """16 batches of 16 a pass; 0 is unknown."""
    body = f"""
import queue, threading
opt = torch.optim.SGD(net.parameters(), 0.1)
def loader(): return DataLoader(data, batch_size=16)
def step(x, y): loss = F.cross_entropy(net(x), y); opt.zero_grad(); loss.backward(); opt.step()
{batches}
for epoch in range(4):
    for x, y in batches():
        {each}
"""
    lines = run(tmp_path, body, measured=True)[2]
    assert last(lines, "anatomy")["examples"] == examples and not any("hook_stopped" in line for line in lines)


def test_plain_steps_are_counted_around_skipped_batches_and_evaluation_between_them(tmp_path):
    body = """
opt = torch.optim.SGD(net.parameters(), 0.1)
for epoch in range(4):
    for number, (x, y) in enumerate(DataLoader(data, batch_size=4)):
        if epoch == 1 and number in (30, 31, 40): continue
        if number == 50:
            net.eval()
            with torch.no_grad():
                for seen, _ in DataLoader(data, batch_size=64): net(seen)
            net.train()
        opt.zero_grad(); F.cross_entropy(net(x), y).backward(); opt.step()
"""
    lines = run(tmp_path, body, measured=True)[2]
    reported = last(lines, "anatomy")
    assert reported["steps"] == 4 * 64 - 3 and reported["examples"] == 4 * 256 - 4
    assert reported["regions"]["evaluation"] > 0 and reported["regions"]["other"] > 0
    assert sum(reported["regions"].values()) == pytest.approx(reported["seconds"], rel=0.02)
    assert not any("hook_stopped" in line for line in lines)


def test_examples_stay_around_an_evaluation_in_the_training_mode(tmp_path):
    body = """
opt = torch.optim.SGD(net.parameters(), 0.1)
for number, (x, y) in enumerate(DataLoader(data, batch_size=4)):
    if number == 50:
        for seen, _ in DataLoader(data, batch_size=64): net(seen)
    opt.zero_grad(); F.cross_entropy(net(x), y).backward(); opt.step()
"""
    reported = last(run(tmp_path, body, measured=True)[2], "anatomy")
    assert (reported["steps"], reported["examples"]) == (64, 252) and reported["regions"]["evaluation"] > 0


def test_batches_that_plain_steps_leave_unused_are_no_examples_of_steps(tmp_path):
    body = """
opt = torch.optim.SGD(net.parameters(), 0.1)
for number, (x, y) in enumerate(DataLoader(data, batch_size=4)):
    if number < 40: opt.zero_grad(); F.cross_entropy(net(x), y).backward(); opt.step()
    else:
        with torch.no_grad(): net(x)
"""
    reported = last(run(tmp_path, body, measured=True)[2], "anatomy")
    assert (reported["steps"], reported["examples"]) == (40, 39 * 4)


def test_windows_that_cost_much_are_few(tmp_path):
    body = """
import time
import seatrial_hook.torch_windows as windows
place = windows.Windows._place
def slowly(opened): time.sleep(0.05); place(opened)
windows.Windows._place = slowly
opt = torch.optim.SGD(net.parameters(), 0.1)
began = time.perf_counter()
while time.perf_counter() - began < 3.5:
    for x, y in DataLoader(data, batch_size=16):
        opt.zero_grad(); F.cross_entropy(net(x), y).backward(); opt.step(); time.sleep(0.001)
"""
    assert last(run(tmp_path, body, measured=True)[2], "anatomy")["window"]["steps"] == 10


def test_rates_end_with_the_last_step(tmp_path):
    body = """
opt = torch.optim.SGD(net.parameters(), 0.1)
for x, y in DataLoader(data, batch_size=16):
    opt.zero_grad(); F.cross_entropy(net(x), y).backward(); opt.step()
import time; time.sleep(0.3)
"""
    lines = run(tmp_path, body, measured=True)[2]
    reported, [measured] = last(lines, "anatomy"), read_anatomy(lines)
    assert reported["seconds"] - reported["stepped_s"] > 0.29
    assert measured.examples_per_s == pytest.approx(240 / reported["stepped_s"])


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


def test_functions_that_wait_may_take_their_tensor_by_name_and_contexts_are_known_to_script_and_trace(tmp_path):
    body = PLAIN.replace("losses.append", "torch.nonzero(input=x); torch.histc(input=x, bins=4); losses.append")
    lines = run(tmp_path, body, measured=True)[2]
    assert last(lines, "anatomy")["window"]["steps"] >= 10 and not any("hook_stopped" in line for line in lines)
    run(tmp_path, SCRIPTS["contexts-of-script-and-trace"], measured=True)


def test_torch_is_as_it_was_between_windows(tmp_path):
    body = PLAIN + "assert 'item' not in vars(torch.Tensor), 'a window was left open'\n"
    assert run(tmp_path, body.replace("range(8)", "range(3)"), measured=True)[2]


@pytest.mark.slow
def test_compiling_is_reported_when_it_begins_and_not_of_a_run_that_has_trained(tmp_path):
    lines = run(tmp_path, SCRIPTS["compiles-first"], measured=True)[2]
    reported = [line["training"] for line in lines if "training" in line]
    assert reported[0]["compiles_since_s"] > 0 and "compiles_since_s" not in reported[-1]


def test_a_script_without_steps_reports_what_torch_it_has(tmp_path):
    lines = run(tmp_path, "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '-1'\n", measured=True)[2]
    training = last(lines, "training")
    assert training["cuda_used"] is False and training["visible_changed"] == "-1" and "cuda_build" in training


def test_warnings_and_tracebacks_name_lines_of_the_script_and_none_of_the_hooks(tmp_path):
    outputs = []
    for measured in (False, True):
        (tmp_path / "train.py").write_text(PREAMBLE + SCRIPTS["warnings"])
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SEATRIAL_EVENTS": str(tmp_path / "events.jsonl")}
        if measured:
            install.install(str(tmp_path / "hooks"), env, None, measure_steps=True)
        ended = subprocess.run([sys.executable, "train.py"], env=env, capture_output=True, text=True, cwd=tmp_path)
        assert ended.returncode == 1 and "ValueError: the last one" in ended.stderr
        outputs.append(ended.stderr)
    assert outputs[0].count("callers up") >= 200 and outputs[1] == outputs[0]
