"""Bound on purpose: the main process itself makes each batch (num_workers=0). Expected: data-bound."""

import torch
from device import DEVICE, small_network, until_done

model, update = small_network()


def slow_batch():
    rows = []
    for _ in range(16):
        value = 0.0
        for i in range(60_000):
            value += i * 1e-9
        rows.append(torch.full((128,), value))
    return torch.stack(rows).to(DEVICE)


def step():
    loss = model(slow_batch()).square().mean()
    loss.backward()
    update()


until_done(step)
