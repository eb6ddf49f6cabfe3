# ruff: noqa: E501  scripts as people write them
"""What the hook costs a script, part by part, and that the script's numbers stay the same.

    python benchmarks/hook_overhead.py OUT [--only NAME ...] [--cpu] [--seconds 100]

Every script runs with the hook and without, at the same time: the digests of their losses must be equal. Those that are
timed run once more, alone: blocks of steps with nothing of the hook (torch as it was) take turns with blocks of
``regions`` (no windows), ``window`` (one window in each block) and ``all`` (windows when they are due): whole runs differ by
more from one to the next than the hook costs. Means with 95 % intervals by bootstrap. Writes OUT/hook.json after every script.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from seatrial.agent.hook import install

HEAD = """
import hashlib, sys, time, torch, types
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
device = sys.argv[1]
torch.manual_seed(1); torch.use_deterministic_algorithms(True, warn_only=True)
clock = time.perf_counter if device == "cuda" else time.thread_time  # others use these cores, too
losses, blocks, began, in_turn = [], [], (clock(), time.thread_time()), len(sys.argv) > 2
deadline, order = time.perf_counter() + float(sys.argv[2]) if in_turn else 0.0, ["all"]
class Switch:
    # Takes the hook away and puts it back.
    def __init__(self):
        from seatrial_hook import measure_torch
        self.measuring = measure_torch._BEGUN["torch"]
        self.recorder, self.windows = self.measuring.recorder, self.measuring.windows
        optimizer, data = sys.modules["torch.optim.optimizer"], sys.modules["torch.utils.data.dataloader"]
        owners = (torch, torch.autograd, torch.autograd.graph, sys.modules["torch.serialization"], data, data._BaseDataLoaderIter,
                  *data._BaseDataLoaderIter.__subclasses__(), torch.no_grad, torch.inference_mode, nn.Module, torch.cuda.CUDAGraph)
        self.places = [(owner, name, each, each.__wrapped__) for owner in owners for name, each in list(vars(owner).items())
                       if isinstance(each, types.FunctionType) and hasattr(each, "__wrapped__") and "seatrial_hook" in each.__code__.co_filename]
        assert any(name == "_engine_run_backward" for _, name, *_ in self.places), self.places
        self.hooks = [(each, dict(each)) for each in (optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks)]
        self.thread, self.due_s = self.recorder.thread, 0.0
    def to(self, mode):
        if self.windows.open: self.windows.spoil()
        on = mode != "nothing"
        for owner, name, ours, theirs in self.places: setattr(owner, name, ours if on else theirs)
        for kept, all_of_them in self.hooks:
            kept.clear(); kept.update(all_of_them if on else {})
        self.recorder.thread = self.thread if on else -1
        if mode == "regions": self.windows._due_s = float("inf")
        if mode == "window": self.windows._next, self.windows._due_s, self.recorder.next_look = 0, 0.0, 0
        if mode == "all": self.windows._due_s = self.due_s
    def leaves(self, mode):
        if mode == "all": self.due_s = self.windows._due_s
switch, mode = None, "all"
def tick(step, loss):
    global began, switch, mode
    if in_turn: losses.clear()
    losses.append(loss.detach())
    if in_turn and step % BLOCK == BLOCK - 1:
        if device == "cuda": torch.cuda.synchronize()
        blocks.append((mode, clock() - began[0], time.thread_time() - began[1]))
        if time.perf_counter() > deadline: raise StopAsyncIteration
        switch = switch or Switch()
        switch.leaves(mode)
        if not order[1:]:
            import random
            pairs = [random.sample([each, "nothing"], 2) for each in random.sample(PARTS, len(PARTS))]
            order.extend(each for pair in pairs for each in pair)
        del order[0]; mode = order[0]; switch.to(mode)
        began = (clock(), time.thread_time())
def net():
    return nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
                         nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10)).to(device)
images = TensorDataset(torch.randn(EXAMPLES, 1, 28, 28), torch.randint(0, 10, (EXAMPLES,)))
def bert():
    layer = nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, norm_first=False)
    return nn.Sequential(nn.Embedding(30522, 768), nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)).to(device)
"""
TAIL = """
if device == "cuda": torch.cuda.synchronize()
digest = hashlib.sha256(torch.stack(losses).float().cpu().numpy().tobytes()).hexdigest()[:16]
print("RESULT", digest, *["%s=%.7f=%.7f" % each for each in blocks], flush=True)
"""
MNIST = """
model = net(); opt = torch.optim.Adadelta(model.parameters(), lr=1.0)
loader = DataLoader(images, batch_size=64, shuffle=True, LOADER)
for step, (x, y) in enumerate(loader):
    x, y = x.to(device), y.to(device)
    opt.zero_grad(); loss = F.cross_entropy(model(x), y); loss.backward(); opt.step(); tick(step, loss)
    if step % 10 == 0: float(loss.item())
"""
SCALER = """
model = net(); opt = torch.optim.Adam(model.parameters()); scaler = torch.amp.GradScaler(device, enabled=device == "cuda")
for step, (x, y) in enumerate(DataLoader(images, batch_size=64)):
    x, y = x.to(device), y.to(device); opt.zero_grad()
    with torch.autocast(device, dtype=torch.float16 if device == "cuda" else torch.bfloat16):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward(); scaler.step(opt); scaler.update(); tick(step, loss)
"""
GRAPH = """
model = net().train(); opt = torch.optim.Adam(model.parameters(), capturable=True)
x = torch.randn(64, 1, 28, 28, device=device); y = torch.randint(0, 10, (64,), device=device)
side = torch.cuda.Stream(); side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3): opt.zero_grad(set_to_none=True); F.cross_entropy(model(x), y).backward(); opt.step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph(); opt.zero_grad(set_to_none=True)
with torch.cuda.graph(graph): loss = F.cross_entropy(model(x), y); loss.backward(); opt.step()
for step in range(STEPS): graph.replay(); tick(step, loss.clone())
"""
COMPILED = """
model = torch.compile(net()); opt = torch.optim.Adam(model.parameters())
for step, (x, y) in enumerate(DataLoader(images, batch_size=64)):
    x, y = x.to(device), y.to(device)
    opt.zero_grad(); loss = F.cross_entropy(model(x), y); loss.backward(); opt.step(); tick(step, loss)
"""
BERT = """
model = bert(); opt = torch.optim.AdamW(model.parameters(), 2e-5)
tokens = torch.randint(0, 30522, (64, 64), device=device)
for step in range(STEPS):
    with torch.autocast(device, dtype=torch.bfloat16): loss = model(tokens)[:, 0].float().square().mean()
    loss.backward(); torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0); opt.step(); opt.zero_grad(); tick(step, loss)
    if step % 10 == 0: loss.item()
"""
#: Name → (script, steps of a block where it is timed).
SCRIPTS: dict[str, tuple[str, int]] = {
    "mnist tutorial, default loader": (MNIST.replace("LOADER", ""), 50),
    "bert": (BERT, 20),
    "mnist tutorial, 4 workers": (MNIST.replace("LOADER", "num_workers=4, pin_memory=True"), 0),
    "GradScaler": (SCALER, 0),
    "CUDA graph": (GRAPH, 0),
    "torch.compile": (COMPILED, 0),
    "spawned workers": (MNIST.replace("LOADER", "num_workers=2, multiprocessing_context='spawn'"), 0),
}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="*", default=list(SCRIPTS))
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--precise", action="store_true", help="all of the hook against nothing of it, in short blocks")
    parser.add_argument("--seconds", type=float, default=100.0, help="of timing, for each script that is timed")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {}
    for name in asked.only:
        body, block = SCRIPTS[name]
        if asked.cpu and name == "CUDA graph":
            continue
        few = 30 if asked.cpu else 220  # they tell as much of equality as thousands
        with ThreadPoolExecutor() as pool:
            both = [pool.submit(one, body, few, asked, measured=measured) for measured in (False, True)]
            plain, hooked = (each.result() for each in both)
        digests = (plain.get("digest"), hooked.get("digest"))
        found[name] = {"equal": digests[0] == digests[1] is not None, "told": hooked["told"]}
        block = max(1, block * 2 // 5) if asked.precise else block
        found[name]["errors"] = [each["error"] for each in (plain, hooked) if "error" in each]
        if block:
            timed = one(body, 100_000, asked, measured=True, block=block)
            found[name] |= slower(timed, block)
            found[name]["of_the_thread"] = slower(timed, block, clock=2)
        print(name, json.dumps({k: v for k, v in found[name].items() if k != "told"}), flush=True)
        (asked.out / "hook.json").write_text(json.dumps(found, indent=1))
    found["start"] = start()
    print("start", json.dumps(found["start"]), flush=True)
    (asked.out / "hook.json").write_text(json.dumps(found, indent=1))
    return 0


def slower(run: dict[str, Any], block: int, clock: int = 1) -> dict[str, Any]:
    """Blocks with a part of the hook against their neighbours without it; the first six start things up.

    Args:
        clock: 1 for the wall's (on a CPU the thread's), 2 for the CPU time of the thread that trains, which is where
            the hook works: other processes are not in it.
    """
    blocks = run.get("blocks", [])
    blocks = blocks[1 + 6 :]
    pairs: dict[str, list[tuple[float, float]]] = {}
    for first, second in zip(blocks[0::2], blocks[1::2], strict=False):
        with_it, without = (first, second) if second[0] == "nothing" else (second, first)
        pairs.setdefault(with_it[0], []).append((with_it[clock], without[clock]))
    if not pairs:
        return {"error": run.get("error", "too few blocks")}
    step_s = median(off for each in pairs.values() for _, off in each) / block
    found: dict[str, Any] = {"step_ms": round(1000 * step_s, 4), "steps_a_block": block}
    for part, each in pairs.items():
        low, mean, high = interval([(on - off) / block for on, off in each])
        found[part] = {
            "pairs": len(each),
            "us_a_step": [round(1e6 * value, 2) for value in (low, mean, high)],
            "percent": [round(100 * value / step_s, 3) for value in (low, mean, high)],
            "median_percent": round(100 * median((on - off) / block for on, off in each) / step_s, 3),
        }
    if "window" in pairs and "regions" in pairs:
        windows = [1000 * (on - off) for on, off in pairs["window"]]
        aside = 1000 * median(on - off for on, off in pairs["regions"])
        found["ms_a_window"] = [round(value - aside, 3) for value in interval(windows)]
    return found


def interval(values: list[float], times: int = 2000) -> tuple[float, float, float]:
    """2.5 %, mean and 97.5 % of the mean without its tenth of outliers on both sides, by bootstrap."""
    draw = random.Random(17)

    def mean(some: list[float]) -> float:
        cut = len(some) // 10
        kept = sorted(some)[cut : len(some) - cut]
        return sum(kept) / len(kept)

    means = sorted(mean(draw.choices(values, k=len(values))) for _ in range(times))
    return means[times // 40], mean(values), means[-times // 40]


def start(rounds: int = 5) -> dict[str, float]:
    """Seconds of ``import torch`` with and without, the median of some."""
    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(rounds):
        for measured, kept in times.items():
            with tempfile.TemporaryDirectory() as folder:
                began = time.perf_counter()
                subprocess.run(
                    [sys.executable, "-c", "import torch"], env=environment(Path(folder), measured), check=True
                )
                kept.append(time.perf_counter() - began)
    return {"without_s": median(times[False]), "with_s": median(times[True])}


def environment(folder: Path, measured: bool) -> dict[str, str]:
    env = {**os.environ, "SEATRIAL_EVENTS": str(folder / "events.jsonl"), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    env.pop("PYTHONPATH", None)
    if measured:
        install.install(str(folder / "hooks"), env, None, measure_steps=True)
    return env


def one(body: str, steps: int, asked: argparse.Namespace, *, measured: bool, block: int = 0) -> dict[str, Any]:
    """A run: its digest, the seconds of its blocks by what was on, and what the hook told."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        parts = ["all"] if asked.precise else ["regions", "window", "all"]
        head = (
            HEAD.replace("PARTS", repr(parts))
            .replace("EXAMPLES", str(min(steps, 1000) * 64))
            .replace("BLOCK", str(block or 1))
        )
        lines = body.replace("STEPS", str(steps)).strip().splitlines()
        if block:  # passes over the data until the time is over
            loops = (
                ["for _ in range(10000):", *(f"    {line}" for line in lines[1:])] if "loader" in body else lines[1:]
            )
            lines = ["try:", f"    {lines[0]}", *(f"    {line}" for line in loops), "except StopAsyncIteration: pass"]
        guarded = ["if __name__ == '__main__':", *(f"    {line}" for line in (*lines, *TAIL.strip().splitlines()))]
        (folder / "train.py").write_text("\n".join((head, *guarded)) + "\n")
        command = [sys.executable, "train.py", "cpu" if asked.cpu else "cuda", *([str(asked.seconds)] if block else [])]
        env = environment(folder, measured)
        try:
            ended = subprocess.run(
                command, cwd=folder, env=env, capture_output=True, text=True, timeout=asked.seconds + 140
            )
        except subprocess.TimeoutExpired as late:
            return {"error": f"still running after {late.timeout} s", "told": []}
        result = next((line.split() for line in ended.stdout.splitlines() if line.startswith("RESULT")), None)
        events = folder / "events.jsonl"
        told = [json.loads(line) for line in events.read_text().splitlines()] if events.exists() else []
        told = [line for line in told if "anatomy" in line][-1:] + [line for line in told if "anatomy" not in line]
        if result is None:
            return {"error": (ended.stderr or ended.stdout)[-600:], "told": told}
        blocks = [(words[0], *map(float, words[1:])) for words in (each.split("=") for each in result[2:])]
        return {"digest": result[1], "blocks": blocks, "told": told}


if __name__ == "__main__":
    raise SystemExit(main())
