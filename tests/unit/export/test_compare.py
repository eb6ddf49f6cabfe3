"""An exported model's outputs are measured against the original's, at any size."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from seatrial.export.formats import (  # noqa: E402
    TOLERANCES,
    Run,
    compare,
)
from seatrial.models.model import Original  # noqa: E402
from seatrial.train.saving.examples import Examples  # noqa: E402

pytestmark = pytest.mark.torch
TOLERANCE = TOLERANCES[torch.float32]


def scaled(before: Run, after: Run) -> float:
    """The difference of two functions of the same [8, 16] inputs."""
    inputs = {"x": torch.randn(8, 16, generator=torch.Generator().manual_seed(1))}
    original = Original("net", nn.Identity(), {}, Examples("", "tensors", "", inputs, {}), ("y",), {"x": {0: "batch"}})
    return compare(original, before, after).scaled


def softmax(sharpness: float, sign: float = 1.0) -> Run:
    """Probabilities of 30,000 classes."""
    weight = torch.randn(16, 30_000, generator=torch.Generator().manual_seed(2)) * sharpness

    def run(rows: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        found = (rows[0] @ weight).softmax(1)
        return (torch.where(found > 0.5, found, sign * found),)

    return run


@pytest.mark.parametrize("sharpness", [0.01, 1.0, 2.0])
def test_softmax_over_many_classes_with_flipped_signs_disagrees(sharpness: float) -> None:
    assert scaled(softmax(sharpness), softmax(sharpness)) == 0
    assert scaled(softmax(sharpness), softmax(sharpness, -1.0)) > TOLERANCE


@pytest.mark.parametrize("size", [1e-30, 1e-6, 1.0, 1e6])
def test_units_of_an_output_do_not_matter(size: float) -> None:
    def double(rows: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (rows[0].double() * size,)

    def single(rows: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (rows[0].double() * (size * (1 + 1e-6)),)

    assert scaled(double, single) == pytest.approx(1e-6, rel=1e-2) and scaled(single, double) < TOLERANCE
    assert scaled(double, lambda rows: (-double(rows)[0],)) == pytest.approx(2)


def test_output_of_zeros_agrees_with_zeros_alone() -> None:
    def zeros(rows: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (torch.zeros(len(rows[0]), 3),)

    assert scaled(zeros, zeros) == 0
    assert scaled(zeros, lambda rows: (zeros(rows)[0] + 1e-6,)) > TOLERANCE
