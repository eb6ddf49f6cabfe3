# expect: cpu-only; shows: --device
"""A command line whose --device is "cpu" unless it is given: written with care, and started without the flag."""

import argparse
import time

import torch
from torch import nn


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("seconds", nargs="?", type=float, default=8.0)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--lr", type=float, default=3e-4)
    return parser.parse_args()


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 32))
        self.decoder = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 784))

    def forward(self, x):
        return self.decoder(self.encoder(x)).view_as(x)


def main():
    args = parse()
    model = AutoEncoder().to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    digits = torch.rand(8192, 1, 28, 28)
    began = time.time()
    while time.time() - began < args.seconds:
        for batch in digits.split(128):
            batch = batch.to(args.device)
            loss = nn.functional.mse_loss(model(batch), batch)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
