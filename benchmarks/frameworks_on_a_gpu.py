"""JAX and TensorFlow scripts on a real GPU: the contract, --gpu-memory whatever a script sets, two on one GPU.

    python benchmarks/frameworks_on_a_gpu.py OUT [--cpu]

Says first which of the two frameworks are here, and tries those. Every case is a `seatrial run --on local` with a time
limit; one that fails or hangs is written down and the next one follows. Writes OUT/frameworks.json after every case,
and OUT/receipts.tar.gz at the end. About two minutes with one framework. --cpu: to try this program, without limits.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

LIMIT = "8GB"

#: What each script ends with: what its framework may take and had, and what the driver says that this process has.
USED = """
import os, subprocess
def used():
    asked = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    try: lines = subprocess.run(asked, capture_output=True, text=True, timeout=20).stdout.splitlines()
    except OSError: return None
    found = [line.split(",") for line in lines]
    return next((int(mb) for pid, mb in found if int(pid) == os.getpid()), None)
"""

JAX = (
    USED
    + """
import json, sys, time
import jax, jax.numpy as jnp
step = jax.jit(lambda a: jnp.tanh(a @ a))
a = jnp.ones((2048, 2048))
until = time.time() + float(sys.argv[2] if len(sys.argv) > 2 else 4)
while time.time() < until: a = step(a).block_until_ready()
more = "not tried on a CPU"
try:
    if jax.devices()[0].platform != "cpu":
        jnp.ones((3 * 2**30,)).block_until_ready(); more = "12 GiB more were there"
except Exception as error: more = str(error)[:80]
stats = jax.devices()[0].memory_stats() or {}
print("RESULT", json.dumps({"device": str(jax.devices()[0]), "limit": stats.get("bytes_limit"),
    "peak": stats.get("peak_bytes_in_use"), "process_mb": used(), "more": more}), flush=True)
"""
)

TENSORFLOW = (
    USED
    + """
import json, sys, time
import tensorflow as tf
@tf.function
def step(a): return tf.tanh(a @ a)
a = tf.ones((2048, 2048))
until = time.time() + float(sys.argv[2] if len(sys.argv) > 2 else 4)
while time.time() < until: a = step(a); a.numpy()
gpus, more = tf.config.list_logical_devices("GPU"), "not tried on a CPU"
try:
    if gpus: tf.reduce_sum(tf.ones((3 * 2**30,))).numpy(); more = "12 GiB more were there"
except Exception as error: more = str(error)[:80]
peak = tf.config.experimental.get_memory_info("GPU:0")["peak"] if gpus else None
print("RESULT", json.dumps({"device": a.device, "peak": peak, "process_mb": used(), "more": more}), flush=True)
"""
)

#: Name → (lines in front of the script, flags, exit code that is expected).
CASES: dict[str, dict[str, tuple[str, list[str], int]]] = {
    "jax": {
        "contract": ("", [], 0),
        "kept off the GPU": ("", ["--env", "JAX_PLATFORMS=cpu"], 3),
        "limit": ("", ["--gpu-memory", LIMIT], 0),
        "limit and growth": (
            "import os; os.environ['XLA_PYTHON_CLIENT_PREALLOCATE'] = 'false'",
            ["--gpu-memory", LIMIT],
            0,
        ),
        "limit and .95": (
            "import os; os.environ['XLA_PYTHON_CLIENT_MEM_FRACTION'] = '.95'",
            ["--gpu-memory", LIMIT],
            0,
        ),
        "limit and no pool": (
            "import os; os.environ['XLA_PYTHON_CLIENT_ALLOCATOR'] = 'platform'",
            ["--gpu-memory", LIMIT],
            0,
        ),
    },
    "tensorflow": {
        "contract": ("", [], 0),
        "limit": ("", ["--gpu-memory", LIMIT], 0),
        "limit and growth": (
            "import tensorflow as tf\n"
            "for gpu in tf.config.list_physical_devices('GPU'): tf.config.experimental.set_memory_growth(gpu, True)",
            ["--gpu-memory", LIMIT],
            0,
        ),
        "limit and a larger one": (
            "import tensorflow as tf\n"
            "for gpu in tf.config.list_physical_devices('GPU'): tf.config.set_logical_device_configuration("
            "gpu, [tf.config.LogicalDeviceConfiguration(memory_limit=40000)])",
            ["--gpu-memory", LIMIT],
            0,
        ),
    },
}


def facts() -> dict[str, Any]:
    """What is here."""
    names = ("jax", "jaxlib", "tensorflow", "keras", "torch", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13")
    found: dict[str, Any] = {"python": sys.version.split()[0]}
    for each in metadata.distributions():
        name = (each.metadata["Name"] or "").lower()
        if name in names or name.startswith("jax"):
            found[name] = each.version
    smi = subprocess.run("nvidia-smi -L", shell=True, capture_output=True, text=True, check=False)
    found["gpus"] = smi.stdout.splitlines()
    return found


def start(folder: Path, name: str, text: str, flags: list[str], cpu: bool, seconds: str) -> subprocess.Popen[str]:
    (folder / f"{name}.py").write_text(text)
    place = ["--gpus", "none"] if cpu else ["--gpus", "device=0"]
    if cpu and "--gpu-memory" in flags:
        flags = []
    command = [sys.executable, "-m", "seatrial", "run", f"{name}.py", "--on", "local", *place, *flags]
    env = {**os.environ, "VIRTUAL_ENV": sys.prefix, "NO_COLOR": "1"}
    return subprocess.Popen(
        [*command, "--", "x", seconds], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def end(process: subprocess.Popen[str], began_s: float) -> dict[str, Any]:
    try:
        out = process.communicate(timeout=60)[0]
    except subprocess.TimeoutExpired:
        process.terminate()
        try:
            out = process.communicate(timeout=15)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            out = process.communicate()[0] + "\nKILLED"
    told = [line.partition("RESULT ")[2] for line in out.splitlines() if "RESULT {" in line]
    rows = [line.strip() for line in out.splitlines() if "GPU memory limit" in line or "kernel ran" in line]
    return {
        "exit_code": process.returncode,
        "seconds": round(time.monotonic() - began_s, 1),
        "result": json.loads(told[0]) if told else None,
        "rows": rows,
        "end_of_output": out[-1500:] if not told else "",
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--cpu", action="store_true")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"facts": facts(), "cases": {}}
    began_s = time.monotonic()

    def save() -> None:
        found["seconds"] = round(time.monotonic() - began_s, 1)
        (arguments.out / "frameworks.json").write_text(json.dumps(found, indent=1))

    folder = Path(tempfile.mkdtemp(prefix="frameworks-"))
    for framework, script in (("jax", JAX), ("tensorflow", TENSORFLOW)):
        if importlib.util.find_spec(framework) is None:
            found["cases"][framework] = "not installed here"
            save()
            continue
        for number, (name, (before, flags, expected)) in enumerate(CASES[framework].items()):
            case_s = time.monotonic()
            text = before + "\n" + script
            process = start(folder, f"{framework}_{number}", text, flags, arguments.cpu, "4")
            case = {**end(process, case_s), "expected_exit_code": expected}
            found["cases"][f"{framework}: {name}"] = case
            save()
        case_s = time.monotonic()
        flags = ["--gpu-memory", LIMIT]
        both = [start(folder, f"{framework}_both_{each}", script, flags, arguments.cpu, "12") for each in "ab"]
        found["cases"][f"{framework}: two on one GPU"] = [end(process, case_s) for process in both]
        save()
    with tarfile.open(arguments.out / "receipts.tar.gz", "w:gz") as archive:
        for receipt in sorted(folder.glob(".seatrial/runs/*/receipt.*")):
            archive.add(receipt, f"{receipt.parent.name}/{receipt.name}")
    save()
    print(json.dumps({name: _short(case) for name, case in found["cases"].items()}, indent=1))


def _short(case: Any) -> Any:
    if isinstance(case, list):
        return [_short(each) for each in case]
    return case if isinstance(case, str) else {key: case[key] for key in ("exit_code", "seconds", "result", "rows")}


if __name__ == "__main__":
    main()
