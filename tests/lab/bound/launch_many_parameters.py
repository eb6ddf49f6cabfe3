# expect: launch-bound
"""Hundreds of small tensors and an optimizer with foreach=False: five kernels for each of them, one by one."""

import sys
import time

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class ManyHeads(nn.Module):
    def __init__(self, tasks=400):
        super().__init__()
        self.trunk = nn.Linear(128, 128)
        self.weights = nn.ParameterList([nn.Parameter(0.01 * torch.randn(128)) for _ in range(tasks)])
        self.biases = nn.ParameterList([nn.Parameter(torch.zeros(1)) for _ in range(tasks)])

    def forward(self, x):
        h = torch.relu(self.trunk(x))
        return h @ torch.stack(list(self.weights)).T + torch.cat(list(self.biases))


model = ManyHeads().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
x, y = torch.randn(512, 128, device=device), torch.randn(512, 400, device=device)
end = time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 8.0)
while time.time() < end:
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
