"""A model of one's own in the fast loop, beside the usual script, on one GPU: ResNet-18, a char-GPT, checkpoints.

    python benchmarks/own_model.py --out DIR [--only resnet,gpt] [--cifar DIR] [--tiny]

Speed is measured on random arrays of CIFAR-10's shape, accuracy on its .bin files in ``--cifar``. Every part runs in a
process of its own with a time limit. OUT gets NAME.log of each part and own_model.json after each. ``--tiny``: a trial
on a CPU.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

LIMITS_S = {
    "resnet": 40, "usual": 40, "gpt": 40, "checkpoint": 60, "same": 30, "resnet_compiled": 70, "gpt_compiled": 60,
    "accuracy": 80, "accuracy_plain": 80,
}  # fmt: skip
BATCH = 128
CIFAR = os.environ.get("CIFAR10")


class Block(nn.Module):
    """Two 3×3 convolutions and a shortcut."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class ResNet18(nn.Module):
    """The usual one for 32×32 images: 11.2 million parameters."""

    def __init__(self, widths=(64, 128, 256, 512)):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), nn.BatchNorm2d(widths[0])
        layers, inputs = [], widths[0]
        for number, width in enumerate(widths):
            for stride in (1 if number == 0 else 2, 1):
                layers.append(Block(inputs, width, stride))
                inputs = width
        self.layers, self.linear = nn.Sequential(*layers), nn.Linear(inputs, 10)

    def forward(self, x):
        x = self.layers(F.relu(self.bn1(self.conv1(x))))
        return self.linear(x.mean((2, 3)))


class Attention(nn.Module):
    """Causal, several heads, then a perceptron; norms first."""

    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2, self.wide, self.back = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout).transpose(1, 2).flatten(2)
        x = x + F.dropout(self.out(mixed), self.dropout, self.training)
        return x + F.dropout(self.back(F.gelu(self.wide(self.norm2(x)))), self.dropout, self.training)


class CharGpt(nn.Module):
    """6 layers of 384, 256 characters: 10.7 million parameters; one matrix for the first and the last layer."""

    def __init__(self, layers=6, width=384, heads=6, length=256, words=65, dropout=0.2):
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.layers = nn.Sequential(*(Attention(width, heads, dropout) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        return self.head(self.norm(self.layers(x)))


def classify(model, images, labels):
    return F.cross_entropy(model(images), labels)


def follow(model, tokens, following):
    return F.cross_entropy(model(tokens).flatten(0, 1), following.flatten())


def pictures(tiny):
    count = 256 if tiny else 50_000
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator)
    return TensorDataset(images, torch.randint(0, 10, (count,), generator=generator))


# --- the parts; each prints one line of JSON --------------------------------------------------------------------------


def ours(model, loss, optimizer, source, epochs=3, **options):
    """Examples a second of each epoch after the first, the seconds of preparing, and the losses."""
    from unittest.mock import patch

    from seatrial.train import Step, cosine, fit
    from seatrial.train.trackers import Trackers

    engine = options.pop("engine", "auto")
    began = time.perf_counter()
    step = Step(model, loss, optimizer, source, schedule=cosine(), epochs=epochs, **options)
    told: dict = {}

    class Times:
        def write(self, values):
            if values["phase"] == "train" and "images_per_s" in values:
                told.setdefault("rates", []).append(round(values["images_per_s"]))
                told.setdefault("first_epoch_done_s", round(time.perf_counter() - began, 2))

        def close(self):
            pass

    with patch("seatrial.train.fitting.open_trackers", lambda *given, **named: Trackers([Times()])):
        outcome = fit(step, engine=engine)
    told["prepared_s"] = round(time.perf_counter() - began - outcome.loop_s, 2)
    return {**told, "first_losses": outcome.losses[:3], "last_loss": outcome.losses[-1]}


def resnet_step(tiny, **options):
    from seatrial.train import batches

    torch.manual_seed(0)
    model = ResNet18((32, 32, 64, 64) if tiny else (64, 128, 256, 512))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    source = batches(pictures(tiny), BATCH, transform=changed, drop_last=True)
    return ours(model, classify, optimizer, source, precision="bf16", **options)


def resnet(tiny):
    """By the pieces of docs/training.md: torch's layers, and with kernels of the library inside."""
    results = {}
    for benchmarked in (False, True):
        torch.backends.cudnn.benchmark = benchmarked
        for kernels in (False, True):
            name = f"graph{', kernels' if kernels else ''}{', cudnn.benchmark' if benchmarked else ''}"
            results[name] = resnet_step(tiny, kernels=kernels)
    return results


def resnet_compiled(tiny):
    """compile+graph, for comparison: minutes of compiling for some."""
    torch.backends.cudnn.benchmark = True
    return {"compile+graph": resnet_step(tiny, engine="compile+graph")}


def normal(images, labels):
    """Of CIFAR-10: about 0 and 1."""
    return images.float().sub(120).div(64), labels


def changed(images, labels):
    """Flips and crops with zeros, then ``normal``."""
    from seatrial.train import crop, flip

    return normal(flip(crop(images, 4, reflect=False)), labels)


def score(model, images, labels):
    return {"accuracy": model(images).argmax(1) == labels}


def accuracy_of(tiny, seeds, epochs=10, **options):
    """Ten epochs on CIFAR-10 as docs/training.md has it: accuracy, loop and preparing of each seed."""
    from seatrial.train import Step, Test, batches, cosine, fit
    from seatrial.train.data.cifar10 import image_sets, read_records

    if tiny or not CIFAR:
        return {"skipped": "no CIFAR-10: --cifar DIR names its .bin files"}
    engine = options.pop("engine", "auto")
    train, test = (TensorDataset(part.images_NCHW, part.labels_N) for part in image_sets(read_records(Path(CIFAR))))
    results = []
    for seed in seeds:
        torch.manual_seed(seed)
        model = ResNet18()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
        began = _now()
        source = batches(train, BATCH, transform=changed, seed=seed)
        options = {"precision": "bf16", "schedule": cosine(), **options}
        step = Step(model, classify, optimizer, source, epochs=epochs, **options)
        asked = {"engine": engine, "seed": seed, "test_every": epochs}
        outcome = fit(step, test=Test(test, score, transform=normal), **asked)
        rate, whole = outcome.examples / outcome.train_s, _now() - began
        told = {
            "examples_per_s": round(rate),
            "prepared_s": round(whole - outcome.loop_s, 2),
            "whole_s": round(whole, 2),
        }
        results.append({"accuracy": round(outcome.metrics["accuracy"], 4), **told})
        print(json.dumps(results[-1]), flush=True)
    return results


def accuracy(tiny):
    """Three seeds by kernels and graph."""
    return {"kernels, graph": accuracy_of(tiny, range(3), kernels=True)}


def accuracy_plain(tiny):
    """Three seeds by torch's own layers; in a graph, which trains as an eager loop does."""
    return {"torch's layers, graph": accuracy_of(tiny, range(3))}


class Images(Dataset):
    """As torchvision's CIFAR10 gives them: pictures that its transforms change one at a time."""

    def __init__(self, data, transform):
        self.images, self.labels = data.tensors[0].permute(0, 2, 3, 1).numpy(), data.tensors[1].tolist()
        self.transform = transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, place):
        from PIL import Image

        return self.transform(Image.fromarray(self.images[place])), self.labels[place]


def usual(tiny):
    """The usual script: torchvision's transforms in worker processes, eager steps; 60 steps after 15."""
    try:
        from torchvision import transforms
    except ImportError:
        return {"skipped": "torchvision is not installed"}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    changes = transforms.Compose(
        [
            transforms.RandomCrop(32, padding=4),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize((0.49, 0.48, 0.45), (0.25, 0.24, 0.26)),
        ]
    )
    results = {}
    for workers, half in ((2, False), (8, False), (2, True), (8, True)):
        model = ResNet18().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
        loader = DataLoader(Images(pictures(tiny), changes), BATCH, shuffle=True, num_workers=workers, pin_memory=True)
        began, done = 0.0, 0
        for number, (images, labels) in enumerate(loader):
            if number == 15:
                began, done = _now(), 0
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            optimizer.zero_grad()
            with torch.autocast(device.type, torch.bfloat16) if half else nullcontext():
                loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            loss.item()
            done += len(labels)
            if number == 75:
                break
        results[f"{'bf16' if half else 'fp32'}, {workers} workers"] = round(done / (_now() - began)) if began else None
    return results


def text(tiny):
    words = torch.randint(0, 65, (3000 if tiny else 1_000_000,), generator=torch.Generator().manual_seed(0))
    return words, 32 if tiny else 256, 8 if tiny else 64


def gpt_of(tiny):
    torch.manual_seed(0)
    return CharGpt(2, 32, 2, 32) if tiny else CharGpt()


def gpt_ours(tiny, **options):
    """An example is a place in the text; the transform takes the characters from there, on the device."""
    from seatrial.train import batches

    words, length, batch = text(tiny)
    there = words.to("cuda" if torch.cuda.is_available() else "cpu")
    offsets = torch.arange(length + 1, device=there.device)

    def windows(places):
        rows = there[places[:, None] + offsets]
        return rows[:, :-1], rows[:, 1:]

    places = torch.arange(0, len(words) - length - 1, max(1, len(words) // (batch * (4 if tiny else 150))))
    model = gpt_of(tiny)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)
    source = batches(TensorDataset(places), batch, transform=windows, drop_last=True)
    return ours(model, follow, optimizer, source, precision="bf16", clip_norm=1.0, **options)


def gpt(tiny):
    """A plain eager loop in fp32 and bf16, and ours."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    words, length, batch = text(tiny)
    results = {}
    for half in (False, True):
        model = gpt_of(tiny).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)
        for number in range(4 if tiny else 60):
            if number == (2 if tiny else 15):
                began, done = _now(), 0
            places = torch.randint(0, len(words) - length - 1, (batch,))
            rows = torch.stack([words[place : place + length + 1] for place in places]).to(device)
            with torch.autocast(device.type, torch.bfloat16) if half else nullcontext():
                loss = follow(model, rows[:, :-1], rows[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            done = done + batch if number >= (2 if tiny else 15) else 0
        results[f"eager {'bf16' if half else 'fp32'}"] = round(done / (_now() - began))
    return {**results, "graph": gpt_ours(tiny)}


def gpt_compiled(tiny):
    """compile+graph."""
    return {"compile+graph": gpt_ours(tiny, engine="compile+graph")}


def checkpoint(tiny):
    """Epochs without a checkpoint, and with one of 1.3 GB after each: by the process, and by the thread as before."""
    from seatrial.train import Step, adamw, batches, fit
    from seatrial.train.saving import checkpoint as saving

    results = {}
    width, depth, rows = (64, 2, 640) if tiny else (1024, 13, 200_000)
    for way in ("none", "process", "thread"):
        torch.manual_seed(0)
        layers = [
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(depth)
        ]
        model = nn.Sequential(*layers, nn.Linear(width, 10))
        model.to("cuda" if torch.cuda.is_available() else "cpu")
        saving.CheckpointWriter.__init__.__defaults__ = (3, {"thread": 10**15}.get(way, 0 if tiny else 64 * 2**20))
        source = batches(TensorDataset(torch.randn(rows, width), torch.arange(rows) % 10), 256)
        step = Step(model, classify, adamw(model, 1e-4, 0.01), source, precision="bf16", epochs=6)
        with tempfile.TemporaryDirectory(dir=os.environ.get("CHECKPOINTS_IN")) as folder:
            began = time.perf_counter()
            outcome = fit(step, checkpoints=None if way == "none" else folder, keep=3)
            whole = time.perf_counter() - began
            files = sorted(Path(folder).glob("checkpoint-*.pt"))
            size = files[-1].stat().st_size if files else 0
            if files:
                saved = torch.load(files[-1], map_location="cpu", weights_only=True)["model"]
                same = all(torch.equal(saved[name], tensor.cpu()) for name, tensor in model.state_dict().items())
                results[f"{way}: the last file is the model"] = same
        results[way] = {
            "loop_s": round(outcome.loop_s, 3), "train_s": round(outcome.train_s, 3), "whole_s": round(whole, 2),
            "bytes": size, "files": len(files),
        }  # fmt: skip
    for way in ("process", "thread"):
        results[f"{way}: loop longer by"] = round(results[way]["loop_s"] / results["none"]["loop_s"] - 1, 4)
    return results


class Branching(ResNet18):
    """Looks at the input on the host; drops out."""

    def forward(self, x):
        x = F.dropout(x, 0.1, self.training)
        return super().forward(x if x.mean() > 0 else -x)


def same(tiny):
    """Losses with kernels and without, eager and graph; and a step that cannot be captured."""
    from seatrial.train import Step, batches, fit

    results = {}
    images, labels = (tensor[: 64 if tiny else None] for tensor in pictures(True).tensors)
    widths = (32, 64) if tiny else (64, 128, 256, 512)
    for name, kernels, engine in (
        ("eager", False, "eager"), ("graph", False, "graph"), ("kernels, eager", True, "eager"),
        ("kernels, graph", True, "graph"),
    ):  # fmt: skip
        torch.manual_seed(0)
        model = ResNet18(widths)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        source = batches(TensorDataset(images.float().sub(120).div(64), labels), 32 if tiny else 64)
        step = Step(model, classify, optimizer, source, precision="fp32", epochs=2 if tiny else 40, kernels=kernels)
        losses = fit(step, engine=engine).losses
        results[name] = {"first": losses[:6], "last": statistics.fmean(losses[-4:])}
    model = Branching(widths)
    source = batches(TensorDataset(images.float().sub(120).div(64), labels), 32 if tiny else 64)
    step = Step(model, classify, torch.optim.SGD(model.parameters(), lr=0.02), source, precision="bf16", epochs=2)
    results["branching (the log says which line waits)"] = fit(step).losses[-1]
    return results


PARTS = {
    "resnet": resnet, "usual": usual, "gpt": gpt, "checkpoint": checkpoint, "same": same,
    "resnet_compiled": resnet_compiled, "gpt_compiled": gpt_compiled, "accuracy": accuracy,
    "accuracy_plain": accuracy_plain,
}  # fmt: skip


def _now():
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def main():
    """Run each part in a process of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cifar", default=CIFAR, help="folder of CIFAR-10's .bin files")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cifar:
        os.environ["CIFAR10"] = arguments.cifar
    if arguments.part:
        print("RESULT " + json.dumps(PARTS[arguments.part](arguments.tiny)), flush=True)
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    results = {"torch": torch.__version__, "cpus": os.cpu_count()}
    if torch.cuda.is_available():
        results["gpu"] = torch.cuda.get_device_name()
    for name in arguments.only.split(","):
        began = time.perf_counter()
        command = [sys.executable, __file__, "--out", str(arguments.out), "--part", name]
        with (arguments.out / f"{name}.log").open("w+") as log:
            process = subprocess.Popen(
                command + ["--tiny"] * arguments.tiny, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                process.wait(LIMITS_S[name] * (4 if arguments.tiny else 1))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            log.seek(0)
            lines = [line for line in log if line.startswith("RESULT ")]
        result = json.loads(lines[-1].removeprefix("RESULT ")) if lines else {"failed": process.returncode}
        results[name] = {**result, "took_s": round(time.perf_counter() - began, 1)}
        (arguments.out / "own_model.json").write_text(json.dumps(results, indent=1))
        print(name, json.dumps(results[name]), flush=True)


if __name__ == "__main__":
    main()
