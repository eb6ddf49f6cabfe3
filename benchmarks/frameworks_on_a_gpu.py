"""JAX and TensorFlow scripts on real GPUs: the contract, --gpu-memory whatever a script sets, two on one GPU, two GPUs.

    python benchmarks/frameworks_on_a_gpu.py OUT [--wheels FOLDER] [--cpu]

Says first which of the two frameworks are here, and tries those. Every case is a `seatrial run --on local` with a time
limit; one that fails or hangs is written down and the next one follows. Writes OUT/frameworks.json and OUT/summary.txt
after every case, and OUT/receipts.tar.gz at the end. About 150 s with JAX. FOLDER: wheels of Keras and what it needs,
where it is not installed. --cpu: to try this program, without limits.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

LIMIT = "8GB"

#: Of a case; on a CPU that others use, too, it takes longer.
LIMIT_S = 240 if "--cpu" in sys.argv else 60

#: Rows of a receipt that are kept.
ROWS = (
    "GPU memory limit",
    "JAX ",
    "GPU ",
    "steps ",
    "throughput",
    "epoch ",
    "mnist ",
    "jax ",
    "torch ",
    "[✗]",
    "cause",
    "fix",
)

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

#: A script as people write them: nothing in it is for seatrial.
STRANGER = """
import time
import numpy as np
import jax, jax.numpy as jnp
from jax import grad, jit, random

def predict(params, x):
    for w, b in params[:-1]: x = jax.nn.relu(x @ w + b)
    w, b = params[-1]
    return x @ w + b
def loss(params, x, y):
    return -jnp.mean(jnp.sum(jax.nn.log_softmax(predict(params, x)) * y, axis=1))
@jit
def update(params, x, y):
    return [(w - 0.01 * dw, b - 0.01 * db) for (w, b), (dw, db) in zip(params, grad(loss)(params, x, y))]
sizes = [784, 2048, 2048, 10]
keys = random.split(random.PRNGKey(0), len(sizes))
params = [(random.normal(k, (m, n)) * (2 / m) ** 0.5, jnp.zeros(n)) for k, m, n in zip(keys, sizes, sizes[1:])]
rng = np.random.RandomState(0)
x, y = jnp.asarray(rng.rand(256, 784)), jax.nn.one_hot(rng.randint(0, 10, 256), 10)
until = time.time() + 8
while time.time() < until:
    for _ in range(10): params = update(params, x, y)
    value = float(jit(loss)(params, x, y))
print("RESULT", __import__("json").dumps({"device": str(jax.devices()[0]), "loss": value}), flush=True)
"""

#: jax.sharding over all GPUs: the batch is cut, the weights are on each, the gradient crosses between them.
SHARDED = """
import json, time
import jax, jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(jax.devices(), ("batch",))
cut, whole = NamedSharding(mesh, P("batch")), NamedSharding(mesh, P())
x = jax.device_put(jax.random.normal(jax.random.PRNGKey(0), (8192, 2048)), cut)
w = jax.device_put(jnp.eye(2048) * 0.5, whole)
@jax.jit
def step(w, x): return w - 0.1 * jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)
first = float(jnp.mean((x @ w) ** 2))
until, steps = time.time() + 6, 0
while time.time() < until: w = step(w, x); w.block_until_ready(); steps += 1
print("RESULT", json.dumps({"devices": [str(each) for each in jax.devices()], "parts": len(x.addressable_shards),
    "first": first, "last": float(jnp.mean((x @ w) ** 2)), "steps": steps}), flush=True)
"""

#: Name → (lines in front of the script, flags, exit code that is expected).
CASES: dict[str, dict[str, tuple[str, list[str], int]]] = {
    "jax": {
        "kept off the GPU": ("", ["--env", "JAX_PLATFORMS=cpu"], 3),
        "without its CUDA part": ("", ["--env", "PYTHONPATH={hidden}"], 3),
        "hidden GPU": ("import os; os.environ['CUDA_VISIBLE_DEVICES'] = ''", [], 3),
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
        "limit and cuda_async": (
            "import os; os.environ['XLA_PYTHON_CLIENT_ALLOCATOR'] = 'cuda_async'",
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


def launch(words: list[str], folder: Path, **env: str) -> subprocess.Popen[str]:
    """``seatrial …`` in the folder."""
    command = [sys.executable, "-m", "seatrial", *words]
    env = {**os.environ, "VIRTUAL_ENV": sys.prefix, "NO_COLOR": "1", "COLUMNS": "160", **env}
    return subprocess.Popen(
        command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )


def start(folder: Path, name: str, text: str, flags: list[str], cpu: bool, *arguments: str) -> subprocess.Popen[str]:
    """A script of this text. Without ``--gpus`` in the flags: on the first GPU."""
    (folder / f"{name}.py").write_text(text)
    flags = [flag.replace("{hidden}", str(folder / "hidden")) for flag in flags]
    place = [] if "--gpus" in flags else ["--gpus", "device=0"]
    if cpu:
        place, flags = ["--gpus", "none"], []
    return launch(["run", f"{name}.py", "--on", "local", *place, *flags, "--", *arguments], folder)


def end(process: subprocess.Popen[str], began_s: float, limit_s: float = LIMIT_S) -> dict[str, Any]:
    try:
        out = process.communicate(timeout=limit_s)[0]
    except subprocess.TimeoutExpired:
        process.terminate()
        try:
            out = process.communicate(timeout=15)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            out = process.communicate()[0] + "\nKILLED"
    told = [line.partition("RESULT ")[2] for line in out.splitlines() if "RESULT {" in line]
    rows = [line.strip() for line in out.splitlines() if line.strip().startswith(ROWS) or "kernel ran" in line]
    ended = {"exit_code": process.returncode, "seconds": round(time.monotonic() - began_s, 1)}
    return {**ended, "result": json.loads(told[0]) if told else None, "rows": rows, "end_of_output": out[-2500:]}


def digits(folder: Path, few: bool) -> None:
    """Images and labels in MNIST's format, of a size of its own: a bar at one of ten places, in noise."""
    import numpy as np

    folder.mkdir()
    numbers = np.random.default_rng(0)
    for part, count in (("train", 2000 if few else 30000), ("t10k", 500 if few else 5000)):
        labels = numbers.integers(0, 10, count).astype(np.uint8)
        images = numbers.integers(0, 120, (count, 28, 28)).astype(np.uint8)
        for number, label in enumerate(labels):
            images[number, :, 2 * label + 4 : 2 * label + 7] += 100
        for array, kind in ((images, "images-idx3"), (labels, "labels-idx1")):
            header = struct.pack(f">{1 + array.ndim}I", 0x0800 | array.ndim, *array.shape)
            (folder / f"{part}-{kind}-ubyte").write_bytes(header + array.tobytes())


def keras_from(wheels: Path | None, folder: Path) -> dict[str, str]:
    """The environment in which Keras can be imported: what is missing is unpacked from the wheels."""
    if importlib.util.find_spec("keras") is not None or wheels is None:
        return {}
    for wheel in sorted(wheels.glob("*.whl")):
        name = {"absl_py": "absl", "markdown_it_py": "markdown_it"}.get(
            wheel.name.split("-")[0], wheel.name.split("-")[0]
        )
        if importlib.util.find_spec(name) is None:
            with zipfile.ZipFile(wheel) as packed:
                packed.extractall(folder)
    return {"PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(folder)]))}


class Session:
    """The cases so far, and where they are written."""

    def __init__(self, out: Path, cpu: bool) -> None:
        self.out, self.cpu = out, cpu
        self.folder = Path(tempfile.mkdtemp(prefix="frameworks-"))
        self.began_s = time.monotonic()
        self.cases: dict[str, Any] = {}
        self.facts = facts()
        # What hides JAX's plug-ins: a package in place of the namespace that they lie in.
        (self.folder / "hidden" / "jax_plugins").mkdir(parents=True)
        (self.folder / "hidden" / "jax_plugins" / "__init__.py").write_text("")

    def together(self, named: dict[str, tuple[str, list[str], int]], framework: str, script: str, seconds: str) -> None:
        """Several cases at once: each is held to its share, or ends before it computes."""
        began_s = time.monotonic()
        started = {
            name: start(
                self.folder, f"{framework}_{len(self.cases) + at}", f"{before}\n{script}", flags, self.cpu, "x", seconds
            )
            for at, (name, (before, flags, _)) in enumerate(named.items())
        }
        for name, process in started.items():
            self.add(f"{framework}: {name}", {**end(process, began_s), "expected_exit_code": named[name][2]})

    def alone(self, name: str, process: subprocess.Popen[str], expected: int = 0, limit_s: float = LIMIT_S) -> None:
        self.add(name, {**end(process, time.monotonic(), limit_s), "expected_exit_code": expected})

    def add(self, name: str, case: dict[str, Any]) -> None:
        if case["exit_code"] == case["expected_exit_code"]:
            case.pop("end_of_output")
        self.cases[name] = case
        told = {"facts": self.facts, "seconds": round(time.monotonic() - self.began_s, 1), "cases": self.cases}
        (self.out / "frameworks.json").write_text(json.dumps(told, indent=1))
        (self.out / "summary.txt").write_text("\n".join(map(_line, self.cases.items())) + "\n")


def _line(named: tuple[str, dict[str, Any]]) -> str:
    name, case = named
    right = "as expected" if case["exit_code"] == case["expected_exit_code"] else "NOT AS EXPECTED"
    rows = "".join(f"\n    {row}" for row in case["rows"])
    return f"{name}: exit {case['exit_code']} ({right}), {case['seconds']} s, {json.dumps(case['result'])}{rows}"


def _jax_alone(session: Session, wheels: Path | None) -> None:
    """What only JAX is tried with here: a stranger's script, two GPUs, the recipe in Keras, bench."""
    folder, cpu = session.folder, session.cpu
    session.alone("jax: a script of a stranger's", start(folder, "stranger", STRANGER, [], cpu))
    if len(session.facts["gpus"]) > 1 or cpu:
        session.alone("jax: two GPUs", start(folder, "sharded", SHARDED, ["--gpus", "2"], cpu))
    keras = keras_from(wheels, folder / "keras")
    digits(folder / "digits", few=cpu)
    words = ["--on", "local", "--data", str(folder / "digits")]
    for gpus in ("1", "2") if len(session.facts["gpus"]) > 1 else ("1",):
        place = ["--gpus", "none" if cpu else gpus]
        recipe = ["run", "mnist", *words, *place, "--", "--framework", "jax", "--epochs", "1"]
        session.alone(f"jax: mnist in Keras, {gpus} GPU", launch(recipe, folder, **keras))
    place = ["--gpus", "none" if cpu else "1"]
    bench = ["bench", "train", "mnist", "--compare", "torch,jax", "--repeats", "1", *words, *place]
    session.alone(
        "bench: torch and jax", launch([*bench, "--", "--epochs", "1"], folder, **keras), limit_s=1.5 * LIMIT_S
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--cpu", action="store_true")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    session = Session(arguments.out, arguments.cpu)
    for framework, script in (("jax", JAX), ("tensorflow", TENSORFLOW)):
        if importlib.util.find_spec(framework) is None:
            continue
        held = {name: case for name, case in CASES[framework].items() if "--gpu-memory" in case[1]}
        rest = {name: case for name, case in CASES[framework].items() if name not in held}
        session.together(rest, framework, script, "4")
        session.together(held, framework, script, "6")
        both = ("", ["--gpu-memory", LIMIT], 0)
        session.together({"one of two on one GPU": both, "the other of two on one GPU": both}, framework, script, "8")
        if framework == "jax":
            _jax_alone(session, arguments.wheels and arguments.wheels.absolute())
    with tarfile.open(arguments.out / "receipts.tar.gz", "w:gz") as archive:
        for receipt in sorted(session.folder.glob(".seatrial/runs/*/receipt.*")):
            archive.add(receipt, f"{receipt.parent.name}/{receipt.name}")
    print((arguments.out / "summary.txt").read_text())


if __name__ == "__main__":
    main()
