# expect: failed-early; shows: No module named
"""Its author's own augmentation is loaded by the name that a config gives, after torch, and nobody else has it."""

import importlib

import torch
from torch import nn

config = {"augment": "lab_augmentations.strong", "batch_size": 128, "device": "cuda"}
device = config["device"] if torch.cuda.is_available() else "cpu"
model = nn.Linear(784, 10).to(device)
augment = importlib.import_module(config["augment"])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(20):
    for x, y in augment.loader(batch_size=config["batch_size"], num_workers=8):
        loss = nn.functional.cross_entropy(model(x.to(device).flatten(1)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
