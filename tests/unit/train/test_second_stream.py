"""Which weights' gradients may be made on a second stream."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from seatrial.train.autocast_weights import SecondStream, gradient_counts, is_watched  # noqa: E402

pytestmark = pytest.mark.torch


class Tied(nn.Module):
    """One matrix in two layers, another called twice, one alone, one whose gradient somebody watches, one unused."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.head.weight = self.words.weight
        self.twice, self.once, self.seen, self.unused = (nn.Linear(4, 4, bias=False) for _ in range(4))
        self.seen.weight.register_hook(lambda grad: grad)

    def forward(self, places):
        return self.head(self.seen(self.once(self.twice(self.twice(self.words(places))))))


def test_only_weights_with_one_gradient_that_nobody_watches():
    model = Tied()
    loss = model(torch.tensor([1, 2])).square().sum()
    counts = gradient_counts(loss)
    assert {counts[model.words.weight], counts[model.twice.weight]} == {2} and counts[model.once.weight] == 1
    assert is_watched(model.seen.weight) and not is_watched(model.once.weight)
    side, weights = SecondStream(), list(model.parameters())
    with side.backward(loss, weights):
        assert [weight for weight in weights if side.takes(weight)] == [model.once.weight]
        loss.backward()
        made = side.run(model.once.weight, lambda: model.once.weight.grad)  # on a CPU at once
        assert made is model.once.weight.grad is not None
    assert not side.takes(model.once.weight)
    again = model(torch.tensor([3])).sum()
    with side.backward(again, weights):  # a gradient is there, to which the next would be added
        assert not side.takes(model.once.weight)
    model.once.weight.grad = None
    side.refused.add(model.once.weight)
    with side.backward(again, weights):
        assert not side.takes(model.once.weight)
