"""``seatrial tune`` from the command line to the receipt: real trials on the CPU of scripts of several kinds."""

from __future__ import annotations

import json
import signal
import time
from typing import Any

import pytest

from cli_project import Project

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.torch]

#: A loader whose examples wait, as for a disk: workers help on any number of cores.
SLOW = """
import argparse, atexit, time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
class Waits(Dataset):
    def __len__(self): return {length}
    def __getitem__(self, i):
        time.sleep({wait_s}); dice = torch.Generator().manual_seed(i)
        x = torch.randn(12, generator=dice); return x, (x.sum() > 0).long()
p = argparse.ArgumentParser(); p.add_argument("--epochs", type=int, required=True); a = p.parse_args()
torch.manual_seed(1); torch.set_num_threads(1); atexit.register(print, "farewell")
net = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 2)); opt = torch.optim.SGD(net.parameters(), 0.1)
open("log.txt", "w").write("begun")
def main():
    for epoch in range(a.epochs):
        for x, y in DataLoader(Waits(), batch_size=16, shuffle=True):
            loss = nn.functional.cross_entropy(net(x), y); opt.zero_grad(); loss.backward(); opt.step()
        torch.save(net.state_dict(), "model.pt")
if __name__ == "__main__":
    try: main()
    except BaseException as error: print("caught", error); raise
"""


def tune(project: Project, script: str, *words: str, exit_code: int = 0, args: tuple[str, ...] = ()) -> dict[str, Any]:
    project.write("train.py", script)
    flags = ("--on", "local", "--gpus", "none", "--steps", "25", "--seconds", "4", "--budget", "70", *words)
    ended = project.cli("tune", "train.py", *flags, "--", *args, exit_code=exit_code, timeout_s=200)
    receipt = project.receipt()
    receipt["printed"] = ended.stdout + ended.stderr
    return receipt


def test_workers_are_found_kept_saved_and_applied_by_the_next_run(local_project: Project) -> None:
    (local_project.folder / "log.txt").write_text("of the run before")
    script = SLOW.format(length=4096, wait_s=0.002)
    receipt = tune(local_project, script, "--save", "--only", "workers", args=("--epochs", "3"))
    kept, whole = receipt["tune"]["kept"], receipt["tune"]["combination"]
    assert kept["workers"] >= 2 and whole["steps_per_s"] > 1.3 * whole["against"]
    assert whole["loss_difference"] <= receipt["tune"]["loss_band"]
    page = (local_project.last / "receipt.md").read_text().replace("\\_", "_")
    assert f"Give the training DataLoader num_workers={kept['workers']}." in page
    assert (local_project.folder / "log.txt").read_text() == "of the run before"
    assert not (local_project.folder / "model.pt").exists() and "farewell" not in receipt["printed"]
    assert f"workers = {kept['workers']}" in (local_project.folder / "seatrial.toml").read_text()
    short = ("train.py", "--on", "local", "--gpus", "none", "--", "--epochs", "1")
    local_project.run(*short)
    assert local_project.receipt()["changes"]["applied"]["workers"] == kept["workers"]
    local_project.run("--no-tune", *short)
    assert local_project.receipt()["changes"] is None
    local_project.write("train.py", SLOW.format(length=320, wait_s=0.001))
    local_project.run(*short)
    assert local_project.receipt()["changes"] is None
    assert "train.py as it was before an edit and is not applied" in local_project.cli("plan", *short).stdout
    local_project.write("other.py", SLOW.format(length=320, wait_s=0.001))
    local_project.run("other.py", *short[1:])
    assert local_project.receipt()["changes"] is None


def test_of_a_script_where_nothing_helps_nothing_is_kept(local_project: Project) -> None:
    script = SLOW.format(length=4096, wait_s=0).replace("batch_size=16", "batch_size=2")
    receipt = tune(
        local_project, script, "--save", "--only", "fused_optimizer,cudnn_benchmark", args=("--epochs", "99")
    )
    assert receipt["tune"]["kept"] == {} and receipt["tune"]["done"]
    assert "nothing that was tried makes" in receipt["printed"]
    assert "[tune]" not in (local_project.folder / "seatrial.toml").read_text()


@pytest.mark.parametrize(
    ("script", "args", "words"),
    [
        (SLOW.format(length=64, wait_s=0), ("--epochs", "2"), "it ended after 8 steps"),
        (SLOW.format(length=64, wait_s=0), (), "it failed before its first step: "),
        ("import torch\nraise FileNotFoundError('data/train.csv')\n", (), "FileNotFoundError: data/train.csv"),
        ("print('no framework')\n", (), "it imported no torch"),
        ("import torch\nprint(torch.ones(2).sum())\n", (), "no optimizer made a step"),
    ],
    ids=["too short", "usage", "crashed", "no torch", "no step"],
)
def test_a_script_that_cannot_be_tuned_reports_why(
    local_project: Project, script: str, args: tuple[str, ...], words: str
) -> None:
    receipt = tune(local_project, script, exit_code=1, args=args)
    assert words in receipt["exit_cause"]["words"] and receipt["exit_cause"]["words"].startswith(
        "The script cannot be tuned"
    )
    assert receipt["tune"]["trials"] == 1


def test_one_whose_losses_change_is_reported_from_one_that_trains_the_same(local_project: Project) -> None:
    """Its augmentation is drawn in the loader, and in workers becomes another: a hundred times as strong."""
    script = SLOW.format(length=4096, wait_s=0.002).replace(
        "return x, ", "from torch.utils.data import get_worker_info as w; x = x * (100 if w() else 1); return x, "
    )
    receipt = tune(local_project, script, "--only", "workers", args=("--epochs", "3"))
    assert receipt["tune"]["kept"] == {}
    first = receipt["tune"]["rows"][0]
    assert first["verdict"] == "different" and first["why"].startswith("its losses ")  # differ, or are not finite


def test_a_tune_that_is_stopped_leaves_no_process_and_the_users_files(local_project: Project) -> None:
    (local_project.folder / "log.txt").write_text("mine")
    local_project.write("train.py", SLOW.format(length=4096, wait_s=0.002))
    words = ("train.py", "--on", "local", "--gpus", "none", "--", "--epochs", "99")
    started = local_project.begin("tune", *words)
    local_project.wait_for(lambda: (local_project.folder / "log.txt").read_text() == "begun")
    time.sleep(0.5)
    started.send_signal(signal.SIGINT)
    started.communicate(timeout=240)
    assert (local_project.folder / "log.txt").read_text() == "mine"
    assert local_project.alive() == []
    assert json.loads((local_project.last / "receipt.json").read_text())["tune"]["kept"] == {}
