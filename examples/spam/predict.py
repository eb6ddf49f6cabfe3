"""Print ham or spam for each message on the command line."""

import sys
from pathlib import Path

import torch
from classifier import LABELS, load, tokens

MODEL = Path("models/spam.pth")

messages = sys.argv[1:]
if not messages:
    raise SystemExit('no message; for example: python predict.py "Hey, how are you?"')
if not MODEL.exists():
    raise SystemExit(f"there is no {MODEL}; first: python train.py")
device = "cuda" if torch.cuda.is_available() else "cpu"
with torch.no_grad():
    probabilities = load(MODEL, device)(tokens(messages).to(device)).softmax(1)
for message, probability in zip(messages, probabilities, strict=True):
    print(f"{LABELS[int(probability.argmax())]}  {probability.max():.2f}  {message}")
