"""Models, data sets and optimizers that the loop was not made for: to the bit what a plain loop gives, on a CPU."""

import copy
import random

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import Dataset, IterableDataset, TensorDataset  # noqa: E402

import own_models  # noqa: E402
from own_models import OWN, ResNet, classify, pictures  # noqa: E402
from seatrial.train import Step, Test, batches, cosine, engine, fit  # noqa: E402
from seatrial.train.capture import NotCapturable, refuse_beforehand  # noqa: E402
from seatrial.train.data import batches as batches_file  # noqa: E402
from seatrial.train.data.order import shuffled  # noqa: E402
from seatrial.train.errors import DataError, InputError  # noqa: E402
from seatrial.train.saving.checkpoint import checkpoints  # noqa: E402
from seatrial.train.saving.rng import seed_all  # noqa: E402

pytestmark = pytest.mark.torch
BATCH, EPOCHS = 8, 6  # 9 steps an epoch, the last of 6 rows: 54 steps


def collated(items):
    return torch.utils.data.default_collate(items)


def plain_loop(model, loss, dataset, optimizer, scheduler=None, parts=1, clip=None):
    """Train with a plain loop; return the loss of every step."""
    seed_all(0)
    losses = []
    for epoch in range(1, EPOCHS + 1):
        order = shuffled(len(dataset), 0, epoch, torch.device("cpu")).tolist()
        for first in range(0, len(order), BATCH):
            rows = order[first : first + BATCH]
            optimizer.zero_grad()
            total = 0.0
            for part in range(0, len(rows), BATCH // parts):
                chosen = rows[part : part + BATCH // parts]
                batch = collated([dataset[row] for row in chosen])
                value = loss(model, batch) if isinstance(batch, dict) else loss(model, *batch)
                value = value["loss"] if isinstance(value, dict) else value
                value = value * (len(chosen) / len(rows))
                value.backward()
                total = total + value.detach()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            if scheduler:
                scheduler.step()
            losses.append(float(total))
    return losses


def made(name, seed=0):
    network, loss, dataset = OWN[name]
    seed_all(seed)
    return network(), loss, dataset()


@pytest.mark.parametrize(
    ("name", "streamed"),
    [
        *((name, False) for name in OWN),
        *(pytest.param(name, True, marks=[] if name == "branching" else pytest.mark.slow) for name in OWN),
    ],
)
def test_fifty_steps_to_the_bit(name, streamed, monkeypatch):
    if streamed:
        monkeypatch.setattr(batches_file, "RESIDENT_SHARE", 0.0)
    model, loss, dataset = made(name)
    twin = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    outcome = fit(Step(model, loss, optimizer, batches(dataset, BATCH), epochs=EPOCHS))
    expected = plain_loop(twin, loss, dataset, torch.optim.AdamW(twin.parameters(), 3e-3))
    assert outcome.losses == expected and len(expected) == 54
    for (key, own), other in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
        assert torch.equal(own, other), key


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=5e-4, nesterov=True),
    "dampened": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, dampening=0.5),
    "nadam": lambda p: torch.optim.NAdam(p, 1e-3),
    "radam": lambda p: torch.optim.RAdam(p, 1e-3),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 1e-3, momentum=0.9, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, 1e-2),
    "asgd": lambda p: torch.optim.ASGD(p, 1e-2),
    "rprop": lambda p: torch.optim.Rprop(p, 1e-3),
    "adamax": lambda p: torch.optim.Adamax(p, 1e-3),
}
SCHEDULERS = {
    "none": lambda o: None,
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 54),
    "one cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=54),
    "cyclic": lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=5),
    "warm-up": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [torch.optim.lr_scheduler.LinearLR(o, 0.1, total_iters=9), torch.optim.lr_scheduler.ExponentialLR(o, 0.97)],
        [9],
    ),
}


@pytest.mark.parametrize(
    ("optimizer", "scheduler"),
    [*((name, "none") for name in OPTIMIZERS), *(("sgd", name) for name in SCHEDULERS if name != "none")],
)
def test_any_optimizer_and_scheduler_of_torch(optimizer, scheduler):
    model, loss, dataset = made("vae")
    twin = copy.deepcopy(model)
    ours, theirs = OPTIMIZERS[optimizer](model.parameters()), OPTIMIZERS[optimizer](twin.parameters())
    step = Step(model, loss, ours, batches(dataset, BATCH), schedule=SCHEDULERS[scheduler](ours), epochs=EPOCHS)
    assert fit(step).losses == plain_loop(twin, loss, dataset, theirs, SCHEDULERS[scheduler](theirs))


def test_accumulation_and_clipping_to_the_bit():
    model, loss, dataset = made("tied")
    twin = copy.deepcopy(model)
    source = batches(dataset, BATCH)
    step = Step(
        model, loss, torch.optim.SGD(model.parameters(), 0.1), source, epochs=EPOCHS, accumulation=2, clip_norm=0.5
    )
    expected = plain_loop(twin, loss, dataset, torch.optim.SGD(twin.parameters(), 0.1), parts=2, clip=0.5)
    assert fit(step).losses == expected


class Noisy(Dataset):
    """Draws from all three generators, as augmentation in a data set does."""

    def __len__(self):
        return 40

    def __getitem__(self, place):
        noise = torch.randn(3, 8, 8) * random.random()
        return noise + place / 40, place % 3


@pytest.mark.parametrize("kind", ["resnet", "noisy", pytest.param("workers", marks=pytest.mark.slow)])
def test_resume_within_an_epoch_is_bit_identical(kind, tmp_path):
    dataset = TensorDataset(*pictures()) if kind == "resnet" else Noisy()

    def step():
        seed_all(3)
        model = ResNet()
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)
        source = batches(dataset, BATCH, workers=2 if kind == "workers" else 0)
        options = {"schedule": scheduler, "scheduled_by": "epoch", "epochs": 3, "average_decay": 0.9}
        return Step(model, classify, optimizer, source, **options)

    whole = step()
    losses = fit(whole, checkpoints=tmp_path, every_steps=2, keep=100).losses
    places = checkpoints(tmp_path)
    place = places[len(places) // 2]
    again = step()
    rest = fit(again, resume=place).losses
    assert losses[-len(rest) :] == rest and 0 < len(rest) < len(losses)
    assert again.optimizer.param_groups[0]["lr"] == whole.optimizer.param_groups[0]["lr"] < 0.05
    for model, other in ((whole.model, again.model), (whole.average.model, again.average.model)):
        for (key, tensor), same in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
            assert torch.equal(tensor, same), key


def test_the_average_follows_the_weights():
    model, loss, dataset = made("tied")
    expected = copy.deepcopy(model)
    step = Step(model, loss, torch.optim.Adam(model.parameters()), batches(dataset, 35), average_decay=0.8)
    step.source.start(1, 0)
    for span in step.source.spans:
        step.run_recovering(span.shape)
        for mean, weight in zip(expected.parameters(), model.parameters(), strict=True):
            mean.data.lerp_(weight.data, 1 - 0.8)
    assert step.average.model.head.weight is step.average.model.tokens.weight
    for mean, other in zip(expected.parameters(), step.average.model.parameters(), strict=True):
        assert torch.equal(mean, other)


def test_a_test_is_the_mean_over_all_examples_and_picks_the_best(tmp_path, capsys):
    model, loss, dataset = made("resnet")
    images, labels = pictures()

    def score(model, images, labels):
        logits = model(images)
        return {
            "test_loss": nn.functional.cross_entropy(logits, labels, reduction="none"),
            "accuracy": logits.argmax(1) == labels,
            "largest": logits.max(),
        }

    step = Step(model, loss, torch.optim.Adam(model.parameters()), batches(dataset, BATCH), epochs=2)
    outcome = fit(step, test=Test(dataset, score, batch=35), checkpoints=tmp_path)
    logits = model.eval()(images)
    assert outcome.metrics["test_loss"] == pytest.approx(nn.functional.cross_entropy(logits, labels).item(), rel=1e-5)
    assert outcome.metrics["accuracy"] == pytest.approx((logits.argmax(1) == labels).float().mean().item())
    assert (tmp_path / "best.pt").exists() and "largest" in capsys.readouterr().out


# What a graph would not repeat ---------------------------------------------------------------------------------------


class Counting(ResNet):
    def __init__(self):
        super().__init__()
        self.calls = 0

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


def annealed():
    done = 0

    def loss(model, images, labels):
        nonlocal done
        done += 1
        return classify(model, images, labels) * min(1.0, done / 100)

    return loss


def sgd(parameters):
    return torch.optim.SGD(parameters, 0.1, momentum=0.9)


@pytest.mark.parametrize(
    ("network", "loss", "optimizer", "reason"),
    [
        (Counting, classify, sgd, r"changes the model \(Counting\)'s calls on the host"),
        (lambda: Carrying("buffer"), classify, sgd, r"Carrying\)'s buffer seen on the host: write into it"),
        (lambda: Carrying("attribute"), classify, sgd, r"Carrying\)'s seen on the host: make it a buffer"),
        (Skipping, classify, sgd, "draws random numbers on the host"),
        (ResNet, annealed, sgd, "the loss's variable done"),
        (ResNet, classify, lambda p: Own(p, "counts"), "the optimizer's done of parameter 0"),
        (ResNet, classify, lambda p: Own(p, "group"), "the optimizer's done of group 0"),
        (ResNet, classify, lambda p: Own(p, "attribute"), "the optimizer's rounds on the host"),
        (ResNet, classify, lambda p: Own(p, "unknown"), "Own's state d0 is not known"),
        (ResNet, classify, OPTIMIZERS["dampened"], "SGD's state momentum_buffer is not known"),
    ],
)
def test_a_step_that_a_graph_would_not_repeat(network, loss, optimizer, reason):
    model = network()
    step = Step(
        model,
        loss() if loss is annealed else loss,
        optimizer(model.parameters()),
        batches(TensorDataset(*pictures()), 35),
    )
    step.source.start(1, 0)
    with pytest.raises(NotCapturable, match=reason):
        engine.watched_steps(step, step.source.spans[0].shape, fresh=True)


@pytest.mark.parametrize("kind", ["counts", "group", "unknown", "dampened"])
def test_steps_that_are_tried_leave_nothing_behind(kind, monkeypatch):
    def step():
        seed_all(0)
        model = ResNet()
        own = OPTIMIZERS["dampened"] if kind == "dampened" else lambda p: Own(p, kind)
        return Step(model, classify, own(model.parameters()), batches(TensorDataset(*pictures()), 35))

    tried, other = step(), step()
    monkeypatch.setattr(tried, "compile", lambda: None)
    assert fit(tried, engine="compile").losses == fit(other).losses
    for one, same in zip(tried.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(one, same)


@pytest.mark.parametrize(
    "name", ["vae", *(pytest.param(name, marks=pytest.mark.slow) for name in ("resnet", "tied", "lstm", "unet"))]
)
@pytest.mark.parametrize("optimizer", ["sgd", "nadam", "rmsprop", "rprop"])
def test_one_that_it_would_repeat_is_as_before_afterwards(name, optimizer):
    model, loss, dataset = made(name)
    twin = copy.deepcopy(model)
    steps = [Step(net, loss, OPTIMIZERS[optimizer](net.parameters()), batches(dataset, BATCH)) for net in (model, twin)]
    before = engine.snapshot(steps[0].state())
    steps[0].source.start(1, 0)
    engine.watched_steps(steps[0], steps[0].source.spans[0].shape, fresh=True)
    steps[0].restore(before, forget_optimizer=True)
    assert fit(steps[0]).losses == fit(steps[1]).losses


class Shortened(nn.Module):
    """Like minGPT's blocks: a function over the layers, which copy.deepcopy leaves as it is."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        layer = self.layer
        self.short = lambda x: layer(x).relu()

    def forward(self, x):
        return self.short(x.mean((2, 3)))


def test_no_average_of_a_model_whose_copy_would_call_the_original():
    model = Shortened()
    source = batches(TensorDataset(*pictures()), 35)
    with pytest.raises(InputError, match="it's short is a function that calls its layers"):
        Step(model, classify, sgd(model.parameters()), source, average_decay=0.9)
    fit(Step(model, classify, sgd(model.parameters()), source))


# What is refused -----------------------------------------------------------------------------------------------------


class Lines(Dataset):
    def __len__(self):
        return 9

    def __getitem__(self, place):
        return {"image": torch.zeros(2), "caption": "a boat"}


class Uneven(Lines):
    def __getitem__(self, place):
        return torch.zeros(place + 1)


class Torn(Lines):
    def __getitem__(self, place):
        if place == 7:
            raise OSError("no photo of this one")
        return torch.zeros(2)


class Endless(IterableDataset):
    def __iter__(self):
        return iter(())


@pytest.mark.parametrize(
    ("dataset", "error", "reason"),
    [
        (Lines(), DataError, r"an example\['caption'\] is a str: only numbers"),
        (Uneven(), DataError, "examples do not make a batch"),
        (Uneven(), DataError, "fix: pad them in the data set"),
        (Torn(), DataError, "example 7 cannot be read: OSError: no photo of this one"),
        (
            torch.utils.data.DataLoader(TensorDataset(torch.zeros(9, 2))),
            InputError,
            "a DataLoader makes batches by its",
        ),
        (Endless(), InputError, "Endless is not a map-style data set"),
        (TensorDataset(torch.zeros(0, 2)), DataError, "no examples"),
    ],
)
def test_a_data_set_that_make_no_sense(dataset, error, reason):
    with pytest.raises(error, match=reason):
        batches(dataset, 1)


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        (lambda model, x: model(x), r"a tensor of shape \[8, 1\], not one number\n  fix: loss.mean"),
        (lambda model, x: model(x).mean().item(), "gives a float, not a tensor"),
        (lambda model, x: (model(x).mean(), x), "gives a tuple, not a tensor"),
        (lambda model, x: {"mse": model(x).mean()}, "gives mse but no 'loss'"),
        (lambda model, x: model(x).mean().detach(), "does not depend on anything that is trained"),
    ],
)
def test_a_loss_without_a_gradient(loss, reason):
    model = nn.Linear(2, 1)
    with pytest.raises(InputError, match=reason):
        fit(Step(model, loss, sgd(model.parameters()), batches(TensorDataset(torch.zeros(9, 2)), BATCH)))


def test_what_would_train_nothing_is_refused():
    model, other, data = nn.Linear(2, 1), nn.Linear(2, 1), TensorDataset(torch.zeros(9, 2))
    with pytest.raises(InputError, match="none of the model's parameters"):
        Step(model, classify, sgd(other.parameters()), batches(data, BATCH))
    with pytest.raises(InputError, match="a Step takes batches, not a DataLoader"):
        Step(model, classify, sgd(model.parameters()), torch.utils.data.DataLoader(data, BATCH))
    with pytest.raises(InputError, match="a batch of 0"):
        batches(data, 0)


def test_settings_of_fit_that_make_no_sense(tmp_path):
    model, data = nn.Linear(2, 1), TensorDataset(torch.zeros(9, 2))
    step = Step(model, lambda model, x: model(x).mean(), sgd(model.parameters()), batches(data, BATCH))
    with pytest.raises(InputError, match="no setting patence"):
        fit(step, patence=3)
    with pytest.raises(InputError, match="patience follows test_loss, and the test gives mean alone"):
        fit(step, patience=3, test=lambda: {"mean": 1.0})


def test_inside_of_a_run_checkpoints_are_the_runs(tmp_path, monkeypatch, capsys):
    def trained(**named):
        model = nn.Linear(2, 1)
        data = TensorDataset(torch.zeros(9, 2))
        step = Step(model, lambda model, x: model(x).mean(), sgd(model.parameters()), batches(data, BATCH))
        assert "losses" not in repr(fit(step, **named))

    monkeypatch.delenv("SEATRIAL_RUN_DIR", raising=False)
    trained(checkpoints=tmp_path / "own")
    trained(checkpoints=tmp_path / "own", resume=True)
    assert checkpoints(tmp_path / "own") and "nothing is left to train: all 1 epochs" in capsys.readouterr().out
    monkeypatch.setenv("SEATRIAL_RUN_DIR", str(tmp_path / "run"))
    trained(checkpoints=tmp_path / "other", resume=True)
    assert checkpoints(tmp_path / "run/checkpoints") and not (tmp_path / "other").exists()
    assert "in the run's folder" in capsys.readouterr().out
    monkeypatch.setenv("SEATRIAL_RUN_DIR", str(tmp_path / "next"))
    trained(checkpoints=tmp_path / "own", resume=True)  # a new run: what the named folder holds is gone on from
    assert "nothing is left to train" in capsys.readouterr().out


def test_an_optimizer_and_schedulers_that_make_no_sense():
    model, loss, dataset = made("vae")
    source = batches(dataset, BATCH)
    with pytest.raises(InputError, match="LBFGS evaluates the loss several times"):
        Step(model, loss, torch.optim.LBFGS(model.parameters()), source)
    optimizer = sgd(model.parameters())
    for scheduler, reason in (
        (
            torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=5),
            r"OneCycleLR ends before the training.*\n  fix: one of 9 steps",
        ),
        (torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer), "follows the test loss"),
    ):
        with pytest.raises(InputError, match=reason):
            Step(model, loss, optimizer, source, schedule=scheduler)


def test_of_what_a_loss_gives_only_numbers_are_logged(capsys):
    """The output of a model of transformers is a dictionary with the logits in it."""
    model = ResNet()

    def loss(model, images, labels):
        return {
            "loss": classify(model, images, labels),
            "logits": model(images),
            "rate": torch.ones(()),
            "half": 0.5,
            "text": "x",
        }

    fit(Step(model, loss, sgd(model.parameters()), batches(TensorDataset(*pictures()), 35)))
    shown = capsys.readouterr().out
    assert ", rate 1" in shown and ", half 0.5" in shown and "logits" not in shown and "text" not in shown


def test_a_momentum_that_changes_is_not_captured():
    model = ResNet()
    optimizer = sgd(model.parameters())
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9)
    step = Step(model, classify, optimizer, batches(TensorDataset(*pictures()), 35), schedule=scheduler, epochs=3)
    with pytest.raises(NotCapturable, match="the schedule changes momentum too"):
        refuse_beforehand(step)
    assert optimizer.param_groups[0]["momentum"] == 0.95  # where OneCycleLR begins: looking ahead changed nothing


def test_pictures_of_pil_become_bytes():
    image = pytest.importorskip("PIL.Image")
    import numpy as np

    pixels = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3)

    class Photos(Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, place):
            return image.fromarray(pixels + place), place

    source = batches(Photos(), 6)
    source.start(1, 0)
    images, labels = source.load(torch.zeros(1, dtype=torch.long), source.spans[0].shape, 0, 6)
    assert images.shape == (6, 3, 5, 4) and images.dtype == torch.uint8
    assert torch.equal(images[labels == 2][0].permute(1, 2, 0), torch.from_numpy(pixels + 2))


def test_transforms_run_in_the_step_and_rates_follow_a_schedule():
    model, loss, dataset = made("resnet")
    seen = []

    def doubled(images, labels):
        seen.append(len(images))
        return images * 2, labels

    source = batches(dataset, BATCH, transform=doubled, drop_last=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    fit(Step(model, loss, optimizer, source, schedule=cosine(), epochs=1))
    assert seen == [8] * 8 and optimizer.param_groups[0]["lr"] == 0.1 * cosine()(7, 8)
    assert own_models.EXAMPLES == 70
