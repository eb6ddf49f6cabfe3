# ruff: noqa: E501, UP031, B905  scripts as people write them
"""Each change of `seatrial tune` on four scripts: applied or refused and why, losses against none, steps/s.

    python benchmarks/tune_changes.py [--out FOLDER] [--seconds 170]

Three scripts run side by side, so steps/s here tell a change that works from one that does not, not how much it gains.
Writes changes.json and changes.md. Works without a GPU, too (small sizes), where most changes are refused.
"""

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
from seatrial.agent.hook import install

COMMON = """
import json, os, sys, time, torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(7)
gpu = torch.cuda.is_available()
device = torch.device("cuda" if gpu else "cpu")
STEPS = 80 if gpu else 8
losses, began = [], []

def note(loss):
    losses.append(loss.detach())
    if len(losses) in (STEPS // 2, STEPS):
        if gpu: torch.cuda.synchronize()
        began.append(time.perf_counter())
    return len(losses) >= STEPS

def end():
    print("RESULT " + json.dumps({
        "losses": [round(float(l), 6) for l in losses],
        "steps_per_s": (STEPS - STEPS // 2) / (began[1] - began[0]),
        "peak_mb": torch.cuda.max_memory_allocated() / 2**20 if gpu else 0,
    }), flush=True)
"""

CNN = """
from torch.utils.data import DataLoader, Dataset
class Digits(Dataset):
    def __init__(self):
        self.images, self.labels = torch.randint(0, 256, (6000, 28, 28), dtype=torch.uint8), torch.randint(0, 10, (6000,))
    def __len__(self): return 6000
    def __getitem__(self, i):
        image = self.images[i].float().div(255).unsqueeze(0)
        return (image - 0.1307) / 0.3081, self.labels[i]
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3, 1), nn.Conv2d(32, 64, 3, 1)
        self.drop, self.fc1, self.fc2 = nn.Dropout(0.25), nn.Linear(9216, 128), nn.Linear(128, 10)
    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        return F.log_softmax(self.fc2(F.relu(self.fc1(torch.flatten(self.drop(x), 1)))), dim=1)
model = Net().to(device)
loader = DataLoader(Digits(), batch_size=64, shuffle=True)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
def train():
    while True:
        for data, target in loader:
            data, target = data.to(device), target.to(device)
            optimizer.zero_grad()
            output = model(data)
            loss = F.nll_loss(output, target)
            loss.backward()
            optimizer.step()
            if note(loss): return
train(); end()
"""

RESNET = """
from torch.utils.data import DataLoader, Dataset
try:
    from torchvision.models import resnet18
    model = resnet18(num_classes=10)
except ImportError:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
class Pictures(Dataset):
    def __len__(self): return 20000
    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.randint(0, 256, (3, 64, 64), generator=g, dtype=torch.uint8).float() / 255, i % 10
batch = 128 if gpu else 8
model = model.cuda() if gpu else model
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
criterion = nn.CrossEntropyLoss()
loader = DataLoader(Pictures(), batch_size=batch, shuffle=True, num_workers=2)
def train():
    for data, target in loader:
        if gpu: data, target = data.cuda(), target.cuda()
        loss = criterion(model(data), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if note(loss): return
train(); end()
"""

BERT = """
os.environ["HF_HUB_OFFLINE"] = "1"
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments
layers, width = (6, 512) if gpu else (1, 32)
model = BertForSequenceClassification(BertConfig(
    hidden_size=width, num_hidden_layers=layers, num_attention_heads=8, intermediate_size=4 * width, vocab_size=2000))
g = torch.Generator().manual_seed(1)
examples = [{"input_ids": torch.randint(0, 2000, (64,), generator=g), "labels": torch.tensor(i % 2)} for i in range(3200)]
class Noting(Trainer):
    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        note(loss)
        return loss
arguments = TrainingArguments(output_dir=os.environ["HOME"] + "/out", per_device_train_batch_size=32 if gpu else 4,
    max_steps=STEPS, report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True, optim="adamw_torch")
Noting(model=model, args=arguments, train_dataset=examples).train()
end()
"""

DDP = """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29533", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
dist.init_process_group("nccl" if gpu else "gloo")
width = 128 if gpu else 4
blocks = []
for _ in range(8): blocks += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
model = nn.Sequential(nn.Conv2d(3, width, 3), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)).to(device)
model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data, target = torch.randn(64, 3, 32, 32, device=device), torch.randint(0, 10, (64,), device=device)
while True:
    loss = F.cross_entropy(model(data), target)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    if note(loss): break
end()
dist.destroy_process_group()
"""

NUMERIC = [
    {"tf32": True},
    {"precision": "bf16"},
    {"channels_last": True},
    {"cudnn_benchmark": True},
    {"fused_optimizer": True},
    {"compile": "default"},
    {"compile": "reduce-overhead"},
]
LOADING = [
    {"workers": 4},
    {"workers": 4, "persistent_workers": True, "prefetch_factor": 4},
    {"pin_memory": True, "non_blocking": True},
    {"batch_size": 256},
]
ALL = {"workers": 4, "persistent_workers": True, "pin_memory": True, "non_blocking": True, "precision": "bf16"}
ALL.update(fused_optimizer=True, channels_last=True, compile="reduce-overhead", tf32=True, cudnn_benchmark=True)
SPREAD = [{"bucket_cap_mb": 50, "gradient_as_bucket_view": True}, {"channels_last": True, "precision": "bf16"}]
TRIALS = {
    "cnn": (CNN, [None, *LOADING, *NUMERIC, ALL]),
    "resnet": (RESNET, [None, *LOADING, *NUMERIC, ALL]),
    "bert": (BERT, [None, *LOADING, *[change for change in NUMERIC if "cudnn_benchmark" not in change], ALL]),
    "ddp": (DDP, [None, *SPREAD, {"compile": "default", "fused_optimizer": True}, {"compile": "reduce-overhead"}]),
}


def trial(name, script, changes, folder, left_s):
    """One process of a script: what it printed and what the hook told."""
    place = Path(tempfile.mkdtemp(prefix=name, dir=folder))
    (place / "train.py").write_text(COMMON + script)
    env = {
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // 4)),
        **os.environ,
        "SEATRIAL_EVENTS": str(place / "events.jsonl"),
        "HOME": str(place),
    }
    if changes is not None:
        env["SEATRIAL_TUNE"] = json.dumps(changes)
    install.install(str(place / "hooks"), env, None, measure_steps=True)
    began = time.monotonic()
    row = {"script": name, "changes": changes}
    try:
        ended = subprocess.run(
            [sys.executable, "train.py"], cwd=place, env=env, capture_output=True, text=True, timeout=left_s
        )
        told = [line for line in ended.stdout.splitlines() if line.startswith("RESULT ")]
        row["exit_code"] = ended.returncode
        row.update(json.loads(told[-1][7:]) if told else {})
        if ended.returncode or not told:
            row["error"] = ended.stderr[-1500:]
    except subprocess.TimeoutExpired:
        row["error"] = "longer than %.0f s" % left_s
    events = place / "events.jsonl"
    lines = [json.loads(line) for line in events.read_text().splitlines()] if events.exists() else []
    row["tuned"] = [line["tuned"] for line in lines if "tuned" in line][-1:]
    row["hook_stopped"] = [line["hook_stopped"] for line in lines if "hook_stopped" in line]
    row["wall_s"] = round(time.monotonic() - began, 1)
    return row


def series(name, folder, end_s):
    script, changes = TRIALS[name]
    rows = []
    for change in changes:
        left_s = end_s - time.monotonic()
        if left_s < 8:
            rows.append({"script": name, "changes": change, "error": "no time left"})
            continue
        rows.append(trial(name, script, change, folder, min(left_s, 70)))
        say = {key: rows[-1].get(key) for key in ("changes", "steps_per_s", "wall_s", "error")}
        print(name, json.dumps(say)[:400], flush=True)
    return rows


def table(rows):
    """As Markdown; losses against the script's without changes, over the first and over the last ten steps."""
    lines = [
        "| script | changes | applied | refused | steps/s | first losses differ by | last by | peak MB |",
        "|" + "---|" * 8,
    ]
    without = {row["script"]: row for row in rows if row["changes"] is None}
    for row in rows:
        told = (row.get("tuned") or [{}])[-1]
        base, own = without[row["script"]].get("losses") or [], row.get("losses") or []
        apart = [abs(a - b) for a, b in zip(base, own)]
        first, last = (f"{max(part):.2g}" if part else "-" for part in (apart[:10], apart[-10:]))
        cells = [
            row["script"],
            json.dumps(row["changes"]),
            ", ".join(told.get("applied", {})),
            "; ".join(f"{key}: {why}" for key, why in told.get("refused", {}).items()) + row.get("error", "")[-200:],
            f"{row.get('steps_per_s', 0):.1f}",
            first,
            last,
            f"{row.get('peak_mb', 0):.0f}",
        ]
        lines.append("| " + " | ".join(str(cell).replace("\n", " ").replace("|", "/") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    parser.add_argument("--seconds", type=float, default=170)
    parser.add_argument("--only", default=",".join(TRIALS))
    options = parser.parse_args()
    out, end_s = Path(options.out), time.monotonic() + options.seconds
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = [pool.submit(series, name, folder, end_s) for name in options.only.split(",")]
        rows = [row for each in found for row in each.result()]
    (out / "changes.json").write_text(json.dumps(rows, indent=1))
    (out / "changes.md").write_text(table(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
