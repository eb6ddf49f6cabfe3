import itertools

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import BatchSampler, TensorDataset  # noqa: E402

from seatrial.train import batches  # noqa: E402
from seatrial.train.data.order import Order  # noqa: E402
from seatrial.train.errors import DataError  # noqa: E402

pytestmark = pytest.mark.torch


def test_a_sampler_of_batches_and_one_without_an_end():
    class Endless:
        def __len__(self):
            return 8

        def __iter__(self):
            return itertools.repeat(0)

    with pytest.raises(DataError, match="gives no places"):
        Order(10, 0, BatchSampler(range(10), 4, drop_last=False)).draw(1)
    with pytest.raises(DataError, match="gives more examples in epoch 1, and its length is 8"):
        Order(10, 0, Endless()).draw(1)


def test_tensors_that_lie_on_the_host_need_no_more_of_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("seatrial.train.data.batches.free_for_data", lambda device: 0)
    tensors = TensorDataset(torch.ones(64, 2))
    assert batches(tensors, 8).resident
    assert not batches([torch.ones(2)] * 64, 8).resident
