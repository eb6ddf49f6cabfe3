"""Export the trained network, load the file back, and compare what both compute."""

import json
import os
from pathlib import Path

import torch
from network import network

MODELS = Path(os.environ.get("MODELS", "/models"))
ARTIFACTS = Path(os.environ.get("ARTIFACTS", "/artifacts"))

model = network()
model.load_state_dict(torch.load(MODELS / "model.pth", map_location="cpu", weights_only=True))
model.eval()
images = torch.randn(4, 1, 28, 28)
program = torch.export.export(model, (images,), dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=1024)},))
torch.export.save(program, ARTIFACTS / "model.pt2")

loaded = torch.export.load(ARTIFACTS / "model.pt2").module()
others = torch.randn(7, 1, 28, 28)  # another batch size than the one that was traced
difference = (loaded(others) - model(others)).abs().max().item()
if difference > 1e-5:
    raise SystemExit(f"the exported model computes something else: a difference of {difference}")
metrics = json.loads((MODELS / "metrics.json").read_text())
(ARTIFACTS / "report.json").write_text(json.dumps({**metrics, "largest_difference": difference}))
print(
    f"model.pt2: {(ARTIFACTS / 'model.pt2').stat().st_size / 1000:.0f} kB, test accuracy {metrics['test_accuracy']:.2%}"
)
