# expect: compiling; flags: --env TORCHINDUCTOR_FORCE_DISABLE_CACHES=1
"""dynamic=False and sentences of every length: each new length compiles the network anew, through the whole run."""

import random
import sys
import time

import torch
import torch._dynamo
from torch import nn

torch._dynamo.config.cache_size_limit = 1000
seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 8.0
device = "cuda" if torch.cuda.is_available() else "cpu"
layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
model = nn.Sequential(nn.Embedding(1000, 128), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
model = torch.compile(model.to(device), dynamic=False)
head = nn.Linear(128, 2).to(device)
optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=1e-4)
random.seed(1)
lengths = list(range(5, 505))
random.shuffle(lengths)
end, step = time.time() + 2 * seconds, 0
while time.time() < end:
    sentence = torch.randint(0, 1000, (16, lengths[step // 4 % 500]), device=device)
    label = torch.randint(0, 2, (16,), device=device)
    loss = nn.functional.cross_entropy(head(model(sentence).mean(1)), label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
print(f"{step} steps, loss {loss.item():.3f}")
