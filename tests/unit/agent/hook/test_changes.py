"""Changes of `seatrial tune` from outside: scripts that know nothing of it, with each change and without."""

import json
import os
import subprocess
import sys

import pytest

from seatrial.agent.hook import install

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

LOADERS = """
from torch.utils.data import DataLoader
def loader_over(data, train):
    return DataLoader(
        data, batch_size=16,
        shuffle=train,
    )
"""

#: A trainer of one's own, with its loader from another file, an evaluation, a copy of the model, and a saved one.
TRAINER = """
import copy, io, json, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from loaders import loader_over
torch.manual_seed(7); torch.set_num_threads(1)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.drop, self.last = nn.Conv2d(3, 8, 3), nn.Dropout(0.1), nn.Linear(288, 3)

    def forward(self, x):
        return {"logits": self.last(self.drop(F.relu(self.conv(x))).flatten(1)), "other": None}

class Trainer:
    def __init__(self, model, train, test):
        self.model, self.train, self.test, self.losses = model, train, test, []
        self.model.to("cpu")
        self.optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def loss(self, x, y):
        logits = self.model(x)["logits"]
        assert logits.dtype == torch.float32
        return F.cross_entropy(logits, y)

    def run(self):
        for epoch in range(3):
            self.model.train()
            for x, y in self.train:
                self.optimizer.zero_grad()
                loss = self.loss(x, y)
                loss.backward()
                self.optimizer.step()
                self.losses.append(loss.item())
            self.model.eval()
            for x, y in self.test:
                with torch.no_grad():
                    self.losses.append(self.loss(x, y).item())

examples = [TensorDataset(torch.randn(n, 3, 8, 8), torch.randint(0, 3, (n,))) for n in (128, 32)]
trainer = Trainer(Net(), loader_over(examples[0], True), loader_over(examples[1], False))
trainer.run()
net = trainer.model
saved = io.BytesIO()
torch.save(net, saved)
saved.seek(0)
assert type(torch.load(saved, weights_only=False)) is type(copy.deepcopy(net)) is Net
assert list(net.state_dict()) == ["conv.weight", "conv.bias", "last.weight", "last.bias"]
assert trainer.test.num_workers == 0
print(json.dumps(trainer.losses))
"""


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory):
    return run(tmp_path_factory.mktemp("unchanged"), TRAINER, None)[0]


def run(folder, script, changes, code=0, **variables):
    """Return the losses that the script prints, and the last report of its changes."""
    (folder / "train.py").write_text(script)
    (folder / "loaders.py").write_text(LOADERS)
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


def test_workers_that_stay_give_the_same_losses_bit_for_bit(tmp_path, unchanged):
    changes = {"workers": 2, "persistent_workers": True, "prefetch_factor": 4}
    losses, reported = run(tmp_path, TRAINER, changes)
    assert reported["applied"] == changes and reported["refused"] == {}
    assert reported["places"]["workers"] == ["loaders.py:4"]
    assert losses == unchanged


def test_what_needs_a_gpu_is_refused_without_one_and_changes_nothing(tmp_path, unchanged):
    changes = {"pin_memory": True, "non_blocking": True, "tf32": True, "cudnn_benchmark": True, "bucket_cap_mb": 50}
    losses, reported = run(
        tmp_path, TRAINER, {**changes, "persistent_workers": True, "speed": 11}, CUDA_VISIBLE_DEVICES=""
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


@pytest.mark.slow
def test_the_fused_optimizer_changes_the_last_digits_only(tmp_path, unchanged):
    losses, reported = run(tmp_path, TRAINER, {"fused_optimizer": True})
    assert reported["applied"] == {"fused_optimizer": True}
    assert reported["places"]["fused_optimizer"] == ["train.py:21"]
    assert losses == pytest.approx(unchanged, abs=1e-5) and losses != unchanged


def test_bf16_and_channels_last_keep_the_losses_close_and_the_outputs_in_float32(tmp_path, unchanged):
    losses, reported = run(tmp_path, TRAINER, {"precision": "bf16", "channels_last": True})
    assert reported["applied"] == {"precision": "bf16", "channels_last": True}
    assert reported["places"]["precision"] == reported["places"]["model"] == ["train.py:24"]
    assert reported["places"]["model_to"] == ["train.py:20"]
    assert losses != unchanged and losses[:4] == pytest.approx(unchanged[:4], abs=0.02)


@pytest.mark.slow
def test_another_batch_size_is_the_training_loaders_only(tmp_path, unchanged):
    losses, reported = run(tmp_path, TRAINER, {"batch_size": 64})
    assert reported["applied"] == {"batch_size": 64} and reported["places"]["batch_size"] == ["loaders.py:4"]
    assert len(losses) == 3 * (128 // 64 + 32 // 16)


@pytest.mark.slow
def test_a_compiled_model_trains_as_before(tmp_path, unchanged):
    losses, reported = run(tmp_path, TRAINER, {"compile": "default"})
    assert reported["applied"] == {"compile": "default"}
    assert losses[:8] == pytest.approx(unchanged[:8], abs=0.1)  # its dropout draws otherwise


FAILING = """
import json, os, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(3); torch.set_num_threads(1)
main = os.getpid()

class Examples(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        if os.getpid() != main:
            raise RuntimeError("cannot be read in a worker")
        return torch.randn(12, generator=torch.Generator().manual_seed(index)), index % 3

class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(12, 12), nn.Linear(12, 3)

    def forward(self, x):
        x = nn.functional.dropout(self.first(x), 0.1)
        if x.dtype != torch.float32:
            raise TypeError("float32 only")
        return self.last(x)

net, losses = Odd(), []
optimizer = torch.optim.RMSprop(net.parameters(), lr=0.01)
for epoch in range(2):
    for x, y in DataLoader(Examples(), batch_size=8, shuffle=True):
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step(); losses.append(loss.item())
print(json.dumps(losses))
"""


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
    _, reported = run(tmp_path, FAILING, changes, code=1)
    assert reported["applied"] == {} and reported["refused"] == dict.fromkeys(changes, why)


OWN_WAY = """
import json, torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
torch.manual_seed(3); torch.set_num_threads(1)

class Stream(IterableDataset):
    def __iter__(self):
        for index in range(64):
            yield torch.randn(12, generator=torch.Generator().manual_seed(index)), index % 3

class Casting(nn.Linear):
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.float16):
            return super().forward(x).float()

net, losses = Casting(12, 3), []
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, fused=True)
for x, y in DataLoader(Stream(), batch_size=8):
    loss = nn.functional.cross_entropy(net(x), y)
    optimizer.zero_grad(); loss.backward(); optimizer.step(); losses.append(loss.item())
print(json.dumps(losses))
"""


@pytest.mark.slow
def test_what_the_script_does_itself_or_could_not_bear_is_left(tmp_path):
    (tmp_path / "without").mkdir()
    changes = {"workers": 2, "precision": "bf16", "fused_optimizer": True, "channels_last": True}
    losses, reported = run(tmp_path, OWN_WAY, changes)
    assert reported["applied"] == {}
    assert reported["refused"] == {
        "workers": "the dataset is an IterableDataset: how many workers it has decides what they read",
        "precision": "the script autocasts to float16 itself",
        "fused_optimizer": "the script's optimizer is fused already",
        "channels_last": "the model has no 2-D convolutions",
    }
    assert losses == run(tmp_path / "without", OWN_WAY, None)[0]


TWO_PASSES = """
import json, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(3); torch.set_num_threads(1)

class Examples(Dataset):
    scale = 1.0
    def __len__(self):
        return 32
    def __getitem__(self, index):
        return torch.full((4,), self.scale * index), index % 3

data, losses = Examples(), []
loader = DataLoader(data, batch_size=8, shuffle=True)
optimizer = torch.optim.SGD(nn.Linear(4, 3).parameters(), lr=0.01)
def note(x):
    optimizer.step()
    losses.append(x.sum().item())
for x, _ in loader:
    note(x)
    for inner, _ in loader:  # a pass inside a pass
        note(inner)
if DATA_CHANGES:
    data.scale = 0.5
for x, _ in loader:
    note(x)
print(json.dumps(losses))
"""


@pytest.mark.parametrize("changing", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_workers_stay_only_where_that_is_not_noticed(tmp_path, changing):
    (tmp_path / "without").mkdir()
    script = TWO_PASSES.replace("DATA_CHANGES", str(changing))
    losses, reported = run(tmp_path, script, {"workers": 1, "persistent_workers": True})
    assert losses == run(tmp_path / "without", script, None)[0]
    assert reported["applied"] == ({"workers": 1} if changing else {"workers": 1, "persistent_workers": True})
    if changing:
        assert reported["refused"] == {"persistent_workers": "the script changes its dataset between two passes"}


@pytest.mark.slow
def test_changes_that_cannot_be_read_are_printed_and_the_script_runs(tmp_path, unchanged):
    losses, reported = run(tmp_path, TRAINER, "{workers: 2}")
    assert losses == unchanged and "changes" in reported["refused"]


DISTRIBUTED = """
import json, torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
torch.manual_seed(3); torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file:///FOLDER/rendezvous", rank=0, world_size=1)
net = DistributedDataParallel(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 3)))
optimizer, losses = torch.optim.SGD(net.parameters(), lr=0.1), []
for step in range(6):
    loss = nn.functional.cross_entropy(net(torch.randn(8, 3, 8, 8)), torch.randint(0, 3, (8,)))
    optimizer.zero_grad(); loss.backward(); optimizer.step(); losses.append(loss.item())
dist.destroy_process_group()
print(json.dumps(losses))
"""


def test_data_parallel_on_one_device_is_changed_like_the_model_in_it(tmp_path):
    script = DISTRIBUTED.replace("dist.init_process_group", "#").replace("dist.destroy_process_group()", "")
    script = script.replace("DistributedDataParallel(", "nn.DataParallel(")
    losses, reported = run(tmp_path, script, {"precision": "bf16", "channels_last": True})
    assert reported["applied"] == {"precision": "bf16", "channels_last": True}
    assert losses != run(tmp_path, script, None)[0] and losses == pytest.approx(
        run(tmp_path, script, None)[0], abs=0.05
    )


@pytest.mark.slow
def test_data_parallel_on_one_device_is_compiled(tmp_path):
    script = DISTRIBUTED.replace("dist.init_process_group", "#").replace("dist.destroy_process_group()", "")
    script = script.replace("DistributedDataParallel(", "nn.DataParallel(")
    losses, reported = run(tmp_path, script, {"compile": "default"})
    assert reported["applied"] == {"compile": "default"} and "compile" not in reported["refused"]
    assert losses == pytest.approx(run(tmp_path, script, None)[0], abs=1e-4)


@pytest.mark.slow
def test_ddp_gets_other_buckets_and_a_model_that_is_laid_out_before(tmp_path):
    (tmp_path / "without").mkdir()
    changes = {"bucket_cap_mb": 50, "gradient_as_bucket_view": True, "channels_last": True}
    losses, reported = run(tmp_path, DISTRIBUTED.replace("/FOLDER", str(tmp_path)), changes)
    assert reported["applied"] == changes and reported["places"]["bucket_cap_mb"] == ["train.py:8"]
    without = run(tmp_path / "without", DISTRIBUTED.replace("/FOLDER", str(tmp_path / "without")), None)[0]
    assert losses == pytest.approx(without, abs=1e-5)


SEQUENCES = """
import json, torch
from torch import nn
from torch.utils.data import DataLoader
torch.manual_seed(3); torch.set_num_threads(1)
data = [{"tokens": list(range(1 + number % 40)), "label": number % 3} for number in range(400)]
net, losses = nn.Linear(1, 3), []
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for batch in DataLoader(data, batch_size=4, shuffle=True, collate_fn=list):
    nn.functional.cross_entropy(net(torch.ones(len(batch), 1)), torch.zeros(len(batch)).long()).backward()
    optimizer.step()
    losses.append([len(batch), max(len(each["tokens"]) for each in batch)])
print(json.dumps(losses))
"""


@pytest.mark.slow
def test_another_batch_size_shows_its_longest_examples_first(tmp_path):
    batches, reported = run(tmp_path, SEQUENCES, {"batch_size": 8})
    assert reported["applied"] == {"batch_size": 8}
    assert [size for size, _ in batches] == [8] * 50
    assert batches[0][1] == 40 and [longest for _, longest in batches[:16]] == sorted(
        (longest for _, longest in batches[:16]), reverse=True
    )
