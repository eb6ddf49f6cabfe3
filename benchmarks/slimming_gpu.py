"""Slim a copy of this machine's site-packages level by level and train on the GPU with each: sizes, and equal results.

    python benchmarks/slimming_gpu.py OUT [--python PYTHON] [--site SITE-PACKAGES] [--arch 90] [--mnist FOLDER]

Each level is a copy of its own under a temporary folder, imported instead of the original through PYTHONPATH. The probe
runs matmul, convolution training, a transformer, attention, sort, a CUDA graph and cuDNN's RNN, and prints a digest of
each. OUT gets slimming.json and slimming.md. A level that crashes is a row that says so. Without a GPU it uses the CPU.
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
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
UNUSED = "fft,sparse,sparselt,random,nvshmem,nccl,linalg,compile"
LEVELS: dict[str, list[str]] = {
    "files": ["--level", "files"],
    "unused": ["--level", "unused", "--unused", UNUSED],
    "arch, zeroed": ["--level", "arch", "--unused", UNUSED, "--zero"],
    "arch": ["--level", "arch", "--unused", UNUSED],
}


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
@case("matmul")
def _():
    g = fresh(); a, b = tensor(512, 512, g=g), tensor(512, 512, g=g)
    types = (torch.float32, torch.bfloat16, torch.float16) if device == "cuda" else (torch.float32, torch.bfloat16)
    return digest(*[a.to(t) @ b.to(t) for t in types])
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
@case("sort, top-k, cumulative sum")
def _():
    x = tensor(100_000, g=fresh()); return digest(x.sort().values, x.topk(10).values, x.cumsum(0))
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
    """Original first, then each level."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--site", type=Path)
    parser.add_argument("--arch", default="90")
    parser.add_argument("--mnist", type=Path, help="folder with the IDX files: also runs one epoch of the recipe mnist")
    parser.add_argument("--timeout", type=float, default=45, help="seconds a probe may take")
    parser.add_argument("--budget", type=float, default=150, help="seconds after which no further level starts")
    given = parser.parse_args()
    began = time.monotonic()
    site = given.site or Path(_output([given.python, "-c", "import torch; print(torch.__path__[0])"]).strip()).parent
    rows = {"as installed": {**_probe(given, site, twice=True), "bytes": _bytes(site)}}
    with tempfile.TemporaryDirectory(prefix="slimming-") as folder:
        for level, arguments in LEVELS.items():
            if time.monotonic() - began > given.budget:
                rows[level] = {"error": "not tried: out of time"}
                continue
            rows[level] = _level(given, site, Path(folder) / "site", arguments)
            _write(given.out, rows, given.arch)
    _write(given.out, rows, given.arch)
    print((given.out / "slimming.md").read_text())


def _level(given: argparse.Namespace, site: Path, copy: Path, arguments: list[str]) -> dict[str, object]:
    started = time.monotonic()
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir(parents=True)
    for each in sorted(site.iterdir()):  # only what torch is made of, hard links: the slimmer writes aside and renames
        if each.is_dir() and each.name != "__pycache__":
            shutil.copytree(each, copy / each.name, symlinks=True, copy_function=_link)
        elif each.is_file():
            _link(str(each), str(copy / each.name))
    slim = [given.python, "-m", "seatrial.images.slimming.main", "--root", str(copy), "--arch", given.arch, *arguments]
    if "--zero" in arguments:
        _unlink_libraries(copy)  # zeroed in place: must not reach the original
    ended = subprocess.run(slim, capture_output=True, text=True, env=_env(REPOSITORY / "src"), timeout=150)
    if ended.returncode != 0:
        return {"error": ended.stderr[-400:]}
    report = json.loads((copy / "slim.json").read_text())
    row: dict[str, object] = {"saved": report["saved_bytes"], "kept": report["kept"], "bytes": _bytes(copy)}
    row["slim_s"] = round(time.monotonic() - started, 1)
    return {**row, **_probe(given, copy)}


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)
    return target


def _unlink_libraries(copy: Path) -> None:
    for path in copy.rglob("*.so*"):
        if path.is_file() and not path.is_symlink():
            beside = path.with_name(path.name + ".own")
            shutil.copy2(path, beside)
            beside.replace(path)


def _probe(given: argparse.Namespace, site: Path, *, twice: bool = False) -> dict[str, object]:
    """The probe's row; ``twice`` says whether two runs agree, without which nothing can be compared."""
    row: dict[str, object] = {}
    try:
        runs = [_run_probe(given, site) for _ in range(2 if twice else 1)]
        row = dict(runs[-1])
        if twice:
            row["repeats"] = runs[0]["results"] == runs[1]["results"]
    except subprocess.TimeoutExpired:
        row["error"] = f"no end within {given.timeout:g} s"
    except (subprocess.SubprocessError, OSError, ValueError) as error:
        row["error"] = (getattr(error, "stderr", "") or str(error)).strip()[-400:]
    if given.mnist is not None:
        row["mnist"] = _mnist(given, site)
    return row


def _run_probe(given: argparse.Namespace, site: Path) -> dict[str, object]:
    out = _output([given.python, "-c", PROBE], env=_env(site), timeout=given.timeout)
    row: dict[str, object] = json.loads(out.splitlines()[-1])
    if not str(row["torch_file"]).startswith(str(site)):
        raise ValueError(f"the torch of {row['torch_file']} was imported")
    return row


def _mnist(given: argparse.Namespace, site: Path) -> str:
    """One epoch of the recipe; its epoch line."""
    with tempfile.TemporaryDirectory() as models:
        argv = [given.python, "-m", "seatrial.recipes.mnist", "--data", str(given.mnist), "--models", models]
        try:
            out = _output([*argv, "--epochs", "1"], env=_env(site, REPOSITORY / "src"), timeout=given.timeout)
        except (subprocess.SubprocessError, OSError) as error:
            return f"FAILED {str(getattr(error, 'stderr', '') or error).strip()[-200:]}"
    return next((line for line in out.splitlines() if "accuracy" in line), out[-200:])


def _env(*paths: Path) -> dict[str, str]:
    env = {**os.environ, "PYTHONPATH": ":".join(map(str, paths)), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    return {**env, "PYTHONDONTWRITEBYTECODE": "1"}


def _output(argv: list[str], env: dict[str, str] | None = None, timeout: float = 60) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True, env=env, timeout=timeout).stdout


def _bytes(folder: Path) -> int:
    """Of torch, NVIDIA's packages and triton alone: a machine's site-packages holds much else."""
    ours = ("torch", "nvidia", "triton")
    tops = [each for each in folder.iterdir() if each.name in ours]
    return sum(
        path.stat().st_size for top in tops for path in top.rglob("*") if path.is_file() and not path.is_symlink()
    )


def _write(out: Path, rows: dict[str, dict[str, object]], arch: str) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "slimming.json").write_text(json.dumps(rows, indent=1) + "\n")
    first = rows["as installed"]
    lines = [
        f"Slimming on {first.get('device')}, torch {first.get('torch')}, architecture {arch}",
        "",
        "| level | torch + nvidia + triton | import torch | results as installed | mnist, 1 epoch |",
        "|---|---|---|---|---|",
    ]
    for level, row in rows.items():
        results, wanted = row.get("results") or {}, first.get("results") or {}
        differ = [name for name in wanted if results.get(name) != wanted[name]]  # type: ignore[attr-defined,index,union-attr]
        same = "all equal" if results and not differ else f"differ: {', '.join(differ)}"
        verdict = str(row["error"]).replace("\n", " ") if "error" in row else same
        size = f"{int(str(row['bytes'])) / 1e9:.2f} GB" if "bytes" in row else ""
        lines.append(f"| {level} | {size} | {row.get('import_s', '')} s | {verdict} | {row.get('mnist', '')} |")
    (out / "slimming.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
