# expect: synchronisation-bound
"""After a bad night every weight and gradient is checked for NaN, and the norm clipped with error_if_nonfinite."""

import sys
import time

import torch
from torch import nn

CUDA = torch.cuda.is_available()
device = "cuda" if CUDA else "cpu"
WIDTH = 1024 if CUDA else 64
layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, batch_first=True, dropout=0.0)
model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
x = torch.randn(14 if CUDA else 8, 128, WIDTH, device=device)
end, step = time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 8.0), 0
while time.time() < end:
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    for name, parameter in model.named_parameters():
        if torch.isnan(parameter.grad).any() or torch.isinf(parameter.grad).any():
            print("bad gradient in", name)
        if torch.isnan(parameter).any() or torch.isinf(parameter).any():
            print("bad weight in", name)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    optimizer.step()
    step += 1
print(step)
