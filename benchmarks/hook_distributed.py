# ruff: noqa: E501  scripts as people write them
"""The hook on several ranks: losses equal bit for bit with it and without, and what it tells of waiting for ranks.

    python benchmarks/hook_distributed.py OUT [--cpu] [--ranks 2]

DDP, FSDP1 and FSDP2 (fully_shard) on NCCL, or gloo with --cpu. Rank 1 is slower by 20 ms a step in ``slow rank``: rank 0 must
be seen waiting for it. Writes OUT/hook_distributed.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from seatrial.agent.hook import install

#: Multicast of NVLink hangs on some machines.
QUIET = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}

HEAD = """
import hashlib, os, sys, time, torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
kind = sys.argv[1]; rank = int(os.environ["RANK"])
dist.init_process_group("nccl" if kind == "cuda" else "gloo")
if kind == "cuda": torch.cuda.set_device(rank)
else: torch.set_num_threads(1)
device = torch.device(kind, rank) if kind == "cuda" else torch.device("cpu")
torch.manual_seed(3)
data = TensorDataset(torch.randn(STEPS * 64, 256), torch.randint(0, 10, (STEPS * 64,)))
loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data, shuffle=False), num_workers=WORKERS)
width = 4096 if kind == "cuda" else 128
net = nn.Sequential(nn.Linear(256, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)).to(device)
losses = []
"""
TAIL = """
for step, (x, y) in enumerate(loader):
    x, y = x.to(device), y.to(device)
    if SLOW and rank: time.sleep(0.02)
    loss = F.cross_entropy(net(x), y); loss.backward(); opt.step(); opt.zero_grad(); losses.append(loss.detach())
    if step % 10 == 0: loss.item()
digest = hashlib.sha256(torch.stack(losses).float().cpu().numpy().tobytes()).hexdigest()[:16]
os.write(1, f"\\nRESULT {rank} {digest}\\n".encode())  # whole lines, of two ranks on one pipe
dist.destroy_process_group()
"""
DDP = "net = nn.parallel.DistributedDataParallel(net); opt = torch.optim.Adam(net.parameters(), 1e-3)"
FSDP1 = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
net = FSDP(nn.Sequential(*[FSDP(each, device_id=device if kind == "cuda" else None) if isinstance(each, nn.Linear) else each for each in net]), device_id=device if kind == "cuda" else None)
opt = torch.optim.Adam(net.parameters(), 1e-3)
"""
FSDP2 = """
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh(kind, (dist.get_world_size(),))
for each in net:
    if isinstance(each, nn.Linear): fully_shard(each, mesh=mesh)
fully_shard(net, mesh=mesh); opt = torch.optim.Adam(net.parameters(), 1e-3)
"""
#: Name → (the wrapping, loader workers, whether rank 1 is slow).
SCRIPTS = {
    "DDP": (DDP, 0, False),
    "DDP, 2 workers": (DDP, 2, False),
    "DDP, slow rank": (DDP, 0, True),
    "FSDP1": (FSDP1, 0, False),
    "FSDP2": (FSDP2, 0, False),
}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="*", default=list(SCRIPTS))
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--ranks", type=int, default=2)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {}
    for name in asked.only:
        if asked.cpu and name == "FSDP1":  # it needs an accelerator
            continue
        plain, hooked = (one(name, asked, measured=measured) for measured in (False, True))
        found[name] = {"equal": plain["digests"] == hooked["digests"] and len(plain["digests"]) == asked.ranks}
        found[name]["digests"] = [plain["digests"], hooked["digests"]]
        found[name] |= {"told": hooked["told"], "errors": [each["error"] for each in (plain, hooked) if each["error"]]}
        print(name, found[name]["equal"], json.dumps(hooked["told"])[:600], *found[name]["errors"], flush=True)
        (asked.out / "hook_distributed.json").write_text(json.dumps(found, indent=1))
    return 0


def one(name: str, asked: argparse.Namespace, *, measured: bool) -> dict[str, Any]:
    """A run under torchrun: each rank's digest of its losses, and its last anatomy and facts."""
    wrapping, workers, slow = SCRIPTS[name]
    steps = 60 if asked.cpu else 220
    text = HEAD + wrapping.strip() + TAIL
    for key, value in (("STEPS", steps), ("WORKERS", workers), ("SLOW", slow)):
        text = text.replace(key, str(value))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "train.py").write_text(text)
        env = {**os.environ, **QUIET, "SEATRIAL_EVENTS": str(folder / "events.jsonl")}
        if measured:
            install.install(str(folder / "hooks"), env, None, measure_steps=True)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={asked.ranks}"]
        command += ["train.py", "cpu" if asked.cpu else "cuda"]
        try:
            ended = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=150)
        except subprocess.TimeoutExpired:
            return {"digests": {}, "told": [], "error": "still running after 150 s"}
        lines = [line.split() for line in ended.stdout.splitlines() if line.startswith("RESULT")]
        events = folder / "events.jsonl"
        told = [json.loads(line) for line in events.read_text().splitlines()] if events.exists() else []
    last: dict[str, Any] = {}
    for line in told:
        for key in ("anatomy", "training", "hook_stopped"):
            if key in line:
                last[f"{key} {line.get('rank', 0)}"] = line[key]
    error = "" if ended.returncode == 0 else ended.stderr[-800:]
    return {"digests": {rank: digest for _, rank, digest in lines}, "told": last, "error": error}


if __name__ == "__main__":
    raise SystemExit(main())
