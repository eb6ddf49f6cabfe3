"""digits: the network of mnist on the 8×8 digits that scikit-learn carries, scaled up to 28×28: nothing to download.

python -m seatrial.recipes.digits --models DIR
"""

from __future__ import annotations

from collections.abc import Sequence

from seatrial.train import early_start

if __name__ == "__main__":
    early_start.begin()

import numpy as np
import torch
from torch.nn import functional as F

from seatrial.recipes.mnist import parse, train
from seatrial.train import options
from seatrial.train.data.mnist import IdxFolder
from seatrial.train.errors import InputError

#: Every sixth example is for the test, so that both parts have every writer (UCI's order is by writer).
TEST_EVERY = 6


def main(argv: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    return train(read_digits(), parse(argv, "digits"), "digits")


def read_digits() -> IdxFolder:
    """Return scikit-learn's digits as 28×28 unsigned bytes. Raises InputError if scikit-learn is not installed."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise InputError("the recipe digits reads scikit-learn's data", fix="pip install scikit-learn") from error
    small = load_digits()
    small_N1HW = torch.from_numpy(small.images).float().unsqueeze(1) * (255 / 16)  # 8×8, values 0 … 16
    large_N1HW = F.interpolate(small_N1HW, size=(28, 28), mode="bilinear", align_corners=False)
    images = large_N1HW.squeeze(1).round().to(torch.uint8).numpy()
    labels = small.target.astype(np.uint8)
    tested = np.arange(len(labels)) % TEST_EVERY == TEST_EVERY - 1
    return IdxFolder(images[~tested], labels[~tested], images[tested], labels[tested])


if __name__ == "__main__":
    options.run(main)
