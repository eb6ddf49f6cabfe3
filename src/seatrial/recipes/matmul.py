"""Matrix products of each kind, and their share of the chip's peak."""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from timeit import timeit

import torch

from seatrial.common.gpu_peaks import peak_tflops
from seatrial.train import options
from seatrial.train.errors import InputError
from seatrial.train.saving.atomic import write_text
from seatrial.train.trackers import open_trackers

KINDS = ("cpu-fp32", "fp32", "tf32", "bf16", "fp16", "fp8")
WARMUPS, TIMINGS = 3, 7
#: A timing repeats the product until it lasts about this long: shorter ones measure the launch.
TIMING_S = 0.05
#: The CPU does 10¹¹ to 10¹² operations a second: larger products take minutes.
LARGEST_ON_CPU = 4096


@dataclass(frozen=True)
class Measured:
    """One line of the table. ``of_peak`` is None when the chip's peak is not known."""

    kind: str
    size: int
    milliseconds: float
    tflops: float
    of_peak: float | None


def main(argv: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="seatrial.recipes.matmul", description="Measure matrix products.")
    parser.add_argument("--sizes", type=options.positive, nargs="+", default=[1024, 4096, 8192, 16384])
    parser.add_argument("--kinds", choices=KINDS, nargs="+", default=list(KINDS))
    parser.add_argument("--json", type=Path, default=options.in_run("bench.json"), metavar="FILE")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    torch.manual_seed(arguments.seed)
    on_gpu = torch.cuda.is_available()
    rank = int(os.environ.get("RANK", "0"))
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    chip = torch.cuda.get_device_name() if on_gpu else ""
    print(f"matmul on {chip or 'the CPU: no GPU is visible'}, torch {torch.__version__}", flush=True)
    trackers = open_trackers([], Path(), first=rank == 0)
    table: list[Measured] = []
    for kind in arguments.kinds:
        for size in arguments.sizes:
            if reason := impossible(kind, size, on_gpu):
                print(f"{kind:>8} {size:>6}  skipped: {reason}", flush=True)
                continue
            seconds = measure(kind, size)
            tflops = 2 * size**3 / seconds / 1e12
            peak = peak_tflops(chip, kind)
            line = Measured(kind, size, seconds * 1e3, tflops, tflops / peak if peak else None)
            table.append(line)
            share = f"{line.of_peak:6.1%} of peak" if line.of_peak is not None else ""
            print(f"{kind:>8} {size:>6} {line.milliseconds:>10.3f} ms {tflops:>9.2f} TFLOP/s  {share}", flush=True)
            trackers.log({"step": len(table), "phase": "matmul", "size": size, f"{kind}_tflops": tflops})
    trackers.close()
    if not table:
        raise InputError("nothing was measured: every kind was skipped", fix="--kinds cpu-fp32")
    for text in classic_lines(table):
        print(text, flush=True)
    if arguments.json and rank == 0:
        write_text(arguments.json, json.dumps({"chip": chip or "cpu", "table": [asdict(line) for line in table]}))
    return 0


def impossible(kind: str, size: int, on_gpu: bool) -> str | None:
    """Return why this machine cannot do it, or None."""
    if kind == "cpu-fp32":
        return f"more than {LARGEST_ON_CPU} takes minutes on a CPU" if size > LARGEST_ON_CPU else None
    if not on_gpu:
        return "no GPU is visible"
    capability = torch.cuda.get_device_capability()
    if kind in ("tf32", "bf16") and capability < (8, 0):
        return "needs compute capability 8.0"
    if kind == "fp8" and (capability < (8, 9) or size % 16):
        return "needs compute capability 8.9 and a multiple of 16"
    return None


def measure(kind: str, size: int) -> float:
    """Return the median seconds of one product, inputs made before and the output kept."""
    product = product_of(kind, size)
    on_cpu = kind == "cpu-fp32"
    clock = (lambda each, times: timeit(each, number=times) / times) if on_cpu else time_on_gpu
    for _ in range(WARMUPS):
        product()
    repeats = max(1, round(TIMING_S / max(1e-7, clock(product, 1))))
    return statistics.median(clock(product, repeats) for _ in range(TIMINGS))


def product_of(kind: str, size: int) -> Callable[[], object]:
    """Return a function that multiplies two random matrices of this kind."""
    device = "cpu" if kind == "cpu-fp32" else "cuda"
    a, b = torch.randn(size, size, device=device), torch.randn(size, size, device=device)
    torch.set_float32_matmul_precision("high" if kind == "tf32" else "highest")
    if kind == "fp8":
        one = torch.ones((), device=device)
        a8, b8 = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t()  # the second operand by columns
        return lambda: torch._scaled_mm(a8, b8, one, one, out_dtype=torch.bfloat16, use_fast_accum=True)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(kind, torch.float32)
    a, b = a.to(dtype), b.to(dtype)
    out = torch.empty_like(a)
    return lambda: torch.matmul(a, b, out=out)


def time_on_gpu(product: Callable[[], object], repeats: int) -> float:
    """Return the seconds a product, between two events on the stream."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    begin.record()
    for _ in range(repeats):
        product()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / repeats


def classic_lines(table: list[Measured]) -> list[str]:
    """Return lines for CPU, CUDA cores and Tensor Cores, each at the largest size that its kinds were measured at."""
    rows = (("CPU", ("cpu-fp32",)), ("CUDA cores (fp32)", ("fp32",)), ("Tensor Cores", ("bf16", "fp16", "tf32")))
    lines = []
    for name, kinds in rows:
        of_kind = [line for line in table if line.kind in kinds]
        if of_kind:
            largest = max(line.size for line in of_kind)
            best = max((line for line in of_kind if line.size == largest), key=lambda line: line.tflops)
            lines.append(f"{name}: {best.milliseconds / 1e3:.6f} s for {largest}×{largest} ({best.tflops:.2f} TFLOP/s)")
    return lines


if __name__ == "__main__":
    options.run(main)
