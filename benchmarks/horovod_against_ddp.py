"""The stand-in for Horovod (seatrial.compat) against DDP on two GPUs: equal to the bit, as fast, every operation.

    python benchmarks/horovod_against_ddp.py FOLDER [--steps 200] [--ranks 2] [--speed-runs 1]

Writes FOLDER/results.json, FOLDER/summary.txt and the ranks' output, after each part. Where a GPU is, also a run of
seatrial's with its receipt. A part that fails or hangs ends after its time, and the others go on. About 50 s on two
GPUs: what is compared to the bit runs side by side, what is timed runs alone.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent / "src"
COMPAT = SOURCE / "seatrial" / "compat"

SCRIPT = """
import torch
import horovod.torch as hvd

hvd.init()
torch.cuda.set_device(hvd.local_rank())
model = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096) for _ in range(6)]).cuda()
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
for step in range(400):
    optimizer.zero_grad()
    loss = model(torch.randn(2048, 4096, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
print(f"rank {hvd.rank()} of {hvd.size()} loss {hvd.allreduce(loss).item():.5f}\\n", end="", flush=True)
"""


#: Two GPUs need no NVLink multicast, and machines that share their switch with others may not use it.
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}

#: Of a part. On a machine whose disk is cold, six ranks that import torch at once take half a minute to do so.
LIMIT_S = 120.0


def ranks(arguments: list[str], count: int, log: Path, timeout_s: float) -> list[dict[str, object]]:
    """Results of the ranks; what went wrong in place of them."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(COMPAT), os.environ.get("PYTHONPATH")]))}
    env.update(OMP_NUM_THREADS="2", CUBLAS_WORKSPACE_CONFIG=":4096:8", **NO_MULTICAST)
    with log.open("w") as file:
        try:
            subprocess.run(
                [*command, str(HERE / "horovod_rank.py"), *arguments],
                env=env, stdout=file, stderr=subprocess.STDOUT, timeout=timeout_s, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            file.write(f"\nended after {timeout_s} s\n")
    lines = [line[7:] for line in log.read_text(errors="replace").splitlines() if line.startswith("RESULT ")]
    return sorted((json.loads(line) for line in lines), key=lambda each: each["rank"])


def seatrial_run(folder: Path, count: int) -> dict[str, object]:
    """`seatrial run train.py --gpus 2` in a project of its own; its receipt is kept."""
    project = folder / "project"
    project.mkdir(exist_ok=True)
    (project / "train.py").write_text(SCRIPT)
    python_path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "seatrial", "run", "train.py", "--on", "local", "--gpus", str(count)]
    command += [word for name, value in NO_MULTICAST.items() for word in ("-e", f"{name}={value}")]
    env = {**os.environ, "PYTHONPATH": python_path, "XDG_STATE_HOME": str(folder / "state")}
    try:
        done = subprocess.run(
            command, cwd=project, env=env, capture_output=True, text=True, timeout=90, check=False, errors="replace"
        )
    except subprocess.TimeoutExpired as error:
        return {"timed_out": True, "output": str(error.output)[-2000:]}
    (folder / "seatrial.txt").write_text(done.stdout + done.stderr)
    for receipt in project.glob(".seatrial/runs/*/receipt.*"):
        shutil.copy(receipt, folder / receipt.name)
    shutil.rmtree(folder / "state", ignore_errors=True)
    shutil.rmtree(project, ignore_errors=True)
    output = done.stdout + done.stderr
    return {"exit_code": done.returncode, "ranks": output.count(f"of {count} loss"), "stand_in": "stand-in" in output}


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("folder", type=Path)
    asked.add_argument("--steps", type=int, default=200)
    asked.add_argument("--ranks", type=int, default=2)
    asked.add_argument("--speed-runs", type=int, default=1, help="times that each way is timed")
    asked.add_argument("--run", action=argparse.BooleanOptionalAction, default=True)
    options = asked.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, object] = {}
    began_s = time.monotonic()

    def part(number: int, way: str, what: str, steps: int) -> None:
        log = options.folder / f"{number}-{what}-{way}.log"
        results[log.stem] = ranks([way, what, str(steps)], options.ranks, log, LIMIT_S)
        write(options.folder, results, began_s)

    at_once = [("hvd", "operations", 0), ("ddp", "equal", options.steps), ("hvd", "equal", options.steps)]
    with ThreadPoolExecutor(len(at_once)) as pool:
        list(pool.map(lambda each: part(each[0], *each[1]), enumerate(at_once)))
    timed = [("ddp", "speed"), ("hvd", "speed")] * options.speed_runs
    for number, (way, what) in enumerate(timed, len(at_once)):
        part(number, way, what, min(60, options.steps))
    if options.run:
        results["seatrial run"] = seatrial_run(options.folder, options.ranks)
    print(write(options.folder, results, began_s))


def write(folder: Path, results: dict[str, Any], began_s: float) -> str:
    """results.json and summary.txt as they are so far; the latter's text."""
    same = [
        [{key: each[key] for key in ("rank", "losses", "weights")} for each in results.get(name, [])]
        for name in ("1-equal-ddp", "2-equal-hvd")
    ]
    told = {"equal_to_the_bit": bool(same[0]) and same[0] == same[1], "seconds": round(time.monotonic() - began_s, 1)}
    told.update(sorted(results.items()))
    (folder / "results.json").write_text(json.dumps(told, indent=1))
    summary = "\n".join(f"{name}: {json.dumps(value)}" for name, value in told.items()) + "\n"
    (folder / "summary.txt").write_text(summary)
    return summary


if __name__ == "__main__":
    main()
