# expect: too-short
"""The shortest of tutorials: a polynomial fitted for a hundred iterations, over in a blink."""

import math

import torch

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
x = torch.linspace(-math.pi, math.pi, 2000, device=device)
y = torch.sin(x)
xx = x.unsqueeze(-1).pow(torch.tensor([1, 2, 3], device=device))
model = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Flatten(0, 1)).to(device)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
for t in range(100):
    loss = torch.nn.functional.mse_loss(model(xx), y, reduction="sum")
    if t % 25 == 24:
        print(t, loss.item())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
