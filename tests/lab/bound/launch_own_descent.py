# expect: launch-bound
"""Gradient descent written out, as lessons do before they show torch.optim: nobody but the GPU's counters sees steps."""

import sys
import time

import torch

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
sizes = [128, 96, 96, 96, 96, 96, 10]
weights = [torch.randn(a, b, device=device).mul_(a**-0.5).requires_grad_() for a, b in zip(sizes, sizes[1:])]
biases = [torch.zeros(b, device=device, requires_grad=True) for b in sizes[1:]]
x, y = torch.randn(64, 128, device=device), torch.randint(0, 10, (64,), device=device)


def model(h):
    for weight, bias in zip(weights, biases):
        h = torch.tanh(h @ weight + bias)
    return h - h.exp().sum(-1).log().unsqueeze(-1)


end, step = time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 8.0), 0
while time.time() < end:
    loss = -model(x)[torch.arange(64, device=device), y].mean()
    loss.backward()
    with torch.no_grad():
        for parameter in weights + biases:
            parameter -= 0.1 * parameter.grad
            parameter.grad.zero_()
    step += 1
    if step % 1000 == 0:
        print(step, loss.item())
