"""Bound on purpose: worker processes decode slowly while a small step waits for them. Expected: data-bound."""

import torch
from device import CUDA, DEVICE, small_network, until_done
from torch.utils.data import DataLoader, IterableDataset


class Slow(IterableDataset):
    def __iter__(self):
        while True:
            row = 0.0
            for i in range(300_000):
                row += i * 1e-9
            yield torch.full((128,), row)


if __name__ == "__main__":
    model, update = small_network()
    batches = iter(DataLoader(Slow(), batch_size=8, num_workers=2, pin_memory=CUDA))

    def step():
        loss = model(next(batches).to(DEVICE)).square().mean()
        loss.backward()
        update()

    until_done(step)
