"""Steps that a CUDA graph would not repeat are found by watching them, which leaves nothing; engines agree on it."""

import copy
import random

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from own_models import OWN, ResNet, classify, mean, pictures, sgd, step_of  # noqa: E402
from seatrial.train import engine, fit  # noqa: E402
from seatrial.train.capture import NotCapturable, refuse_beforehand  # noqa: E402
from seatrial.train.compiled_blocks import repeated  # noqa: E402
from seatrial.train.saving.rng import seed_all  # noqa: E402

pytestmark = pytest.mark.torch
TWENTY = TensorDataset(torch.zeros(20, 2))  # batches of 8, 8 and 4 rows: two shapes


def seen(model, loss=classify, optimizer=sgd, **options):
    return step_of(model, loss, TensorDataset(*pictures()), optimizer, 35, **options)


class Counting(ResNet):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


class Carrying(ResNet):
    """Keeps the last batch's mean: as an attribute, or as a buffer that is replaced."""

    def __init__(self, kept):
        super().__init__()
        if kept == "buffer":
            self.register_buffer("seen", torch.zeros(3))
        else:
            self.seen = torch.zeros(3)

    def forward(self, x):
        self.seen = self.seen * 0.9 + x.mean((0, 2, 3)).detach()
        return super().forward(x)


class Skipping(ResNet):
    def forward(self, x):
        return super().forward(x) if random.random() < 0.5 else super().forward(-x)


class Own(torch.optim.Optimizer):
    """Remembers something that nobody knows the beginning of, or counts on the host: in its state, a group, itself."""

    def __init__(self, parameters, kind):
        super().__init__(parameters, {"lr": 0.1})
        self.kind, self.rounds = kind, 0

    @torch.no_grad()
    def step(self, closure=None):
        self.rounds += self.kind == "attribute"
        for group in self.param_groups:
            if self.kind == "group":
                group["done"] = group.get("done", 0) + 1
            for parameter in group["params"]:
                slots = self.state[parameter]
                if self.kind == "counts":
                    slots["done"] = slots.get("done", 0) + 1
                if self.kind == "unknown":
                    slots.setdefault("d0", torch.tensor(0.5)).mul_(0.9)
                slow = float(slots.get("d0", 1)) / (1 + slots.get("done", 0) + group.get("done", 0))
                parameter.sub_(parameter.grad, alpha=group["lr"] * slow)


def own(kind):
    return lambda model: Own(model.parameters(), kind)


def dampened(model):
    return torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, dampening=0.5)


def annealed():
    done = 0

    def loss(model, images, labels):
        nonlocal done
        done += 1
        return classify(model, images, labels) * min(1.0, done / 100)

    return loss


@pytest.mark.parametrize(
    ("model", "given", "reason"),
    [
        (Counting(), {}, r"changes the model \(Counting\)'s calls on the host"),
        (Carrying("buffer"), {}, r"Carrying\)'s buffer seen on the host: write into it"),
        (Carrying("attribute"), {}, r"Carrying\)'s seen on the host: make it a buffer"),
        (Skipping(), {}, "draws random numbers on the host"),
        (ResNet(), {"loss": annealed()}, "the loss's variable done"),
        (ResNet(), {"optimizer": own("counts")}, "the optimizer's done of parameter 0"),
        (ResNet(), {"optimizer": own("group")}, "the optimizer's done of group 0"),
        (ResNet(), {"optimizer": own("attribute")}, "the optimizer's rounds on the host"),
        (ResNet(), {"optimizer": own("unknown")}, "Own's state d0 is not known"),
        (ResNet(), {"optimizer": dampened}, "SGD's state momentum_buffer is not known"),
    ],
)
def test_step_that_a_graph_would_not_repeat(model, given, reason):
    step = seen(model, **given)
    step.source.start(1, 0)
    with pytest.raises(NotCapturable, match=reason):
        engine.watched_steps(step, step.source.spans[0].shape, fresh=True)


def test_momentum_that_changes_is_not_captured():
    model = ResNet()
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9)
    step = seen(model, optimizer=lambda _: optimizer, schedule=scheduler, epochs=3)
    with pytest.raises(NotCapturable, match="the schedule changes momentum too"):
        refuse_beforehand(step)
    assert optimizer.param_groups[0]["momentum"] == 0.95  # where OneCycleLR begins: looking ahead changed nothing


@pytest.mark.parametrize("kind", ["counts", "group", "unknown", "dampened"])
def test_steps_that_are_tried_leave_nothing_behind(kind, monkeypatch):
    def step():
        seed_all(0)
        return seen(ResNet(), optimizer=dampened if kind == "dampened" else own(kind))

    tried, other = step(), step()
    monkeypatch.setattr(tried, "compile", lambda: None)
    assert fit(tried, engine="compile").losses == fit(other).losses
    for one, same in zip(tried.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(one, same)


@pytest.mark.parametrize(
    "name", ["vae", *(pytest.param(name, marks=pytest.mark.slow) for name in ("resnet", "tied", "lstm", "unet"))]
)
@pytest.mark.parametrize("kind", ["SGD", "NAdam", "RMSprop", "Rprop"])
def test_step_that_it_would_repeat_is_as_before_afterwards(name, kind):
    def optimizer(model):
        return getattr(torch.optim, kind)(
            model.parameters(), 1e-3, **({"momentum": 0.9} if kind in ("SGD", "RMSprop") else {})
        )

    network, loss, dataset = OWN[name]
    seed_all(0)
    model = network()
    steps = [step_of(each, loss, dataset(), optimizer) for each in (model, copy.deepcopy(model))]
    before = engine.snapshot(steps[0].state())
    pointers = [parameter.data_ptr() for parameter in model.parameters()]
    steps[0].source.start(1, 0)
    engine.watched_steps(steps[0], steps[0].source.spans[0].shape, fresh=True)
    steps[0].restore(before, forget_optimizer=True)
    assert [parameter.data_ptr() for parameter in model.parameters()] == pointers
    assert fit(steps[0]).losses == fit(steps[1]).losses


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


def prepared(message, error=None):
    """Return a step whose graphs' captures do nothing, or raise ``error`` at the first."""
    step = step_of(nn.Linear(2, 1), mean, TWENTY)
    step.ranks = Agreeing(message)
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
    step = prepared(*(([], torch.OutOfMemoryError()) if whose == "own" else ([(True, False)],)))
    assert step.micro_batch.rows == 4 and step.ranks.rounds == 1 + 2


@pytest.mark.parametrize("whose", ["own", "other"])
def test_step_that_one_rank_cannot_capture_runs_eagerly_on_all(whose):
    own, message = (RuntimeError("waits"), []) if whose == "own" else (None, [(False, True)])
    with pytest.raises(RuntimeError if own else NotCapturable, match="waits" if own else "another rank"):
        prepared(message, own)


@pytest.mark.parametrize("tried", ["watched", "compiled"])
def test_steps_tried_out_read_a_batch_of_their_own_shape(tried, monkeypatch):
    step = step_of(nn.Linear(2, 1), mean, TWENTY)
    source, read, load = step.source, [], step.source.load
    source.start(1, 0)

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
    def refuse(*_, text):
        raise RuntimeError(text)

    monkeypatch.setattr(engine.Graphed, "prepare", lambda self: refuse(text="an illegal memory access"))
    monkeypatch.setattr(
        engine.capture, "forget_failed_capture", lambda device: refuse(text="the same, of another call")
    )
    step = step_of(nn.Linear(2, 1), mean, TWENTY)
    monkeypatch.setattr(engine.Graphed, "__init__", lambda self, step, epochs: None)
    monkeypatch.setattr(step, "device", torch.device("cuda"))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        engine.choose_engine("graph", step, lambda text: None)


# Blocks that are compiled one by one ---------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, width=8, slope=1.0):
        super().__init__()
        self.slope, self.inner = slope, nn.Sequential(nn.Linear(width, width), nn.ReLU())

    def forward(self, x):
        return x + self.slope * self.inner(x)


def test_outermost_blocks_alike_that_are_most_of_a_model():
    model = nn.Sequential(nn.Linear(8, 8), *(Block() for _ in range(5)))
    assert repeated(model) == list(model[1:])
    for other in ([nn.Linear(8, 800), *(Block() for _ in range(5))], [Block(8 + number) for number in range(5)]):
        assert repeated(nn.Sequential(*other)) == []
    other = nn.Sequential(Block(), Block(), Block(slope=2.0), Block(slope=2.0))
    assert repeated(other) == [block.inner for block in other], "those are alike inside"


def blocks():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(32, 8), torch.arange(32) % 2)
    return step_of(nn.Sequential(*(Block() for _ in range(3)), nn.Linear(8, 2)), dataset=data, epochs=2)


def test_blocks_are_compiled_in_steps_alone(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda call, **named: lambda *given: (called.append(1), call(*given))[1])
    called, step = [], blocks()
    step.source.start(1, 0)
    step.compile()
    step.run_fixed(step.source.spans[0].shape)
    assert len(called) == 3
    step.model(torch.randn(1, 8))
    step.uncompile()
    step.run_fixed(step.source.spans[0].shape)
    assert len(called) == 3


@pytest.mark.slow
def test_compiled_blocks_train_alike():
    assert fit(blocks(), engine="compile").losses == pytest.approx(fit(blocks()).losses, rel=1e-4)
