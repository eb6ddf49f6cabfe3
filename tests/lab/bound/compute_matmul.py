# expect: compute-bound
"""A benchmark and no training: bf16 matrices of 8192 are multiplied over and over, and no optimizer is in sight."""

import sys
import time

import torch

CUDA = torch.cuda.is_available()
device = "cuda" if CUDA else "cpu"
size = 8192 if CUDA else 256
a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
out = torch.empty_like(a)
began, count = time.time(), 0
while time.time() - began < (float(sys.argv[1]) if len(sys.argv) > 1 else 8.0):
    for _ in range(20):
        torch.mm(a, b, out=out)
    count += 20
    if CUDA:
        torch.cuda.synchronize()
print(f"{count * 2 * size**3 / (time.time() - began) / 1e12:.0f} TFLOP/s")
