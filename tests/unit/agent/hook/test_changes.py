"""Changes of `seatrial tune` from outside: scripts that know nothing of it, with each change and without."""

import json
import os
import subprocess
import sys

import pytest

from seatrial.agent.hook import change_torch, install
from tables import constant

SCRIPTS = constant(__file__, "scripts")

pytestmark = pytest.mark.torch
pytest.importorskip("torch")


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory):
    return run(tmp_path_factory.mktemp("unchanged"), SCRIPTS["trainer"], None)[0]


def run(folder, script, changes, code=0, **variables):
    """Return the losses that the script prints, and the last report of its changes."""
    (folder / "train.py").write_text(script)
    (folder / "loaders.py").write_text(SCRIPTS["loaders"])
    events = folder / "events.jsonl"
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "SEATRIAL_EVENTS": str(events), **variables}
    if changes is not None:
        env["SEATRIAL_TUNE"] = changes if isinstance(changes, str) else json.dumps(changes)
    install.install(str(folder / "hooks"), env, None, measure_steps=True)
    ended = subprocess.run([sys.executable, "train.py"], env=env, capture_output=True, text=True, cwd=folder)
    assert ended.returncode == code, ended.stderr
    lines = [json.loads(line) for line in events.read_text().splitlines()] if events.exists() else []
    assert not [line for line in lines if "hook_stopped" in line], lines
    reported = [line["tuned"] for line in lines if "tuned" in line]
    return json.loads(ended.stdout or "null"), (reported[-1] if reported else None)


#: Changes → lines of the script where they are applied, how many losses are how close, and whether all are equal.
APPLIED = {
    "workers that stay": (
        {"workers": 2, "persistent_workers": True, "prefetch_factor": 4}, {"workers": "loaders.py:4"}, None, 0, True),
    "bf16 and channels_last, with outputs in float32": (
        {"precision": "bf16", "channels_last": True},
        {"precision": "train.py:24", "model": "train.py:24", "model_to": "train.py:20"}, 4, 0.02, False),
    "fused optimizer": ({"fused_optimizer": True}, {"fused_optimizer": "train.py:21"}, None, 1e-5, False),
    "compiled, whose dropout draws otherwise": ({"compile": "default"}, {}, 8, 0.1, False),
}  # fmt: skip
SLOW = ("fused optimizer", "compiled, whose dropout draws otherwise")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in APPLIED]
)
def test_change_is_applied_at_its_line_and_keeps_the_losses_close(tmp_path, unchanged, name):
    changes, places, count, tolerance, equal = APPLIED[name]
    losses, reported = run(tmp_path, SCRIPTS["trainer"], changes)
    assert reported["applied"] == changes and (not equal or reported["refused"] == {})
    assert {key: reported["places"][key] for key in places} == {key: [place] for key, place in places.items()}
    assert losses[:count] == pytest.approx(unchanged[:count], abs=tolerance) and (losses == unchanged) is equal


def test_what_needs_a_gpu_is_refused_without_one_and_changes_nothing(tmp_path, unchanged):
    changes = {"pin_memory": True, "non_blocking": True, "tf32": True, "cudnn_benchmark": True, "bucket_cap_mb": 50}
    losses, reported = run(
        tmp_path, SCRIPTS["trainer"], {**changes, "persistent_workers": True, "speed": 11}, CUDA_VISIBLE_DEVICES=""
    )
    assert reported["applied"] == {} and losses == unchanged
    assert reported["refused"] == {
        "pin_memory": "no GPU found",
        "non_blocking": "no GPU found",
        "tf32": "training is not on a GPU",
        "cudnn_benchmark": "training is not on a GPU",
        "persistent_workers": "the loader has no workers",
        "bucket_cap_mb": "the script makes no DistributedDataParallel",
        "speed": "no such change",
    }


class Wanted:
    """Record the calls that Copies makes on the changes."""

    def __init__(self, torch):
        self.torch, self.wanted, self.taken_back = torch, {"non_blocking": True}, []

    def take_back(self, key, why):
        self.taken_back.append((key, why))


@pytest.mark.parametrize(("batches", "reused"), [("fresh", False), ("ring", True), ("part", True)])
def test_copies_of_a_pinned_buffer_that_comes_again_stay_blocking(batches, reused):
    torch = pytest.importorskip("torch")
    wanted = Wanted(torch)
    copies, ring = change_torch.Copies(wanted), [torch.zeros(4) for _ in range(3)]
    made = {"fresh": lambda n: torch.zeros(4), "ring": lambda n: ring[n % 3], "part": lambda n: ring[0][: 1 + n % 3]}
    blocking = [copies.reuses(made[batches](n)) for n in range(40)]
    assert all(blocking[:8]) and all(blocking) is reused and bool(wanted.taken_back) is reused


@pytest.mark.slow
def test_another_batch_size_is_the_training_loaders_only(tmp_path, unchanged):
    losses, reported = run(tmp_path, SCRIPTS["trainer"], {"batch_size": 64})
    assert reported["applied"] == {"batch_size": 64} and reported["places"]["batch_size"] == ["loaders.py:4"]
    assert len(losses) == 3 * (128 // 64 + 32 // 16)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"workers": 2, "persistent_workers": True},
            "the loader failed with it: RuntimeError: cannot be read in a worker",
        ),
        ({"precision": "bf16"}, "the model's call failed with it: TypeError: float32 only"),
    ],
    ids=["loader", "model"],
)
def test_script_that_fails_with_a_change_fails_and_the_report_names_the_change(tmp_path, changes, why):
    _, reported = run(tmp_path, SCRIPTS["failing"], changes, code=1)
    assert reported["applied"] == {} and reported["refused"] == dict.fromkeys(changes, why)


@pytest.mark.slow
def test_what_the_script_does_itself_or_could_not_bear_is_left(tmp_path):
    (tmp_path / "without").mkdir()
    changes = {"workers": 2, "precision": "bf16", "fused_optimizer": True, "channels_last": True}
    losses, reported = run(tmp_path, SCRIPTS["own-way"], changes)
    assert reported["applied"] == {}
    assert reported["refused"] == {
        "workers": "the dataset is an IterableDataset: how many workers it has decides what they read",
        "precision": "the script autocasts to float16 itself",
        "fused_optimizer": "the script's optimizer is fused already",
        "channels_last": "the model has no 2-D convolutions",
    }
    assert losses == run(tmp_path / "without", SCRIPTS["own-way"], None)[0]


@pytest.mark.parametrize("changing", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_workers_stay_only_where_that_is_not_noticed(tmp_path, changing):
    (tmp_path / "without").mkdir()
    script = SCRIPTS["two-passes"].replace("DATA_CHANGES", str(changing))
    losses, reported = run(tmp_path, script, {"workers": 1, "persistent_workers": True})
    assert losses == run(tmp_path / "without", script, None)[0]
    assert reported["applied"] == ({"workers": 1} if changing else {"workers": 1, "persistent_workers": True})
    if changing:
        assert reported["refused"] == {"persistent_workers": "the script changes its dataset between two passes"}


@pytest.mark.slow
def test_changes_that_cannot_be_read_are_printed_and_the_script_runs(tmp_path, unchanged):
    losses, reported = run(tmp_path, SCRIPTS["trainer"], "{workers: 2}")
    assert losses == unchanged and "changes" in reported["refused"]


@pytest.mark.parametrize(
    ("changes", "tolerance"),
    [
        ({"precision": "bf16", "channels_last": True}, 0.05),
        pytest.param({"compile": "default"}, 1e-4, marks=pytest.mark.slow),
    ],
)
def test_data_parallel_on_one_device_is_changed_like_the_model_in_it(tmp_path, changes, tolerance):
    script = SCRIPTS["distributed"].replace("dist.init_process_group", "#").replace("dist.destroy_process_group()", "")
    script = script.replace("DistributedDataParallel(", "nn.DataParallel(")
    losses, reported = run(tmp_path, script, changes)
    without = run(tmp_path, script, None)[0]
    assert reported["applied"] == changes and not reported["refused"].keys() & changes.keys()
    assert losses == pytest.approx(without, abs=tolerance) and ("precision" not in changes or losses != without)


@pytest.mark.slow
def test_ddp_gets_other_buckets_and_a_model_that_is_laid_out_before(tmp_path):
    (tmp_path / "without").mkdir()
    changes = {"bucket_cap_mb": 50, "gradient_as_bucket_view": True, "channels_last": True}
    losses, reported = run(tmp_path, SCRIPTS["distributed"].replace("/FOLDER", str(tmp_path)), changes)
    assert reported["applied"] == changes and reported["places"]["bucket_cap_mb"] == ["train.py:8"]
    without = run(tmp_path / "without", SCRIPTS["distributed"].replace("/FOLDER", str(tmp_path / "without")), None)[0]
    assert losses == pytest.approx(without, abs=1e-5)


@pytest.mark.slow
def test_another_batch_size_shows_its_longest_examples_first(tmp_path):
    batches, reported = run(tmp_path, SCRIPTS["sequences"], {"batch_size": 8})
    assert reported["applied"] == {"batch_size": 8}
    assert [size for size, _ in batches] == [8] * 50
    assert batches[0][1] == 40 and [longest for _, longest in batches[:16]] == sorted(
        (longest for _, longest in batches[:16]), reverse=True
    )
