# expect: memory-bandwidth-bound
"""A narrow language model with a vocabulary of 128,000: logits and their softmax are most of what is touched."""

import sys
import time

import torch
from torch import nn

CUDA = torch.cuda.is_available()
device = torch.device("cuda" if CUDA else "cpu")
VOCABULARY, WIDTH, TOKENS = (128_000, 128, 16_384) if CUDA else (1000, 32, 128)


class WordModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.hidden = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, ids):
        return self.out(torch.tanh(self.hidden(self.embedding(ids))))


model = WordModel().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
text = torch.randint(0, VOCABULARY, (TOKENS + 1,), device=device)
end, step = time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 8.0), 0
while time.time() < end:
    with torch.autocast(device.type, dtype=torch.bfloat16):
        logits = model(text[:-1])
    loss = nn.functional.cross_entropy(logits.float(), text[1:], label_smoothing=0.1)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    step += 1
    if step % 10 == 0:
        print(step, loss.item())
