# expect: synchronisation-bound
"""Every loss of a VAE is printed in every step, straight from the GPU: f-strings of CUDA tensors wait for it."""

import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
WIDTH = 2048 if device == "cuda" else 64


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(784, WIDTH)
        self.middle = nn.Linear(WIDTH, WIDTH)
        self.mu, self.logvar = nn.Linear(WIDTH, 20), nn.Linear(WIDTH, 20)
        self.out = nn.Sequential(nn.Linear(20, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 784))

    def forward(self, x):
        h = F.relu(self.middle(F.relu(self.inner(x))))
        mu, logvar = self.mu(h), self.logvar(h)
        print(f"mu {mu.mean():.4f} logvar {logvar.mean():.4f}")
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return self.out(z), mu, logvar


model = VAE().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
x = torch.rand(4096, 784, device=device)
end, step = time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 8.0), 0
while time.time() < end:
    recon, mu, logvar = model(x)
    bce = F.binary_cross_entropy_with_logits(recon, x)
    kld = -0.5 * torch.mean(1 + logvar - mu.pow(2) - logvar.exp())
    loss = bce + kld
    print(f"[{step}] loss {loss:.4f} bce {bce:.4f} kld {kld:.4f}")
    optimizer.zero_grad()
    loss.backward()
    print("grad", model.inner.weight.grad.abs().max())
    optimizer.step()
    step += 1
