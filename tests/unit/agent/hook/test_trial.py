"""A process that is a trial of `seatrial tune`: it is measured, reports and ends, in any kind of script."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pace import until
from seatrial.agent.hook import install
from seatrial.agent.tune.trial import restore
from tables import constant

SCRIPTS = constant(__file__, "scripts")

pytestmark = pytest.mark.torch
pytest.importorskip("torch")


def loop(epochs=9999, loader="", more="pass"):
    return SCRIPTS["preamble"] + SCRIPTS["loop"].format(epochs=epochs, loader=loader, more=more)


def trial(tmp_path, script, *, prefix=(), seed_offset=0, seconds=6.0, requested=True, changes=None, tried=()):
    (tmp_path / "train.py").write_text(script)
    folder = tmp_path / "reported"
    folder.mkdir(exist_ok=True)
    events = folder / "events.jsonl"
    events.unlink(missing_ok=True)
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SEATRIAL_EVENTS": str(events)}
    install.install(str(tmp_path / "hooks"), env, None, measure_steps=True)
    if requested:
        env["SEATRIAL_TRIAL"] = json.dumps(
            {"warmup_steps": 10, "steps": 20, "seconds": seconds, "seed_offset": seed_offset, "tried": tried}
        )
    if changes:
        env["SEATRIAL_TUNE"] = json.dumps(changes)
    command = [sys.executable, *prefix, "train.py"]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    lines = [json.loads(line) for line in events.read_text().splitlines()] if events.exists() else []
    return ended, [line["trial"] for line in lines if "trial" in line]


def test_an_endless_script_ends_itself_and_reports_its_rate_and_the_losses_that_it_has_without_us(tmp_path):
    more = "print('loss', loss.item())\n        if epoch == 3: raise SystemExit"
    plain, reported = trial(tmp_path, loop(more=more), requested=False)
    assert not reported
    ended, [one] = trial(tmp_path, "import atexit; atexit.register(print, 'farewell')\n" + loop())
    assert ended.returncode == 0 and ended.stderr == "" and "farewell" not in ended.stdout
    assert one["ended"] in ("steps", "seconds") and one["steps"] >= 20 and one["warmup_steps"] >= 10
    assert one["steps_per_s"] == pytest.approx(one["steps"] / one["seconds"], rel=0.01)
    assert one["examples_per_s"] == pytest.approx(16 * one["steps_per_s"], rel=0.01)
    alone = [float(line.split()[1]) for line in plain.stdout.splitlines() if line.startswith("loss")][:40]
    assert len(alone) == 40 and one["losses"][:40] == pytest.approx(alone, rel=1e-6)


@pytest.mark.slow
def test_a_script_that_catches_everything_and_a_trainer_with_nested_loops_end_too(tmp_path):
    script = SCRIPTS["preamble"] + SCRIPTS["nested"]
    ended, [one] = trial(tmp_path, script)
    assert ended.returncode == 0 and "goes on" not in ended.stdout
    assert one["examples_per_s"] == pytest.approx(16 * one["steps_per_s"], rel=0.02)  # two batches of eight a step
    assert len([loss for loss in one["losses"] if loss is not None]) == len(one["losses"]) > 20
    assert one["losses"][0] == pytest.approx(0.55, abs=0.15)  # the mean of the step's two backward passes


def test_seeds_are_set_in_every_way_that_scripts_set_them():
    import random

    import numpy
    import torch

    from seatrial.agent.hook.trial import seed

    owners = [(torch, "manual_seed"), (torch.random, "manual_seed"), (random, "seed"), (numpy.random, "seed")]
    before = [getattr(owner, name) for owner, name in owners]
    try:
        seed(torch, 3)
        torch.manual_seed(seed=4)
        assert torch.initial_seed() == 7 and torch.manual_seed(4).initial_seed() == 7
        random.seed(a=4), numpy.random.seed(seed=4)
        assert (random.random(), numpy.random.rand()) == (random.Random(7).random(), numpy.random.RandomState(7).rand())
        random.seed("text"), random.seed(), numpy.random.seed(None)
    finally:
        for (owner, name), original in zip(owners, before, strict=True):
            setattr(owner, name, original)


@pytest.mark.slow
def test_a_scaled_loss_is_reported_as_it_was_before(tmp_path):
    body = """
scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
while True:
    for x, y in DataLoader(data, batch_size=16):
        loss = F.cross_entropy(net(x), y); opt.zero_grad()
        scaler.scale(loss).backward(); scaler.step(opt); scaler.update()
"""
    _, [one] = trial(tmp_path, SCRIPTS["preamble"] + body)
    assert 0 < one["losses"][0] < 3


@pytest.mark.slow
def test_another_seed_differs_in_scripts_that_fix_theirs_and_the_same_is_the_same_in_those_that_do_not(tmp_path):
    unseeded = loop().replace("torch.manual_seed(7); ", "")
    runs = [
        trial(tmp_path, script, seed_offset=n)[1][0] for script, n in ((loop(), 0), (loop(), 1), *[(unseeded, 0)] * 2)
    ]
    fixed, other, free, free_again = (run["losses"][:20] for run in runs)
    assert fixed != other and free == free_again != fixed


def test_a_script_that_ends_before_the_trial_reports_what_there_is(tmp_path):
    ended, [one] = trial(tmp_path, loop(epochs=1) + "\nprint('done')", seconds=20.0)
    assert ended.stdout == "done\n"
    assert one["ended"] == "script" and one["all_steps"] == 32 and 15 <= one["steps"] <= 22
    _, [none] = trial(tmp_path, "import torch\nprint(torch.ones(1))")
    assert none["steps"] == none["all_steps"] == 0


@pytest.mark.slow
def test_workers_are_gone_when_it_is_and_their_queues_are_empty_before_it_measures(tmp_path):
    script = loop(loader=", num_workers=2, prefetch_factor=9, multiprocessing_context='fork'")
    _, [one] = trial(tmp_path, script)
    assert one["warmup_steps"] >= 20
    until(lambda: not any(_leads_to(path, tmp_path) for path in Path("/proc").glob("[0-9]*/cwd")), "the workers' end")


def _leads_to(path, folder):
    try:
        return path.readlink() == folder
    except OSError:
        return False


def test_checkpoints_are_not_written_and_files_that_it_changes_are_put_back(tmp_path):
    before = {"log.txt": "the user's log\n", "old.pt": "weights", "last.csv": "a,b\n", "best.ckpt": "best"}
    for name, text in before.items():
        (tmp_path / name).write_text(text)
    more = SCRIPTS["files"]
    ended, [one] = trial(tmp_path, loop(more=more))
    assert ended.returncode == 0, ended.stderr
    assert one["kept_files"]["skipped"] >= 2
    done = restore(str(tmp_path / "reported" / "events.jsonl"))
    assert {name: (tmp_path / name).read_text() for name in before} == before
    assert not (tmp_path / "model.pt").exists() and not (tmp_path / "events.out.tfevents.1").exists()
    assert (tmp_path / "data.bin").exists() and done["new"] == [str(tmp_path / "data.bin")]
    assert done["restored"] == 3 and done["removed"] == 1


def test_a_script_that_renames_and_links_its_checkpoint_goes_on_and_nothing_of_it_is_left(tmp_path):
    """Like timm's CheckpointSaver does: tmp.pth.tar is renamed to last.pth.tar, which gets further names."""
    (tmp_path / "best.bin").write_text("the user's best")
    more = SCRIPTS["links"]
    ended, [one] = trial(tmp_path, loop(more=more))
    assert ended.returncode == 0 and one["ended"] in ("steps", "seconds"), ended.stderr
    restore(str(tmp_path / "reported" / "events.jsonl"))
    assert sorted(path.name for path in tmp_path.glob("*.*")) == ["best.bin", "train.py"]
    assert (tmp_path / "best.bin").read_text() == "the user's best"


def test_a_trial_whose_change_is_refused_ends_at_once_and_one_with_half_of_it_goes_on(tmp_path):
    changes = {"pin_memory": True, "workers": 1}  # without a GPU the first is refused
    _, [one] = trial(tmp_path, loop(), changes=changes, tried=["pin_memory"])
    assert one["ended"] == "refused" and one["steps"] == 0 and one["all_steps"] < 10
    _, [one] = trial(tmp_path, loop(), changes=changes, tried=list(changes))
    assert one["ended"] in ("steps", "seconds") and one["steps"] >= 3


@pytest.mark.slow
def test_ranks_end_behind_the_same_step(tmp_path):
    script = """
import os, torch, torch.distributed as dist, time
from torch import nn
dist.init_process_group("gloo")
torch.set_num_threads(1)
model = nn.parallel.DistributedDataParallel(nn.Linear(8, 2))
opt = torch.optim.SGD(model.parameters(), 0.1)
while True:
    if dist.get_rank(): time.sleep(0.002)
    loss = model(torch.randn(4, 8)).square().mean(); opt.zero_grad(); loss.backward(); opt.step()
"""
    prefix = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    ended, reported = trial(tmp_path, script, prefix=prefix)
    assert ended.returncode == 0, ended.stderr
    reported = [one for one in reported if one["all_steps"]]  # torchrun imports torch, too
    assert sorted(one["rank"] for one in reported) == [0, 1] and {one["world"] for one in reported} == {2}
    assert len({one["all_steps"] for one in reported}) == 1


def test_a_script_that_changes_its_parameters_by_hand_makes_a_step_with_each_backward_pass(tmp_path):
    script = loop().replace("opt.step()", "[p.data.add_(p.grad, alpha=-0.1) for p in net.parameters()]")
    ended, [one] = trial(tmp_path, script)
    assert ended.returncode == 0 and ended.stderr == ""
    assert one["ended"] in ("steps", "seconds") and one["steps"] >= 20
    assert one["examples_per_s"] == pytest.approx(16 * one["steps_per_s"], rel=0.02)


def test_backward_passes_before_an_optimizers_first_step_are_its_step(tmp_path):
    script = loop().replace("opt.step()", "seen = globals().get('seen', 0) + 1; seen % 24 or opt.step()")
    _, [one] = trial(tmp_path, script)
    assert one["examples_per_s"] == pytest.approx(24 * 16 * one["steps_per_s"], rel=0.1)


def test_examples_that_nobody_has_seen_are_unknown(tmp_path):
    script = SCRIPTS["preamble"] + "while True:\n    loss = net(data.tensors[0]).sum(); loss.backward(); opt.step()"
    _, [one] = trial(tmp_path, script)
    assert one["steps"] >= 20 and one["examples_per_s"] is None


def test_a_loader_with_short_passes_is_measured_over_whole_ones(tmp_path):
    _, [one] = trial(tmp_path, loop().replace("batch_size=16", "batch_size=40"), seconds=5.0)  # 13 batches
    assert one["ended"] == "steps" and one["steps"] % 13 == 0


def test_what_measures_is_out_of_the_way_while_a_change_compiles(tmp_path, monkeypatch):
    breaks = """
import torch
from torch._dynamo.utils import counters
compile = torch.compile
torch.compile = lambda call, mode: compile(call, backend="eager")
"""
    reported = "print(dict(counters['stats']), dict(counters['graph_break']), flush=True)"
    monkeypatch.setattr(install, "install", _with_changes(install.install, {"compile": "default"}))
    # Its time is over long after its steps are, however busy the machine: it ends behind them.
    ended, [one] = trial(tmp_path, breaks + loop(more=reported), seconds=80.0)
    assert ended.returncode == 0 and one["ended"] == "steps" and one["steps"] >= 20, ended.stderr
    last = ended.stdout.splitlines()[-1]
    assert "'unique_graphs': 1" in last and last.endswith("{}")  # nn.Sequential, which module.compile() passes over


def _with_changes(install, changes):
    def with_changes(folder, env, limit_bytes, measure_steps):
        install(folder, env, limit_bytes, measure_steps, changes)

    return with_changes
