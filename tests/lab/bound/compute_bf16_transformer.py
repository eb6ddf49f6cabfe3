# expect: compute-bound
"""A GPT at a good batch size in bf16 autocast with fused AdamW: nothing left to wait for but the tensor cores."""

import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

CUDA = torch.cuda.is_available()
device = torch.device("cuda" if CUDA else "cpu")
WIDTH, HEADS, DEPTH, LENGTH, BATCH = (4096, 32, 6, 1024, 24) if CUDA else (64, 4, 2, 32, 2)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.n2(x))


model = nn.Sequential(nn.Embedding(512, WIDTH), *[Block() for _ in range(DEPTH)], nn.Linear(WIDTH, 512)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=CUDA)
text = torch.randint(0, 512, (64, LENGTH + 1), device=device)
end, step = time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 8.0), 0
while time.time() < end:
    rows = text[torch.randint(0, 64, (BATCH,), device=device)]
    with torch.autocast(device.type, dtype=torch.bfloat16):
        loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    step += 1
    if step % 10 == 0:
        print(step, loss.item())
