# expect: data-bound
"""Two workers that each take tens of milliseconds for an example, beside a step of one: more of them would help."""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Spectrograms(IterableDataset):
    def __iter__(self):
        window = torch.hann_window(256)
        while True:
            wave = torch.randn(64_000).tolist()  # resampling "by hand"
            wave = torch.tensor([0.5 * (a + b) for a, b in zip(wave, wave[1:])])
            yield torch.stft(wave, 256, window=window, return_complex=True).abs().log1p().mean(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(129, 256), nn.ReLU(), nn.Linear(256, 35))

    def forward(self, x):
        return self.layers(x)


def train(seconds):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    net = Net().to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    end = time.time() + seconds
    for x in DataLoader(Spectrograms(), batch_size=8, num_workers=2, pin_memory=True):
        loss = nn.functional.cross_entropy(net(x.to(device, non_blocking=True)), torch.randint(35, (8,), device=device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if time.time() > end:
            break


if __name__ == "__main__":
    train(float(sys.argv[1]) if len(sys.argv) > 1 else 8.0)
