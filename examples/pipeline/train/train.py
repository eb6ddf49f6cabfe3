"""Train on the preprocessed digits; write weights and metrics for the export."""

import json
import os
from pathlib import Path

import numpy as np
import torch
from network import network
from torch import nn

DATA = Path(os.environ.get("DATA", "/data"))
MODELS = Path(os.environ.get("MODELS", "/models"))
EPOCHS = int(os.environ.get("EPOCHS", "3"))
BATCH_SIZE = int(os.environ.get("BATCH_SIZE", "32"))

device = "cuda" if torch.cuda.is_available() else "cpu"
with np.load(DATA / "digits.npz") as digits:
    images, labels, test_images, test_labels = (
        torch.from_numpy(digits[name]).to(device) for name in ("images", "labels", "test_images", "test_labels")
    )

torch.manual_seed(0)
model = network().to(device)
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(1, EPOCHS + 1):
    for chosen in torch.randperm(len(images), device=device).split(BATCH_SIZE):
        loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.4f} on {device}", flush=True)

with torch.no_grad():
    accuracy = (model(test_images).argmax(1) == test_labels).float().mean().item()
torch.save(model.state_dict(), MODELS / "model.pth")
(MODELS / "metrics.json").write_text(json.dumps({"test_accuracy": accuracy, "epochs": EPOCHS}))
print(f"test accuracy {accuracy:.2%}")
