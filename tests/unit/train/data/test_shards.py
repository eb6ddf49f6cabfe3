"""Every example in exactly one batch of exactly one rank; the weights give the global mean."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

from seatrial.train.data.order import deal
from seatrial.train.errors import InputError


@given(st.integers(1, 500), st.integers(1, 40), st.integers(1, 5))
def test_every_example_once(examples: int, batch: int, world: int) -> None:
    if batch * world > examples:
        with pytest.raises(InputError, match="larger than"):
            deal(examples, batch, 0, world)
        return
    ranks = [deal(examples, batch, rank, world) for rank in range(world)]
    assert len({len(spans) for spans in ranks}) == 1  # the same number of steps, or a rank would wait for ever
    seen = [place for spans in ranks for first, shape in spans for place in range(first, first + shape.rows)]
    assert sorted(seen) == list(range(examples))
    for step in zip(*ranks, strict=True):  # the mean of the ranks' weighted means is the mean over all rows
        rows = sum(span.shape.rows for span in step)
        assert all(span.shape.share == pytest.approx(span.shape.rows * world / rows) for span in step)


def test_drop_last_leaves_full_batches() -> None:
    assert [span.shape.rows for span in deal(100, 32, drop_last=True)] == [32, 32, 32]
