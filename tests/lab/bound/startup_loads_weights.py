# expect: start-up
"""A pretrained network is read from disk layer by layer and converted, then fine-tuned for three seconds."""

import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 8.0
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(8)], nn.Linear(512, 2))

with tempfile.TemporaryDirectory() as folder:
    shard = Path(folder) / "shard.pt"
    began = time.time()
    while time.time() - began < 1.3 * seconds:  # shards of a large checkpoint
        torch.save({name: p.float() for name, p in model.state_dict().items()}, shard)
        model.load_state_dict(torch.load(shard, weights_only=True))
model.to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
began = time.time()
while time.time() - began < 0.4 * seconds:
    x, y = torch.randn(32, 512, device=device), torch.randint(0, 2, (32,), device=device)
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("fine-tuned", loss.item())
