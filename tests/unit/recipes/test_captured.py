"""Every recipe's step is one that a CUDA graph repeats: nothing of it is done on the host (train/capture.py)."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from seatrial.recipes import cifar10, digits, mnist, mnist_deep  # noqa: E402
from seatrial.train import loop  # noqa: E402
from seatrial.train.data.images import ImageSet  # noqa: E402
from seatrial.train.engine import choose_engine, watched_steps  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Engines are chosen behind some watched steps, as on a GPU; the shapes that were looked at."""
    seen: list[Any] = []

    def choose(name: str, step: Any, note: Any, epochs: int) -> Any:
        fresh = not step.optimizer.state
        for shape in {span.shape for span in step.source.spans}:
            watched_steps(step, shape, fresh=fresh)
            seen.append(shape)
        return choose_engine(name, step, note, epochs)

    monkeypatch.setattr(loop, "choose_engine", choose)
    return seen


def test_mnist(watched: list[Any], data: Path, tmp_path: Path) -> None:
    folders = ["--data", str(data), "--models", str(tmp_path)]
    assert mnist.main([*folders, "--batch", "32", "--epochs", "1"]) == 0
    assert watched


def test_mnist_deep(watched: list[Any], wide_data: Path, tmp_path: Path) -> None:
    folders = ["--data", str(wide_data), "--models", str(tmp_path)]
    assert mnist_deep.main([*folders, "--epochs", "1", "--batch", "16"]) == 0
    assert watched


def test_digits(watched: list[Any], tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    assert digits.main(["--models", str(tmp_path), "--epochs", "1"]) == 0
    assert watched


def test_cifar10(watched: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    images_NCHW = torch.randint(0, 255, (100, 3, 32, 32), generator=generator).to(torch.uint8)
    blobs = ImageSet(images_NCHW, torch.randint(0, 3, (100,), generator=generator), 10)
    monkeypatch.setattr(cifar10, "read_records", lambda folder: None)
    monkeypatch.setattr(cifar10, "image_sets", lambda records: (blobs, blobs))
    options = ["--batch", "50", "--epochs", "1", "--widths", "8", "8", "8", "--models", str(tmp_path)]
    assert cifar10.main(options) == 0
    assert watched
