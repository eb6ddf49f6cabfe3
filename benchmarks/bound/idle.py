"""Bound on purpose: a CUDA context and nothing else. Expected: idle."""

import time

import torch
from device import DEVICE, SECONDS

kept = torch.ones(2**20, device=DEVICE)
time.sleep(SECONDS)
print(kept.sum().item())
