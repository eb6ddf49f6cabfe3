# expect: launch-bound
"""A GAN on vectors: two small networks, two Adams, three backward passes; each kernel is too small to notice."""

import sys
import time

import torch
from torch import nn


def network(inputs, outputs, end):
    return nn.Sequential(
        nn.Linear(inputs, 256), nn.BatchNorm1d(256), nn.LeakyReLU(0.2),
        nn.Linear(256, 256), nn.BatchNorm1d(256), nn.LeakyReLU(0.2), nn.Linear(256, outputs), end,
    )  # fmt: skip


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator, critic = network(64, 784, nn.Tanh()).to(device), network(784, 1, nn.Sigmoid()).to(device)
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    optimizer_d = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
    bce = nn.BCELoss()
    pictures = torch.rand(10_000, 784, device=device) * 2 - 1
    real, fake = torch.ones(64, 1, device=device), torch.zeros(64, 1, device=device)
    end, step = time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 8.0), 0
    while time.time() < end:
        batch = pictures[torch.randint(0, 10_000, (64,), device=device)]
        made = generator(torch.randn(64, 64, device=device))
        optimizer_d.zero_grad()
        bce(critic(batch), real).backward()
        bce(critic(made.detach()), fake).backward()
        optimizer_d.step()
        optimizer_g.zero_grad()
        loss_g = bce(critic(made), real)
        loss_g.backward()
        optimizer_g.step()
        step += 1
        if step % 500 == 0:
            print(f"step {step} loss_g {loss_g.item():.3f}")


if __name__ == "__main__":
    main()
