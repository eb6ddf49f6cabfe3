"""Graphs are prepared without a GPU: the ranks agree after each shape."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from seatrial.train import Step, batches, engine  # noqa: E402
from seatrial.train.capture import NotCapturable  # noqa: E402

pytestmark = pytest.mark.torch


class Agreeing:
    """Ranks of which another one answers; ``message`` has its answers after each shape: (too large, an error)."""

    world, rank, first = 2, 0, True
    device = torch.device("cpu")

    def __init__(self, message):
        self.message, self.rounds = list(message), 0

    def any_of(self, flags):
        self.rounds += 1
        other = self.message.pop(0) if self.message else (False, False)
        return [own or theirs for own, theirs in zip(flags, other, strict=True)]


def prepared(message, error=None, ranks=None):
    """A Graphed whose warm-ups and captures do nothing, or raise ``error`` at the first; and its ranks."""
    model = nn.Linear(2, 1)
    step = Step(
        model,
        lambda model, x: model(x).mean(),
        torch.optim.SGD(model.parameters(), 0.1),
        batches(TensorDataset(torch.zeros(20, 2)), 8),  # two shapes
    )
    step.ranks = ranks or Agreeing(message)
    graphed = engine.Graphed(step)
    errors = [error] if error else []

    def capture(shape, steps):
        if errors:
            raise errors.pop()

    graphed._warm_up, graphed._capture = lambda shape: None, capture
    graphed.prepare()
    return step


@pytest.mark.parametrize("whose", ["own", "other"])
def test_no_memory_on_one_rank_halves_the_micro_batch_on_all(whose):
    own, message = (torch.OutOfMemoryError(), []) if whose == "own" else (None, [(True, False)])
    step = prepared(message, own)
    assert step.micro_batch.rows == 4 and step.ranks.rounds == 1 + 2


@pytest.mark.parametrize("whose", ["own", "other"])
def test_a_step_that_one_rank_cannot_capture_runs_eagerly_on_all(whose):
    own, message = (RuntimeError("waits"), []) if whose == "own" else (None, [(False, True)])
    with pytest.raises(RuntimeError if own else NotCapturable, match="waits" if own else "another rank"):
        prepared(message, own)


@pytest.mark.parametrize("tried", ["watched", "compiled"])
def test_steps_tried_out_read_a_batch_of_their_own_shape(tried, monkeypatch):
    model = nn.Linear(2, 1)
    source = batches(TensorDataset(torch.zeros(20, 2)), 8)  # 8, 8 and 4 rows
    step = Step(model, lambda model, x: model(x).mean(), torch.optim.SGD(model.parameters(), 0.1), source)
    source.start(1, 0)
    read, load = [], source.load

    def loaded(position, shape, first, count):
        read.append((source.spans[int(position)].shape, shape))
        return load(position, shape, first, count)

    monkeypatch.setattr(source, "load", loaded)
    if tried == "compiled":
        monkeypatch.setattr(step, "compile", lambda: None)
        assert engine._compile(step, 1) is None
    else:
        for shape in engine.longest_runs([source.spans]):
            engine.watched_steps(step, shape, fresh=True)
    assert {shape.rows for _, shape in read} == {4, 8} and all(there == shape for there, shape in read)


def test_gpu_that_refuses_everything_leaves_the_first_error(monkeypatch):
    first, second = RuntimeError("an illegal memory access"), RuntimeError("the same, of another call")

    class Broken:
        def __init__(self, step, epochs):
            """Nothing is captured."""

        def prepare(self):
            raise first

    def refuse(device):
        raise second

    monkeypatch.setattr(engine, "Graphed", Broken)
    monkeypatch.setattr(engine.capture, "forget_failed_capture", refuse)
    model = nn.Linear(2, 1)
    source = batches(TensorDataset(torch.zeros(8, 2)), 8)
    step = Step(model, lambda model, x: model(x).mean(), torch.optim.SGD(model.parameters(), 0.1), source)
    monkeypatch.setattr(step, "device", torch.device("cuda"))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        engine.choose_engine("graph", step, lambda text: None)
