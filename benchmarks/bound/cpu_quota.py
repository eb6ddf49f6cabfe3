"""Bound on purpose: threads that want more CPU than --cpus 0.5 gives, beside a small step. Expected: throttled."""

import os
import sys
import threading

import torch
from device import DEVICE, small_network, until_done

model, update = small_network()


def burn():
    matrix = torch.randn(256, 256)
    while True:
        matrix = (matrix @ matrix).clamp(-1, 1)


for _ in range(2):
    threading.Thread(target=burn, daemon=True).start()


def step():
    loss = model(torch.randn(64, 128).to(DEVICE)).square().mean()
    loss.backward()
    update()


until_done(step)
sys.stdout.flush()
os._exit(0)  # threads in the middle of a matmul do not survive the interpreter's end
