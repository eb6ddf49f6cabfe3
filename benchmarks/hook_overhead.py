# ruff: noqa: E501  scripts as people write them
"""What the hook costs a script, and that the script's numbers stay the same.

    python benchmarks/hook_overhead.py OUT [--only NAME ...] [--cpu]

Every script runs with the hook and without, at the same time: the digests of their losses must be equal. Those that are
timed run once more, alone, with the hook switched off and on in turn, every 50 steps: whole runs differ by more from one
to the next than the hook costs. Writes OUT/hook.json after every script.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from seatrial.agent.hook import install as hook

HEAD = """
import hashlib, sys, time, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
device = sys.argv[1]
torch.manual_seed(1); torch.use_deterministic_algorithms(True, warn_only=True)
losses, blocks, began, in_turn = [], [], time.perf_counter(), len(sys.argv) > 2
def hooks():
    import gc
    return [each for each in gc.get_objects() if type(each).__name__ == "Recorder" and hasattr(each, "timeline")]
def tick(step, loss):
    global began
    losses.append(loss.detach())
    if in_turn and step % 50 == 49:
        if device == "cuda": torch.cuda.synchronize()
        now = time.perf_counter(); blocks.append(now - began)
        recorder, = hooks(); recorder.on = not recorder.on
        began = time.perf_counter()
def net():
    return nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
                         nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10)).to(device)
images = TensorDataset(torch.randn(STEPS * 64, 1, 28, 28), torch.randint(0, 10, (STEPS * 64,)))
def bert():
    layer = nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, norm_first=False)
    return nn.Sequential(nn.Embedding(30522, 768), nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)).to(device)
"""
TAIL = """
if device == "cuda": torch.cuda.synchronize()
digest = hashlib.sha256(torch.stack(losses).float().cpu().numpy().tobytes()).hexdigest()[:16]
print("RESULT", digest, *[round(each, 6) for each in blocks], flush=True)
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
#: Name → (script, steps, in the rounds of the overhead).
SCRIPTS: dict[str, tuple[str, int, bool]] = {
    "mnist tutorial, default loader": (MNIST.replace("LOADER", ""), 3000, True),
    "mnist tutorial, 4 workers": (MNIST.replace("LOADER", "num_workers=4, pin_memory=True"), 3000, True),
    "bert": (BERT, 1200, True),
    "GradScaler": (SCALER, 220, False),
    "CUDA graph": (GRAPH, 220, False),
    "torch.compile": (COMPILED, 220, False),
    "spawned workers": (MNIST.replace("LOADER", "num_workers=2, multiprocessing_context='spawn'"), 220, False),
}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="*", default=list(SCRIPTS))
    parser.add_argument("--cpu", action="store_true")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {}
    for name in asked.only:
        body, steps, timed = SCRIPTS[name]
        if asked.cpu and name == "CUDA graph":
            continue
        few = 30 if asked.cpu else 220  # they tell as much of equality as thousands
        with ThreadPoolExecutor() as pool:
            both = [pool.submit(one, body, few, asked, measured=measured) for measured in (False, True)]
            plain, hooked = (each.result() for each in both)
        digests = (plain.get("digest"), hooked.get("digest"))
        found[name] = {"equal": digests[0] == digests[1] is not None, "told": hooked["told"]}
        found[name]["errors"] = [each["error"] for each in (plain, hooked) if "error" in each]
        if timed:
            found[name] |= slower(one(body, 200 if asked.cpu else steps, asked, measured=True, in_turn=True))
        print(name, json.dumps({k: v for k, v in found[name].items() if k != "told"}), flush=True)
        (asked.out / "hook.json").write_text(json.dumps(found, indent=1))
    found["start"] = start()
    print("start", json.dumps(found["start"]), flush=True)
    (asked.out / "hook.json").write_text(json.dumps(found, indent=1))
    return 0


def slower(run: dict[str, Any]) -> dict[str, Any]:
    """Blocks with the hook against their neighbours without it; the first two are left out, they start things up."""
    blocks = run.get("blocks", [])[2:]
    pairs = list(zip(blocks[0::2], blocks[1::2], strict=False))  # the hook was on, then off
    if not pairs:
        return {"error": run.get("error", "too few blocks")}
    ratios = [on / off for on, off in pairs]
    return {
        "step_ms_without": 1000 * median(off for _, off in pairs) / 50,
        "slower_pct": round(100 * (median(ratios) - 1), 3),
        "slower_mean_pct": round(100 * (sum(on for on, _ in pairs) / sum(off for _, off in pairs) - 1), 3),
        "pairs": len(pairs),
    }


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
        hook.install(str(folder / "hooks"), env, None, measure_steps=True)
    return env


def one(body: str, steps: int, asked: argparse.Namespace, *, measured: bool, in_turn: bool = False) -> dict[str, Any]:
    """A run: its digest, the seconds of its blocks, and what the hook told."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        lines = body.replace("STEPS", str(steps)).strip().splitlines()
        guarded = ["if __name__ == '__main__':", *(f"    {line}" for line in (*lines, *TAIL.strip().splitlines()))]
        (folder / "train.py").write_text("\n".join((HEAD.replace("STEPS", str(steps)), *guarded)) + "\n")
        command = [sys.executable, "train.py", "cpu" if asked.cpu else "cuda", *(["in turn"] if in_turn else [])]
        env = environment(folder, measured)
        ended = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=240)
        result = next((line.split() for line in ended.stdout.splitlines() if line.startswith("RESULT")), None)
        events = folder / "events.jsonl"
        told = [json.loads(line) for line in events.read_text().splitlines()] if events.exists() else []
        told = [line for line in told if "anatomy" in line][-1:] + [line for line in told if "anatomy" not in line]
        if result is None:
            return {"error": (ended.stderr or ended.stdout)[-600:], "told": told}
        return {"digest": result[1], "blocks": [float(each) for each in result[2:]], "told": told}


if __name__ == "__main__":
    raise SystemExit(main())
