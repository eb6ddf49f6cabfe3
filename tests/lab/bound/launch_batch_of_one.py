# expect: launch-bound
"""A vision transformer fine-tuned one picture at a time: the same launches as for a hundred, with nothing in them."""

import sys
import time

import torch
from torch import nn


class ViT(nn.Module):
    def __init__(self, width=192, depth=12, patches=196):
        super().__init__()
        self.patch = nn.Conv2d(3, width, 16, stride=16)
        self.position = nn.Parameter(torch.zeros(1, patches, width))
        layer = nn.TransformerEncoderLayer(width, 3, 4 * width, activation="gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, 100)

    def forward(self, images):
        tokens = self.patch(images).flatten(2).transpose(1, 2) + self.position
        return self.head(self.blocks(tokens).mean(1))


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = ViT().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
pictures, labels = torch.rand(64, 3, 224, 224, device=device), torch.randint(0, 100, (64,), device=device)
end, i = time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 8.0), 0
while time.time() < end:
    with torch.autocast(device.type, dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(pictures[i % 64 : i % 64 + 1]), labels[i % 64 : i % 64 + 1])
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    i += 1
print(i, loss.item())
