"""Slim a copy of this machine's torch level by level and train on the GPU with each: sizes, and equal results.

    python benchmarks/slimming_gpu.py OUT [--arch 90] [--mnist FOLDER] [--spam FOLDER --vocabulary FILE] [--budget 240]

The copy holds torch, NVIDIA's packages and triton, and is imported instead of the originals through PYTHONPATH; each
level slims it further. The probe runs kernels per number format, training of three kinds, attention, sort, random
numbers, a CUDA graph and cuDNN's RNN, and prints a digest of each. The recipes mnist and spam (small, from nothing)
train an epoch in fp32 with torch's deterministic algorithms, and the digest is of their weights. All of it runs twice
with what is installed, for what repeats itself at all. OUT gets slimming.json and slimming.md. What crashes is a row
that says so; without a GPU it uses the CPU.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
UNUSED = "fft,sparse,sparselt,random,nvshmem,nccl,linalg,compile"
LEVELS: dict[str, list[str]] = {
    "files": ["--level", "files"],
    "unused": ["--level", "unused", "--unused", UNUSED],
    "arch": ["--level", "arch", "--unused", UNUSED],
}
#: Folders of site-packages that are copied, slimmed and weighed.
OURS = ("torch", "torchgen", "functorch", "nvidia", "triton")

Row = dict[str, object]

DETERMINISTIC = (
    "import runpy, sys, torch; torch.use_deterministic_algorithms(True, warn_only=True); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)
#: What was left out is called: the process must end with a sentence.
CALLED = (
    "import torch; torch.fft.fft(torch.ones(8, device='cuda' if torch.cuda.is_available() else 'cpu')); print('ran')"
)


PROBE = r"""
import time; start = time.perf_counter()
import torch; imported = time.perf_counter() - start
import hashlib, json, torch.nn as nn, torch.nn.functional as F
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.backends.cudnn.deterministic = True; torch.backends.cudnn.benchmark = False
def digest(*tensors):
    return hashlib.sha256(b"".join(t.detach().float().cpu().numpy().tobytes() for t in tensors)).hexdigest()[:16]
def fresh(seed=0):
    torch.manual_seed(seed); return torch.Generator(device="cpu").manual_seed(seed)
def tensor(*shape, g):
    return torch.randn(*shape, generator=g).to(device)
results = {}
def case(name):
    def run(f):
        try: results[name] = f()
        except Exception as error: results[name] = "FAILED " + str(error)[:160]
    return run
def train(model, inputs, labels, steps=20):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3); losses = []
    for _ in range(steps):
        optimizer.zero_grad(); loss = F.cross_entropy(model(inputs), labels); loss.backward(); optimizer.step()
        losses.append(loss)
    return digest(*losses, *model.parameters())
def product(dtype):
    g = fresh(); return digest(tensor(512, 512, g=g).to(dtype) @ tensor(512, 512, g=g).to(dtype))
for name in ("float32", "float16", "bfloat16", "float64", "complex64"):
    case("product of " + name)(lambda: product(getattr(torch, name)))
@case("product of int8")
def _():
    g = fresh(); a, b = (torch.randint(-9, 9, (512, 512), generator=g, dtype=torch.int8).to(device) for _ in range(2))
    return digest(torch._int_mm(a, b))
@case("product of float8")
def _():
    if device != "cuda" or torch.cuda.get_device_capability() < (8, 9): return "no such GPU"
    g = fresh(); a, b = (tensor(512, 512, g=g).to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), device=device)
    return digest(torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16))
@case("convolution training (mnist network)")
def _():
    g = fresh()
    model = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU(),
                          nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1600, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    return train(model, tensor(64, 1, 28, 28, g=g), torch.randint(0, 10, (64,), generator=g).to(device))
@case("transformer training (spam-like)")
def _():
    g = fresh()
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    class Net(nn.Module):
        def __init__(s): super().__init__(); s.e = nn.TransformerEncoder(layer, 2); s.h = nn.Linear(256, 2)
        def forward(s, x): return s.h(s.e(x).mean(1))
    labels = torch.randint(0, 2, (16,), generator=g).to(device)
    return train(Net().to(device), tensor(16, 128, 256, g=g), labels, steps=10)
@case("attention")
def _():
    g = fresh(); q = tensor(2, 4, 256, 64, g=g)
    if device == "cuda": q = q.to(torch.bfloat16)
    return digest(F.scaled_dot_product_attention(q, q, q, is_causal=True))
@case("sort, top-k")
def _():
    x = tensor(100_000, g=fresh()); return digest(x.sort().values, x.topk(10).values)
@case("cumulative sum of whole numbers")  # of floating-point ones it does not repeat itself on CUDA
def _():
    return digest(torch.randint(-9, 9, (100_000,), generator=fresh()).to(device).cumsum(0))
@case("random numbers, dropout")
def _():
    torch.manual_seed(1)
    return digest(torch.randn(10_000, device=device), F.dropout(torch.ones(10_000, device=device)))
@case("batch norm, layer norm, embedding, index")
def _():
    g = fresh(); x = tensor(16, 8, 32, 32, g=g); i = torch.arange(99, device=device)
    normal = F.batch_norm(x, None, None, training=True), F.layer_norm(x, (32,))
    return digest(*normal, nn.Embedding(100, 32).to(device)(i), x.flatten()[i], x.mean(), x.std())
@case("LSTM (cuDNN)")
def _():
    g = fresh(); model = nn.LSTM(64, 64, batch_first=True).to(device); return digest(model(tensor(8, 32, 64, g=g))[0])
@case("CUDA graph")
def _():
    if device != "cuda": return "no GPU"
    x = tensor(256, 256, g=fresh()); y = torch.empty_like(x)
    s = torch.cuda.Stream(); s.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(s): torch.mm(x, x, out=y)
    torch.cuda.current_stream().wait_stream(s); graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph): torch.mm(x, x, out=y)
    y.zero_(); graph.replay(); torch.cuda.synchronize(); return digest(y)
name = torch.cuda.get_device_name(0) if device == "cuda" else "CPU"
print(json.dumps({"import_s": round(imported, 2), "device": name, "torch": torch.__version__, "results": results,
                  "torch_file": torch.__file__}))
"""


def main() -> None:
    """What is installed, twice; then each level."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--site", type=Path, help="default: where that Python has torch")
    parser.add_argument("--arch", default="90")
    parser.add_argument("--mnist", type=Path, help="folder with the IDX files: the recipe mnist trains too")
    parser.add_argument("--spam", type=Path, help="folder with SMSSpamCollection: the recipe spam trains too")
    parser.add_argument("--vocabulary", type=Path, help="vocab.txt for spam; default: learned from the messages")
    parser.add_argument("--timeout", type=float, default=60, help="seconds one program may take")
    parser.add_argument(
        "--budget", type=float, default=240, help="seconds; past half of it only the last level is tried"
    )
    given = parser.parse_args()
    began = time.monotonic()
    site = given.site or Path(_output([given.python, "-c", "import torch; print(torch.__path__[0])"]).strip()).parent
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="slimming-") as folder:
        copy = Path(folder) / "site"
        first = _results(given, site, times=2)
        rows: dict[str, Row] = {"as installed": {**first, "bytes": _bytes(site)}}
        _write(given.out, rows, given.arch)
        copied = time.monotonic()
        _copy(site, copy)
        rows["as installed"]["copy_s"] = round(time.monotonic() - copied, 1)
        for level, arguments in LEVELS.items():
            late = time.monotonic() - began > given.budget / 2 and level != "arch"
            rows[level] = _level(given, copy, arguments, try_it=not late)
            _write(given.out, rows, given.arch)
    rows["as installed"]["whole_s"] = round(time.monotonic() - began)
    _write(given.out, rows, given.arch)
    print((given.out / "slimming.md").read_text())


def _copy(site: Path, copy: Path) -> None:
    """Hard links where the file system has them: the slimming program writes aside and renames."""
    files = []
    for name in OURS:
        for parent, folders, names in os.walk(site / name):
            folders[:] = [each for each in folders if each != "__pycache__"]
            place = copy / Path(parent).relative_to(site)
            place.mkdir(parents=True, exist_ok=True)
            files += [(Path(parent) / each, place / each) for each in names]
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(_link, *zip(*files, strict=True)))


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # another file system
        shutil.copy2(source, target, follow_symlinks=False)


def _level(given: argparse.Namespace, copy: Path, arguments: list[str], *, try_it: bool) -> Row:
    started = time.monotonic()
    slim = [
        given.python,
        "-m",
        "seatrial.images.slim.program.main",
        "--root",
        str(copy),
        "--arch",
        given.arch,
        *arguments,
    ]
    try:
        _output(slim, env=_env(REPOSITORY / "src"), timeout=150)
    except (subprocess.SubprocessError, OSError) as error:
        return {"error": _reason(error)}
    report = json.loads((copy / "slim.json").read_text())
    row: Row = {"saved": report["saved_bytes"], "kept": report["kept"], "stubs": report["stubs"], "bytes": _bytes(copy)}
    row["slim_s"] = round(time.monotonic() - started, 1)
    if not try_it:
        return {**row, "error": "slimmed, not tried: out of time"}
    row |= _results(given, copy, times=1)
    if "fft" in " ".join(arguments):
        called = subprocess.run(
            [given.python, "-c", CALLED], capture_output=True, text=True, env=_env(copy), timeout=60
        )
        row["torch.fft called"] = f"exit {called.returncode}: {(called.stderr or called.stdout).strip()[-200:]}"
    return row


def _results(given: argparse.Namespace, site: Path, *, times: int) -> Row:
    """The import alone, for its time; then everything else at once, ``times`` times."""
    row: Row = {"import_s": _import_s(given, site)}
    programs: dict[str, Callable[[], object]] = {"probe": partial(_probe, given, site)}
    if given.mnist is not None:
        programs["mnist"] = partial(_recipe, given, site, "mnist", ["--data", str(given.mnist)])
    if given.spam is not None:
        words = ["--vocabulary", str(given.vocabulary)] if given.vocabulary else []
        programs["spam"] = partial(_recipe, given, site, "spam", ["--data", str(given.spam), "--from-scratch", *words])
    with ThreadPoolExecutor(times * len(programs)) as threads:
        ended = {name: [threads.submit(program) for _ in range(times)] for name, program in programs.items()}
    answers = {name: [_answer(each) for each in futures] for name, futures in ended.items()}
    probed, *again = answers.pop("probe")
    if not isinstance(probed, dict):
        return {**row, "error": probed}
    row |= probed
    results = {**probed["results"], **{name: runs[0] for name, runs in answers.items()}}
    row["results"] = results
    if again and isinstance(again[0], dict):
        second = {**again[0]["results"], **{name: runs[1] for name, runs in answers.items()}}
        row["not repeatable"] = [name for name in results if _digest(results[name]) != _digest(second.get(name))]
    return row


def _answer(ended: Future[object]) -> object:
    """What a program printed, or why it failed, as text."""
    try:
        return ended.result()
    except (subprocess.SubprocessError, OSError, ValueError) as error:
        return f"FAILED {_reason(error)}"


def _digest(result: object) -> object:
    """The part of a recipe's answer that must be equal; the rest is a speed."""
    return result[0] if isinstance(result, (list, tuple)) else result


def _import_s(given: argparse.Namespace, site: Path) -> float | None:
    """The faster of two imports, alone on the machine."""
    code = "import time; s = time.perf_counter(); import torch; print(round(time.perf_counter() - s, 2))"
    try:
        return min(float(_output([given.python, "-c", code], env=_env(site))) for _ in range(2))
    except (subprocess.SubprocessError, OSError, ValueError):
        return None


def _probe(given: argparse.Namespace, site: Path) -> Row:
    out = _output([given.python, "-c", PROBE], env=_env(site), timeout=given.timeout)
    row: Row = json.loads(out.splitlines()[-1])
    if not str(row["torch_file"]).startswith(str(site)):
        raise ValueError(f"the torch of {row['torch_file']} was imported")
    return row


def _recipe(given: argparse.Namespace, site: Path, name: str, options: list[str]) -> list[str]:
    """(digest of the trained weights, the epoch's line)."""
    with tempfile.TemporaryDirectory() as models:
        argv = [given.python, "-c", DETERMINISTIC, f"seatrial.recipes.{name}", *options, "--models", models]
        argv += ["--precision", "fp32", "--epochs", "1"]
        out = _output(argv, env=_env(site, REPOSITORY / "src"), timeout=given.timeout)
        weights = sorted(path for path in Path(models).rglob("*.safetensors") if "checkpoints" not in path.parts)
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in weights)).hexdigest()[:16]
    if not weights:
        raise ValueError(f"the recipe {name} left no weights: {out[-200:]}")
    return [digest, next((line for line in out.splitlines() if "accuracy" in line), out[-200:])]


def _cell(answer: object) -> str:
    """A recipe's digest and line, or its failure, on one line."""
    return " ".join((answer if isinstance(answer, str) else " ".join(map(str, answer))).split())


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"no end within {error.timeout:g} s"
    return str(getattr(error, "stderr", "") or error).strip()[-400:]


def _env(*paths: Path) -> dict[str, str]:
    env = {**os.environ, "PYTHONPATH": ":".join(map(str, paths)), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    return {**env, "PYTHONDONTWRITEBYTECODE": "1"}


def _output(argv: list[str], env: dict[str, str] | None = None, timeout: float = 60) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True, env=env, timeout=timeout).stdout


def _bytes(folder: Path) -> int:
    """Of what is copied alone: a machine's site-packages holds much else. Bytecode is not counted."""
    files = (path for name in OURS for path in (folder / name).rglob("*") if "__pycache__" not in path.parts)
    return sum(path.stat().st_size for path in files if path.is_file() and not path.is_symlink())


def _write(out: Path, rows: dict[str, Row], arch: str) -> None:
    (out / "slimming.json").write_text(json.dumps(rows, indent=1) + "\n")
    first = rows["as installed"]
    wanted = dict(first.get("results") or {})
    loose = list(first.get("not repeatable") or ())
    lines = [
        f"Slimming on {first.get('device')}, torch {first.get('torch')}, architecture {arch}",
        "",
        "| level | torch, nvidia, triton | slimming | import torch | as installed, bit for bit | mnist | spam |",
        "|---|---|---|---|---|---|---|",
    ]
    for level, row in rows.items():
        results = dict(row.get("results") or {})
        differ = [name for name in wanted if name not in loose and _digest(results.get(name)) != _digest(wanted[name])]
        verdict = f"{len(wanted) - len(loose) - len(differ)} of {len(wanted) - len(loose)}"
        verdict += f"; differ: {', '.join(differ)}" if differ else ""
        if "error" in row:
            verdict = str(row["error"]).replace("\n", " ")
        size = f"{int(str(row['bytes'])) / 1e9:.2f} GB" if "bytes" in row else ""
        recipes = [_cell(results.get(name, "")) for name in ("mnist", "spam")]
        cells = [level, size, f"{row.get('slim_s', '')} s", f"{row.get('import_s', '')} s", verdict, *recipes]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", f"Not repeatable as installed, so not compared: {', '.join(loose) or 'nothing'}."]
    lines += [
        f"{level}: torch.fft called: {row['torch.fft called']}"
        for level, row in rows.items()
        if "torch.fft called" in row
    ]
    lines += [f"{level}: kept {row['kept']}" for level, row in rows.items() if row.get("kept")]
    (out / "slimming.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
