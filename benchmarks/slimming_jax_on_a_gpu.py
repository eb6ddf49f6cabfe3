"""JAX slimmed, on a real GPU: the installed packages are copied aside, the copy is slimmed, and both train one model.

    python benchmarks/slimming_jax_on_a_gpu.py OUT [--site FOLDER] [--cpu]

Levels `unused` and `arch` (for the GPU that is here). The weights after training must be equal bit for bit; the files
that each process has opened are written down; a solver and an FFT must end with one sentence of a stub. Nothing is
installed or changed outside a temporary folder. Writes OUT/slimming_jax.json after every step. Three to five minutes,
8 GB of disk. --cpu: to try this program without a GPU: sizes and weights are those of the CPU, and no stub is called.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

#: All that JAX alone needs; NVIDIA's packages that torch brings besides are among them.
PACKAGES = ("jax*", "nvidia*", "ml_dtypes*", "numpy*", "scipy*", "opt_einsum*")

FEATURES = ("compile", "fft", "libclang", "linalg", "nccl", "nvcc", "nvshmem", "random", "rnn", "sparse", "sparselt")

#: The first that this JAX knows: the same algorithms in each process, so that equal libraries give equal bits.
FLAGS = (
    "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0",
    "--xla_gpu_exclude_nondeterministic_ops=true --xla_gpu_autotune_level=0",
    "--xla_gpu_deterministic_ops=true",
    "",
)

BEGIN = """
import hashlib, json, sys, time
sys.path.insert(0, sys.argv[1])
started = time.time()
import jax, jax.numpy as jnp
def result(**found):
    found["opened"] = sorted({line.split()[-1] for line in open("/proc/self/maps") if ".so" in line})
    found = {"device": str(jax.devices()[0]), "seconds": time.time() - started, **found}
    print("RESULT", json.dumps(found), flush=True)
def digest(tree):
    data = b"".join(jax.device_get(leaf).tobytes() for leaf in jax.tree.leaves(tree))
    return hashlib.sha256(data).hexdigest()[:16]
"""

#: Shapes: images NCHW (64, 1, 28, 28), labels (64,). Convolution, matrix products, dropout, Adam; then attention.
TRAIN = (
    BEGIN
    + """
keys = jax.random.split(jax.random.key(0), 8)
draw = lambda at, *shape: jax.random.normal(keys[at], shape) * 0.05
weights = {"conv": draw(0, 16, 1, 3, 3), "conv2": draw(1, 32, 16, 3, 3)}
weights |= {"a": draw(2, 32 * 12 * 12, 128), "b": draw(3, 128, 10)}
images, labels = jax.random.normal(keys[4], (64, 1, 28, 28)), jnp.arange(64) % 10
def logits(weights, images, key):
    hidden = jax.nn.relu(jax.lax.conv(images, weights["conv"], (1, 1), "VALID"))
    hidden = jax.nn.relu(jax.lax.conv(hidden, weights["conv2"], (2, 2), "SAME"))[:, :, :12, :12].reshape(64, -1)
    hidden = jax.nn.relu(hidden @ weights["a"])
    return (hidden * jax.random.bernoulli(key, 0.9, hidden.shape)) @ weights["b"]
def loss(weights, key):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits(weights, images, key)), labels[:, None], 1).mean()
@jax.jit
def step(weights, means, squares, key):
    value, gradients = jax.value_and_grad(loss)(weights, key)
    means = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, means, gradients)
    squares = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g * g, squares, gradients)
    weights = jax.tree.map(lambda w, m, s: w - 1e-3 * m / (jnp.sqrt(s) + 1e-8), weights, means, squares)
    return weights, means, squares, value
zeros = jax.tree.map(jnp.zeros_like, weights)
means, squares = zeros, zeros
for at in range(50):
    weights, means, squares, value = step(weights, means, squares, jax.random.fold_in(keys[5], at))
half = draw(6, 2, 128, 4, 64).astype(jnp.bfloat16)
attention, refused = None, None
try:
    with_cudnn = lambda q: jax.nn.dot_product_attention(q, q, q, implementation="cudnn").astype(jnp.float32).sum()
    attention = digest(jax.jit(jax.grad(with_cudnn))(half))
except Exception as error:
    refused = f"{type(error).__name__}: {str(error)[:200]}"
result(weights=digest(weights), loss=float(value), attention=attention, attention_refused=refused)
"""
)

#: What slimming leaves out: each must end the process with the stub's sentence.
CALLS = {
    "cholesky": BEGIN + "print(jnp.linalg.cholesky(jnp.eye(64) * 2).sum()); result()\n",
    "fft": BEGIN + "print(abs(jnp.fft.fft(jnp.ones(64))).sum()); result()\n",
}


class Bench:
    """What was found so far, written after every step."""

    def __init__(self, out: Path, work: Path, cpu: bool) -> None:
        self.out, self.work, self.cpu = out, work, cpu
        self.found: dict[str, Any] = {"flags": None, "levels": {}}

    def save(self) -> None:
        (self.out / "slimming_jax.json").write_text(json.dumps(self.found, indent=1))

    def script(self, site: Path, code: str, flags: str, limit_s: float = 120) -> dict[str, Any]:
        """A script that sees the standard library and this folder alone: its result, or how it ended."""
        file = self.work / "script.py"
        file.write_text(code)
        env = {key: value for key, value in os.environ.items() if not key.startswith(("XLA", "JAX", "PYTHON"))}
        env.pop("LD_LIBRARY_PATH", None) if site.name != "installed" else None
        env |= {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_FLAGS": flags, "PYTHONDONTWRITEBYTECODE": "1"}
        env |= {"JAX_PLATFORMS": "cpu"} if self.cpu else {}
        argv = [sys.executable, "-s", "-S", str(file), str(site)]
        try:
            ended = subprocess.run(argv, capture_output=True, text=True, timeout=limit_s, env=env, check=False)
        except subprocess.TimeoutExpired:
            return {"failed": f"no end after {limit_s:.0f} s"}
        line = next((line for line in ended.stdout.splitlines() if line.startswith("RESULT ")), None)
        if line and ended.returncode == 0:
            answer: dict[str, Any] = json.loads(line[7:])
            return {**answer, "opened": summarised(answer["opened"], site)}
        said = [line for line in ended.stderr.splitlines() if line.startswith("seatrial:")]
        return {"failed": ended.returncode, "said": said, "stderr": ended.stderr[-1500:]}

    def level(self, name: str, site: Path, arguments: list[str] | None) -> dict[str, Any]:
        """Slim a copy, train in it, and call what was left out."""
        row: dict[str, Any] = {}
        self.found["levels"][name] = row
        if arguments is not None:
            row["slimming"] = slim(site, arguments)
        row["bytes"] = sizes(site)
        row["training"] = self.script(site, TRAIN, self.found["flags"])
        self.save()
        if arguments is not None and not self.cpu:
            row["calls"] = {call: self.script(site, code, "", 60) for call, code in CALLS.items()}
            self.save()
        return row


def main() -> None:
    """Whole, whole again, unused, arch; then single features where `unused` went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--site", type=Path, help="the site-packages that JAX is in")
    parser.add_argument("--cpu", action="store_true")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    spec = find_spec("jaxlib")
    installed = given.site or (Path(spec.origin).parent.parent if spec and spec.origin else None)
    if installed is None:
        raise SystemExit("no JAX is installed here")
    with tempfile.TemporaryDirectory() as folder:
        compare(Bench(given.out, Path(folder), given.cpu), installed)


def compare(bench: Bench, installed: Path) -> None:
    """Fill in the bench's findings."""
    whole = copied(installed, bench.work / "whole")
    versions = [
        path.name[:-10] for path in sorted(whole.glob("*.dist-info")) if path.name.startswith(("jax", "nvidia"))
    ]
    bench.found |= {"python": sys.version, "versions": versions, "capability": capability()}
    for flags in FLAGS:  # XLA ends the process at a flag that it does not know
        bench.found["flags"] = flags
        if "failed" not in bench.script(whole, BEGIN + "jnp.ones(3).sum(); result()\n", flags):
            break
    first = bench.level("whole", whole, None)["training"]
    bench.level("whole again", whole, None)
    usual = bench.found["levels"]["whole, XLA's own choice of algorithms"] = bench.script(whole, TRAIN, "")
    unused = ["--level", "unused", "--unused", ",".join(FEATURES)]
    slimmed = copied(whole, bench.work / "unused")
    second = bench.level("unused", slimmed, unused)["training"]
    bench.found["levels"]["unused, XLA's own choice of algorithms"] = bench.script(slimmed, TRAIN, "")
    target = bench.found["capability"] or ("90" if bench.cpu else None)
    third = None
    if target:
        arguments = [*unused, "--arch", target]
        arguments[1] = "arch"
        third = bench.level("arch", copied(whole, bench.work / "arch"), arguments)["training"]
    equal = {"again": bench.found["levels"]["whole again"]["training"], "unused": second, "arch": third or {}}
    keys = ("weights", "attention")
    bench.found["equal"] = {
        name: {key: first.get(key) == row.get(key) if first.get(key) else None for key in keys}
        for name, row in equal.items()
    }
    bench.found["usual_loss"] = usual.get("loss")
    bench.save()
    if "failed" in second and "failed" not in first:
        for feature in FEATURES:
            site = copied(whole, bench.work / f"only-{feature}")
            slim(site, ["--level", "unused", "--unused", feature])
            row = bench.script(site, TRAIN, bench.found["flags"], 60)
            bench.found["levels"][f"only {feature}"] = {"failed": row.get("failed"), "said": row.get("said")}
            bench.save()
    print(json.dumps({"equal": bench.found["equal"], "bytes": {
        name: row["bytes"]["all"] for name, row in bench.found["levels"].items() if "bytes" in row
    }}, indent=1))  # fmt: skip


def copied(source: Path, target: Path) -> Path:
    """The packages as hard links where that works: the slimming program writes files anew, never in place."""
    target.mkdir()
    for pattern in PACKAGES:
        for path in sorted(source.glob(pattern)):
            if path.is_dir():
                shutil.copytree(path, target / path.name, symlinks=True, copy_function=_link, dirs_exist_ok=True)
    return target


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or files of another user
        shutil.copy2(source, target)


def slim(site: Path, arguments: list[str]) -> dict[str, Any]:
    """Run the slimming program; what it reports."""
    argv = [sys.executable, "-m", "seatrial.images.slim.program.main", "--root", str(site), *arguments]
    started = time.time()
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=400, check=False)
    report = site / "slim.json"
    found = json.loads(report.read_text()) if report.exists() else {}
    return {"exit": ended.returncode, "stderr": ended.stderr[-1000:], "seconds": time.time() - started, **found}


def sizes(site: Path) -> dict[str, int]:
    """Bytes in all, and of each of NVIDIA's libraries and each package."""
    found: dict[str, int] = {"all": 0}
    for path in site.rglob("*"):
        if path.is_file() and not path.is_symlink():
            size = path.stat().st_size
            inside = path.relative_to(site)
            name = path.name if inside.parts[0] == "nvidia" and size > 1_000_000 else inside.parts[0]
            found[name] = found.get(name, 0) + size
            found["all"] += size
    return found


def summarised(opened: list[str], site: Path) -> dict[str, list[str]]:
    """NVIDIA's libraries from the folder, by name; those from elsewhere with their paths."""
    inside = [Path(path).name for path in opened if path.startswith(str(site)) and "/nvidia/" in path]
    outside = [path for path in opened if not path.startswith(str(site)) and any(
        word in path for word in ("nvidia", "cuda", "cudnn", "cublas", "site-packages", "dist-packages")
    )]  # fmt: skip
    return {"inside": inside, "outside": outside}


def capability() -> str | None:
    """``90`` for compute capability 9.0, as the driver says it; None without a GPU."""
    asked = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return None
    return said[0].replace(".", "") if said else None


if __name__ == "__main__":
    main()
