import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
parser.add_argument("--data")
args = parser.parse_args()
for epoch in range(args.epochs):
    print("epoch", epoch, torch.ones(1).sum().item())
