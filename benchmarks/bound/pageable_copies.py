"""Bound on purpose: every step copies a large pageable batch from host memory. Expected: host-memory-bound."""

import torch
from device import CUDA, DEVICE, until_done

batch = torch.ones(2**26 if CUDA else 2**16)

until_done(lambda: batch.to(DEVICE).mul_(2.0), sync_every=1)
