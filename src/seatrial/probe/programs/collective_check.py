"""Runs under the target's own interpreter, as a child: an all-reduce of two ranks. Prints one line of JSON.

NCCL on two GPUs, as a training script would: what goes wrong there (shared memory, peer access through an IOMMU)
shows in nothing else. ``argv``: seconds that both ranks have together.
"""

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List, Optional

#: 64 MiB of float32: past every protocol that NCCL uses for small messages.
NUMBERS = 1 << 24


def main(argv: List[str]) -> None:
    if argv[1:2] == ["rank"]:
        rank(int(argv[2]), argv[3])
        return
    timeout_s = float(argv[1]) if len(argv) > 1 else 20.0
    outcome = attempt({}, timeout_s)
    if outcome["hung"]:  # is it peer-to-peer traffic that hangs?
        outcome["without_p2p"] = attempt({"NCCL_P2P_DISABLE": "1"}, timeout_s)
    sys.stdout.write(json.dumps(outcome) + "\n")


def attempt(env: Dict[str, str], timeout_s: float) -> Dict[str, Any]:
    """Run one all-reduce between two processes; return ``{"ok", "hung", "seconds", "error"}``."""
    start_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        meeting = os.path.join(folder, "store")
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", SOURCE, "rank", str(number), meeting],
                env=dict(os.environ, NCCL_DEBUG="WARN", **env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            for number in (0, 1)
        ]
        printed: List[str] = []
        hung = False
        for process in ranks:
            try:
                out, _ = process.communicate(timeout=max(0.1, start_s + timeout_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                hung = True
                process.kill()
                out, _ = process.communicate()
            printed.append(out.decode("utf-8", "replace"))
    ok = not hung and all(process.returncode == 0 for process in ranks)
    error: Optional[str] = None
    if not ok:
        lines = [line.strip() for text in printed for line in text.splitlines() if line.strip()]
        telling = [line for line in lines if "NCCL" in line or "nccl" in line or "Error" in line or "/dev/shm" in line]
        error = "\n".join((telling or lines)[-12:])[:2000]
    return {"ok": ok, "hung": hung, "seconds": round(time.monotonic() - start_s, 2), "error": error}


def rank(number: int, meeting: str) -> None:
    torch = importlib.import_module("torch")
    distributed = importlib.import_module("torch.distributed")
    gpus = torch.cuda.is_available() and torch.cuda.device_count() > 1
    device = torch.device("cuda", number) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    distributed.init_process_group(
        "nccl" if gpus else "gloo", init_method="file://" + meeting, rank=number, world_size=2
    )
    numbers = torch.full((NUMBERS,), float(number + 1), device=device)
    distributed.all_reduce(numbers)
    if not bool((numbers == 3.0).all()):
        sys.exit("the sum of two ranks is wrong")
    distributed.destroy_process_group()


if __name__ == "__main__":
    # Handed over with -c no file exists to start the ranks from: the caller puts the text there.
    SOURCE = os.environ["SEATRIAL_SOURCE"]
    main(sys.argv)
