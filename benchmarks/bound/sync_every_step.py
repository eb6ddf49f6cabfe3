"""Bound on purpose: .item() in every step of a small network. Expected: launch-bound."""

import torch
from device import DEVICE, small_network, until_done

model, update = small_network()
batch = torch.randn(64, 128, device=DEVICE)
total = 0.0


def step():
    global total
    loss = model(batch).square().mean()
    loss.backward()
    update()
    total += loss.item()


until_done(step)
