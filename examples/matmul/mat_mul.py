"""Multiply square matrices on the CPU, on CUDA cores and on Tensor Cores, and compare their speed."""

from __future__ import annotations

import argparse
import statistics
import time

import torch


def seconds(a: torch.Tensor, b: torch.Tensor, repeats: int) -> float:
    """Return the median time of one product, in seconds.

    The first product loads libraries, so it is left out. A GPU computes behind Python's back, so the clock is read
    only when it has finished.
    """
    gpu = a.device.type == "cuda"
    times = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        a @ b
        if gpu:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu-size", type=int, default=2048)
    parser.add_argument("--gpu-size", type=int, default=16384)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()

    ways = [("CPU, fp32", "cpu", torch.float32, False, options.cpu_size)]
    if torch.cuda.is_available():
        print("GPU:", torch.cuda.get_device_name())
        ways += [
            ("CUDA cores, fp32", "cuda", torch.float32, False, options.gpu_size),
            ("Tensor Cores, tf32", "cuda", torch.float32, True, options.gpu_size),
            ("Tensor Cores, fp16", "cuda", torch.float16, False, options.gpu_size),
        ]
    for name, device, dtype, tf32, size in ways:
        torch.backends.cuda.matmul.allow_tf32 = tf32
        a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
        took = seconds(a, b, options.repeats)
        print(f"{name:20} {size:6} {took * 1000:10.2f} ms {2 * size**3 / took / 1e12:8.3f} TFLOP/s", flush=True)
    if len(ways) == 1:
        print("no GPU is visible: CUDA cores and Tensor Cores were not measured")


if __name__ == "__main__":
    main()
