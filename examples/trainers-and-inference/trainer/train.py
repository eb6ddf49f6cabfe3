"""Train one candidate for the inference service; NAME and LEARNING_RATE are variables of the service."""

import json
import os
from pathlib import Path

import numpy as np
import torch
from network import network
from sklearn.datasets import load_digits
from torch import nn

OUTPUTS = Path(os.environ.get("OUTPUTS", "/outputs"))
NAME = os.environ["NAME"]
LEARNING_RATE = float(os.environ["LEARNING_RATE"])
EPOCHS = int(os.environ.get("EPOCHS", "10"))

device = "cuda" if torch.cuda.is_available() else "cpu"
images, labels = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(len(labels))  # the file is sorted by writer
pixels = torch.from_numpy((images[order] / 16).astype(np.float32)).to(device)
answers = torch.from_numpy(labels[order].astype(np.int64)).to(device)
train, test = slice(0, 1500), slice(1500, None)

torch.manual_seed(0)
model = network().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
for _ in range(EPOCHS):
    for chosen in torch.randperm(1500, device=device).split(32):
        loss = nn.functional.cross_entropy(model(pixels[train][chosen]), answers[train][chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
with torch.no_grad():
    accuracy = (model(pixels[test]).argmax(1) == answers[test]).float().mean().item()

# Each trainer has files of its own: both write to one volume.
torch.save(model.state_dict(), OUTPUTS / f"{NAME}.pth")
(OUTPUTS / f"{NAME}.json").write_text(json.dumps({"name": NAME, "test_accuracy": accuracy}))
print(f"{NAME} on {device}: learning rate {LEARNING_RATE:g}, test accuracy {accuracy:.2%}")
