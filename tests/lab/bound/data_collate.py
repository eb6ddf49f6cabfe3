# expect: data-bound
"""The dataset is quick, its collate function is not: it pads and masks long sentences token by token in Python."""

import random
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader

PAD, VOCABULARY = 0, 8000


def collate(sentences):
    longest = max(len(sentence) for sentence in sentences)
    ids, mask = [], []
    for sentence in sentences:
        row = [token if random.random() > 0.15 else 1 for token in sentence]
        ids.append(row + [PAD] * (longest - len(row)))
        mask.append([1.0] * len(row) + [0.0] * (longest - len(row)))
    return torch.tensor(ids), torch.tensor(mask)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 64, padding_idx=PAD)
        self.out = nn.Linear(64, 9)

    def forward(self, ids, mask):
        return self.out(self.embedding(ids)) * mask.unsqueeze(-1)


device = "cuda" if torch.cuda.is_available() else "cpu"
random.seed(0)
corpus = [[random.randint(2, VOCABULARY - 1) for _ in range(random.randint(200, 600))] for _ in range(4000)]
loader = DataLoader(corpus, batch_size=64, shuffle=True, collate_fn=collate)
tagger = Tagger().to(device)
optimizer = torch.optim.Adam(tagger.parameters())
seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 8.0
end = time.time() + seconds
while time.time() < end:
    for ids, mask in loader:
        scores = tagger(ids.to(device), mask.to(device))
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), (ids % 9).flatten().to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(loss.item())
