# expect: too-short
"""One pass over a small table with a loader of two workers: half a second of training at the end of some imports."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    table = TensorDataset(torch.randn(4096, 30), torch.randint(0, 2, (4096,)).float())
    loader = DataLoader(table, batch_size=64, shuffle=True, num_workers=2)
    model = nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for rows, churned in loader:
        loss = nn.functional.binary_cross_entropy_with_logits(model(rows.to(device)).squeeze(1), churned.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"churn model: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
