# ruff: noqa: E501  scripts as people write them
"""Measures what the hook costs a script, and that the script's numbers stay the same.

    python benchmarks/hook_overhead.py OUT [--only NAME ...] [--cpu] [--seconds 80] [--timed]

Every script runs with the hook and without, at the same time: the digests of their losses must be equal (--timed skips
this). The timed ones run once more, alone. Three steps without the hook (torch as it was) alternate with three with
it, in random order, and the last two of each are compared with their neighbours': a machine's speed changes within
seconds by more than the hook costs. A step is clipped to within CLIP of its pair's median: other processes interrupt a
few steps for milliseconds, with the hook and without. Blocks with one window each are compared in the same way, and
reports are timed as they are made. The sum is for a run of RUN_S, with as many windows as the budget of
torch_windows.py allows. Means have 95 % intervals by bootstrap. Writes OUT/hook.json after every script.
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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from seatrial.agent.hook import install, torch_windows
from seatrial.common import paired

#: Steps of a block with a window: its ten, and those in which Python specialises its bytecode again.
WINDOW = 25

#: Share of outliers that means leave out on each side: other processes use the machine, too.
CUT = 0.1
#: See above.
CLIP, RUN_S = 0.3, 60.0

HEAD = """
import hashlib, sys, time, torch, types
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
device = sys.argv[1]
if device == "cpu": torch.set_num_threads(1)
torch.manual_seed(1); torch.use_deterministic_algorithms(True, warn_only=True)
clock = time.perf_counter if device == "cuda" else time.thread_time  # others use these cores, too
losses, blocks, stamps, reports, in_turn = [], [], [], [], len(sys.argv) > 2
deadline = time.perf_counter() + float(sys.argv[2]) if in_turn else 0.0
class Switch:
    # Removes the hook from a step, and restores it.
    def __init__(self):
        from seatrial_hook import measure_torch
        self.measuring = measure_torch._BEGUN["torch"]
        self.recorder, self.windows = self.measuring.recorder, self.measuring.windows
        if self.windows.open: self.windows.spoil()
        self.recorder.look_closely()
        optimizer, data = sys.modules["torch.optim.optimizer"], sys.modules["torch.utils.data.dataloader"]
        owners = (torch.autograd, data._BaseDataLoaderIter, torch.no_grad, torch.inference_mode)
        self.places = [(owner, name, each, each.__wrapped__) for owner in owners for name, each in list(vars(owner).items())
                       if isinstance(each, types.FunctionType) and hasattr(each, "__wrapped__") and name != "__init__"
                       and "seatrial_hook" in each.__code__.co_filename]
        assert {"_engine_run_backward", "__next__", "_next_index"} <= {name for _, name, *_ in self.places}, self.places
        self.hooks = [(each, dict(each)) for each in (optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks)]
        self.thread = self.recorder.thread
    def to(self, mode, fast=False):
        if not fast:
            if self.windows.open: self.windows.spoil()
            self.recorder.look_closely()
        on = mode != "nothing"
        for owner, name, ours, theirs in self.places:
            if not fast or name != "_engine_run_backward": setattr(owner, name, ours if on else theirs)
        for kept, all_of_them in self.hooks:
            kept.clear(); kept.update(all_of_them if on else {})
        self.recorder.thread = self.thread if on or fast else -1
        self.windows._due_s = self.recorder._line_due_s = float("inf")
    def window(self):
        self.windows._next = self.recorder.next_look = 0
        self.windows._due_s = self.recorder.timeline.plain_until_s = 0.0
        self.windows._paid_s = float("-inf")
    def report(self):
        began = time.perf_counter(); self.recorder.report_line(); reports.append(time.perf_counter() - began)
switch, order = None, [("all", 0, 400)]
def tick(step, loss):
    global switch
    if not in_turn:
        losses.append(loss.detach()); return
    stamps.append(clock())
    mode, settle, count = order[0]
    if len(stamps) == settle + 1 and mode == "window": switch.window()
    if len(stamps) <= settle + count: return
    if mode != "all":
        blocks.append([mode, count, *(after - before for before, after in zip(stamps[settle:], stamps[settle + 1:]))])
        if mode == "window": blocks[-1].append(switch.windows._cost_s)
    if time.perf_counter() > deadline: raise StopAsyncIteration
    switch = switch or Switch()
    if not order[1:]:
        import random
        switch.to("steps"); switch.report()
        order.append(("all", 0, 30))  # until steps are plain
        for _ in range(40): order.extend(random.sample([("steps", 1, 2), ("nothing", 1, 2)], 2))
        order.extend(random.sample([("window", 5, WINDOW), ("nothing", 5, WINDOW)], 2))
    del order[0]; switch.to(order[0][0], fast=order[0][1] == 1)
    stamps[:] = [clock()]
def net():
    wide = 32 if device == "cuda" else 2
    return nn.Sequential(nn.Conv2d(1, wide, 3), nn.ReLU(), nn.Conv2d(wide, 2 * wide, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
                         nn.Flatten(), nn.Linear(288 * wide, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10)).to(device)
images = TensorDataset(torch.randn(EXAMPLES, 1, 28, 28), torch.randint(0, 10, (EXAMPLES,)))
def bert():
    layer = nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, norm_first=False)
    return nn.Sequential(nn.Embedding(30522, 768), nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)).to(device)
"""
TAIL = """
import json
if device == "cuda": torch.cuda.synchronize()
digest = "" if in_turn else hashlib.sha256(torch.stack(losses).float().cpu().numpy().tobytes()).hexdigest()[:16]
print("RESULT " + json.dumps({"digest": digest, "blocks": blocks, "reports": reports}), flush=True)
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
#: Name → (script, whether it is timed).
SCRIPTS: dict[str, tuple[str, bool]] = {
    "mnist tutorial, default loader": (MNIST.replace("LOADER", ""), True),
    "bert": (BERT, True),
    "mnist tutorial, 4 workers": (MNIST.replace("LOADER", "num_workers=4, pin_memory=True"), False),
    "GradScaler": (SCALER, False),
    "CUDA graph": (GRAPH, False),
    "torch.compile": (COMPILED, False),
    "spawned workers": (MNIST.replace("LOADER", "num_workers=2, multiprocessing_context='spawn'"), False),
}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="*", default=list(SCRIPTS))
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--timed", action="store_true", help="only what is timed")
    parser.add_argument("--seconds", type=float, default=80.0, help="of timing, for each script that is timed")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {}
    for name in asked.only:
        body, is_timed = SCRIPTS[name]
        if (asked.cpu and name == "CUDA graph") or (asked.timed and not is_timed):
            continue
        found[name] = {}
        if not asked.timed:
            few = 30 if asked.cpu else 220  # they tell as much of equality as thousands
            with ThreadPoolExecutor() as pool:
                both = [pool.submit(one, body, few, asked, measured=measured) for measured in (False, True)]
                plain, hooked = (each.result() for each in both)
            digests = (plain.get("digest"), hooked.get("digest"))
            found[name] = {"equal": digests[0] == digests[1] is not None, "told": hooked["told"]}
            found[name]["errors"] = [each["error"] for each in (plain, hooked) if "error" in each]
        if is_timed:
            timed = one(body, 100_000, asked, measured=True, timed=True)
            found[name] |= {"error": timed["error"]} if "error" in timed else cost(timed)
        print(name, json.dumps({k: v for k, v in found[name].items() if k not in ("told", "raw")}), flush=True)
        (asked.out / "hook.json").write_text(json.dumps(found, indent=1))
    if not asked.timed:
        found["start"] = start()
        print("start", json.dumps(found["start"]), flush=True)
        (asked.out / "hook.json").write_text(json.dumps(found, indent=1))
    return 0


def cost(run: dict[str, Any]) -> dict[str, Any]:
    """Compare the blocks of a run: the cost of a step, a report and a window, and of all in a run of RUN_S."""
    blocks = run["blocks"][82:]
    pairs: dict[str, list[tuple[list[Any], list[Any]]]] = {"steps": [], "window": []}
    for first, second in zip(blocks[0::2], blocks[1::2], strict=False):
        on, off = (first, second) if second[0] == "nothing" else (second, first)
        if on[1] == off[1]:  # a run ends within a pair
            pairs[on[0]].append((on, off))
    step_s = median(each for _, off in pairs["steps"] for each in off[2:])

    def mean(block: list[Any], usual_s: float, clip: float = CLIP) -> float:
        each_s = block[2 : 2 + block[1]]
        return sum(min(max(each, usual_s * (1 - clip)), usual_s * (1 + clip)) for each in each_s) / len(each_s)

    steps, windows = [], []
    for on, off in pairs["steps"]:
        usual_s = median([*on[2:], *off[2:]])
        steps.append(mean(on, usual_s) - mean(off, usual_s))
    for on, off in pairs["window"]:
        usual_s = median(off[2:])
        windows.append(off[1] * (mean(on, usual_s, 3.0) - mean(off, usual_s, 3.0)))
    reports, by_the_hook = run["reports"], [on[-1] for on, _ in pairs["window"]]
    draw = random.Random(17)

    def share(draws: Callable[[list[float]], list[float]]) -> float:
        a_step, a_report, a_window = (trimmed(draws(each)) for each in (steps, reports, windows))
        return a_step / step_s + a_report + windows_in(RUN_S, a_window) * a_window / RUN_S

    shares = sorted(share(lambda values: draw.choices(values, k=len(values))) for _ in range(2000))
    return {
        "step_ms": round(1000 * step_s, 4),
        "percent": [round(100 * each, 3) for each in (shares[50], share(list), shares[-50])],
        "us_a_step": [round(1e6 * each, 2) for each in paired.mean(steps, CUT)],
        "us_a_report": [round(1e6 * each, 1) for each in paired.mean(reports, CUT)],
        "ms_a_window": [round(1000 * each, 3) for each in paired.mean(windows, CUT)],
        "ms_a_window_by_the_hook": [round(1000 * each, 3) for each in paired.mean(by_the_hook, CUT)],
        "windows_in_a_run": windows_in(RUN_S, trimmed(windows)),
        "pairs": {name: len(each) for name, each in pairs.items()},
        "raw": blocks,
    }


def windows_in(seconds: float, each_s: float) -> int:
    """Return the number of windows in a run of this duration and cost per window, by torch_windows.py's rules."""
    count, now_s = 0, 0.0
    while now_s < seconds:
        count += 1
        after_s = now_s + max(torch_windows._BETWEEN_S, now_s)
        now_s = max(after_s, ((count + 1) * each_s - torch_windows._AHEAD_S) / torch_windows._SHARE)
    return count


def trimmed(values: list[float]) -> float:
    """Return the mean without outliers on both sides."""
    cut = int(CUT * len(values))
    kept = sorted(values)[cut : len(values) - cut]
    return sum(kept) / len(kept)


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


def one(body: str, steps: int, asked: argparse.Namespace, *, measured: bool, timed: bool = False) -> dict[str, Any]:
    """A run: its digest, the seconds of its blocks by what was on, and what the hook told."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        head = HEAD.replace("EXAMPLES", str(min(steps, 1000) * 64))
        head = head.replace("WINDOW", str(WINDOW))
        lines = body.replace("STEPS", str(steps)).strip().splitlines()
        if timed:  # passes over the data until the time is over
            loops = (
                ["for _ in range(10000):", *(f"    {line}" for line in lines[1:])] if "loader" in body else lines[1:]
            )
            lines = ["try:", f"    {lines[0]}", *(f"    {line}" for line in loops), "except StopAsyncIteration: pass"]
        guarded = ["if __name__ == '__main__':", *(f"    {line}" for line in (*lines, *TAIL.strip().splitlines()))]
        (folder / "train.py").write_text("\n".join((head, *guarded)) + "\n")
        command = [sys.executable, "train.py", "cpu" if asked.cpu else "cuda", *([str(asked.seconds)] if timed else [])]
        env = environment(folder, measured)
        try:
            ended = subprocess.run(
                command, cwd=folder, env=env, capture_output=True, text=True, timeout=asked.seconds + 140
            )
        except subprocess.TimeoutExpired as late:
            return {"error": f"still running after {late.timeout} s", "told": []}
        result = next((line[7:] for line in ended.stdout.splitlines() if line.startswith("RESULT ")), None)
        events = folder / "events.jsonl"
        told = [json.loads(line) for line in events.read_text().splitlines()] if events.exists() else []
        told = [line for line in told if "anatomy" in line][-1:] + [line for line in told if "anatomy" not in line]
        if result is None:
            return {"error": (ended.stderr or ended.stdout)[-600:], "told": told}
        return {**json.loads(result), "told": told}


if __name__ == "__main__":
    raise SystemExit(main())
