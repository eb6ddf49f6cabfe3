"""A small transformer for short messages, its tokens, and the files that it is saved in."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

import torch
from torch import nn

LABELS = ("ham", "spam")
VOCABULARY, LENGTH = 4096, 48  # words are hashed into so many buckets; longer messages are cut


def tokens(messages: list[str]) -> torch.Tensor:
    """Return token numbers, int64 [N, LENGTH]; 0 fills up."""
    rows = torch.zeros(len(messages), LENGTH, dtype=torch.int64)
    for row, message in zip(rows, messages, strict=True):
        words = re.findall(r"[a-z]+|\d+|[^\w\s]", re.sub(r"\d", "0", message.lower()))[:LENGTH] or ["?"]
        row[: len(words)] = torch.tensor([1 + zlib.crc32(word.encode()) % (VOCABULARY - 1) for word in words])
    return rows


class Classifier(nn.Module):
    """Embed, two encoder layers, the mean over the words, two classes."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width, padding_idx=0)
        self.places = nn.Parameter(torch.randn(LENGTH, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, len(LABELS))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        filled = words == 0
        states = self.encoder(self.words(words) + self.places, src_key_padding_mask=filled)
        kept = (~filled).unsqueeze(-1)
        return self.head((states * kept).sum(1) / kept.sum(1))


def load(file: Path, device: str) -> Classifier:
    """Read the weights that train.py has saved; only tensors are unpickled."""
    model = Classifier().to(device)
    model.load_state_dict(torch.load(file, map_location=device, weights_only=True))
    return model.eval()
