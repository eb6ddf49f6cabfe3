"""mnist-deep on small images of either size: valid shapes, the files it writes."""

import struct
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from seatrial.recipes import mnist_deep  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(("channels", "pixels"), [(1, 28), (3, 32)])
def test_valid_for_28_and_32_pixels(channels: int, pixels: int) -> None:
    model = mnist_deep.network(channels, 10)
    assert model(torch.zeros(2, channels, pixels, pixels)).shape == (2, 10)


def test_trains_and_writes_model_and_metadata(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = np.random.default_rng(0)
    for part, count in (("train", 96), ("t10k", 32)):
        labels = (np.arange(count) % 2).astype(np.uint8)
        images = numbers.integers(0, 60, (count, 16, 16)).astype(np.uint8)
        images[labels == 1, 4:12, 4:12] += 150
        for array, kind in ((images, "images-idx3"), (labels, "labels-idx1")):
            header = struct.pack(f">{1 + array.ndim}I", 0x0800 | array.ndim, *array.shape)
            (tmp_path / f"{part}-{kind}-ubyte").write_bytes(header + array.tobytes())
    folders = ["--data", str(tmp_path), "--models", str(tmp_path / "models")]
    assert mnist_deep.main([*folders, "--epochs", "4", "--batch", "16"]) == 0
    text = capsys.readouterr().out
    assert "test accuracy" in text and "GPU memory: none" in text
    lines = tmp_path / "models" / "training_metadata.txt"
    facts = dict(line.split(": ", 1) for line in lines.read_text().splitlines())
    assert facts["dataset"] == "mnist" and facts["classes"] == "2" and facts["world size"] == "1"
    assert float(facts["test accuracy"]) > 0.9
    model = mnist_deep.network(1, 2)
    model.load_state_dict(torch.load(tmp_path / "models" / "trained-model.pth", weights_only=True))
    assert int(facts["parameters"]) == sum(parameter.numel() for parameter in model.parameters())
