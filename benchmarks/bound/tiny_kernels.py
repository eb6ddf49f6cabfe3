"""Bound on purpose: a small network on data that is on the GPU already; Python launches. Expected: launch-bound."""

import torch
from device import DEVICE, small_network, until_done

model, update = small_network()
batch = torch.randn(64, 128, device=DEVICE)


def step():
    loss = model(batch).square().mean()
    loss.backward()
    update()


until_done(step)
