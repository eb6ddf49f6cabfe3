"""The loop: curves, resume, checkpoints, tests, averages, schedules, progress, NaN and early stopping."""

import random
from functools import partial

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import Dataset, TensorDataset, WeightedRandomSampler  # noqa: E402

from own_models import OWN, ResNet, classify, mean, pictures, points, sgd, small, step_of  # noqa: E402
from seatrial.train import Test, batches, cosine, fit, progress  # noqa: E402
from seatrial.train.data import batches as batches_file  # noqa: E402
from seatrial.train.data.images import stream_images  # noqa: E402
from seatrial.train.engine import choose_engine  # noqa: E402
from seatrial.train.errors import CheckpointError, DivergedError, TrainError  # noqa: E402
from seatrial.train.loop import Settings  # noqa: E402
from seatrial.train.loop import fit as run_loop  # noqa: E402
from seatrial.train.optim.optimizer import adam  # noqa: E402
from seatrial.train.saving.checkpoint import checkpoints, load  # noqa: E402
from seatrial.train.saving.rng import seed_all  # noqa: E402
from seatrial.train.trackers import Trackers  # noqa: E402

pytestmark = pytest.mark.torch
cross_entropy = nn.functional.cross_entropy


def train(step, epochs=3, losses=None, trackers=(), **settings):
    """Run the loop with a test that gives these losses; return its outcome."""
    answers = iter(losses or [1.0] * 100)

    def test():
        return {"test_loss": next(answers), "accuracy": 0.5}

    return run_loop(step, test, Trackers(list(trackers)), Settings(epochs, **settings))


def equal(model, other):
    return all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))


# One step, in every way of running it --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "settings", "rel"),
    [
        *(pytest.param({"accumulation": n}, {}, 1e-4, id=f"{n} micro-batches") for n in (2, 4, 32)),
        pytest.param({"source": stream_images}, {}, 0.0, id="streamed"),
        pytest.param({"optimizer": lambda m: torch.optim.Adam(m.parameters(), 1e-2)}, {}, 1e-5, id="torch's Adam"),
        pytest.param({}, {"engine": "graph"}, 0.0, id="a graph, which a CPU has not"),
        pytest.param({}, {"engine": "compile"}, 1e-3, id="compiled", marks=pytest.mark.slow),
    ],
)
def test_same_curve(make_step, options, settings, rel, capsys):
    assert train(make_step(**options), **settings).losses == pytest.approx(train(make_step()).losses, rel=rel)
    graph = settings.get("engine") == "graph"
    assert ("no CUDA graph on a CPU; steps run eagerly" in capsys.readouterr().out) == graph


def test_bf16_learns_too(make_step):
    losses = train(make_step(precision="bf16")).losses
    assert losses != train(make_step()).losses and losses[-1] < 0.5 * losses[0]


def too_large(rows, model, images, labels):
    result = cross_entropy(model(images), labels)
    if len(labels) > rows:
        raise torch.OutOfMemoryError("CUDA out of memory (made by the test)")
    return result


def test_out_of_memory_gives_the_curve_of_the_smaller_micro_batch(make_step, capsys):
    def network():
        return nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 3))

    recovered, smaller = (
        make_step(network=network, loss=partial(too_large, 9)),
        make_step(network=network, accumulation=4),
    )
    assert train(recovered).losses == train(smaller).losses
    assert recovered.micro_batch.rows == 8
    assert equal(smaller.model, recovered.model), "running means were put back as well"
    assert "out of memory with micro-batches of 16 rows: continuing with 8" in capsys.readouterr().out
    with pytest.raises(TrainError, match="out of memory even with micro-batches of 1 row"):
        train(make_step(loss=partial(too_large, 0)))


def test_schedule_moves_a_rate_that_is_a_tensor_or_a_number(make_step):
    step = make_step(schedule=cosine(), epochs=2)
    train(step, epochs=2)
    assert 0 < step.optimizer.param_groups[0]["lr"].item() < 1e-2 * 0.05
    step = make_step(optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1), schedule=cosine(), epochs=2)
    train(step, epochs=2)
    assert step.optimizer.param_groups[0]["lr"] == 0.1 * cosine()(9, 10)
    rates, model = [], small()
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    optimizer.register_step_pre_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"]))
    decay = {"schedule": lambda epoch, epochs: 0.1**epoch / epochs, "scheduled_by": "epoch"}
    fit(step_of(model, optimizer=lambda _: optimizer, epochs=2, **decay))
    assert rates == pytest.approx([0.5] * 3 + [0.05] * 3)


def test_parameter_is_frozen_after_its_epochs_and_compiling_tries_every_phase(make_step, monkeypatch):
    seen, frozen_after = [], []

    def loss(model, images, labels):
        seen.append((model[1].bias.requires_grad, model[1].bias.detach().clone()))
        return cross_entropy(model(images), labels)

    def optimizer(model):
        frozen_after.append((model[1].bias, 2))  # the model is there when the step is made
        return adam(model, 1e-2)

    def network():
        return nn.Sequential(nn.Flatten(), nn.Linear(36, 3))

    step = make_step(network=network, loss=loss, optimizer=optimizer, frozen_after=frozen_after, epochs=4)
    bias, steps = step.model[1].bias, len(step.source.spans)
    first = bias.detach().clone()
    train(step, 4)
    assert step.phases == 1 and [wanted for wanted, _ in seen] == [True] * 2 * steps + [False] * 2 * steps
    assert not torch.equal(seen[2 * steps][1], first) and torch.equal(seen[2 * steps][1], seen[-1][1])
    step.start_epoch(0, 0)
    assert bias.requires_grad
    seen.clear()
    monkeypatch.setattr(step, "compile", lambda: None)
    choose_engine("compile", step, print)
    assert {wanted for wanted, _ in seen} == {True, False}


# Checkpoints ---------------------------------------------------------------------------------------------------------


class Noisy(Dataset):
    """Draws from all three generators, as augmentation in a data set does."""

    def __len__(self):
        return 40

    def __getitem__(self, place):
        return torch.randn(3, 8, 8) * random.random() + place / 40, place % 3


@pytest.mark.parametrize("kind", ["resnet", "noisy", pytest.param("workers", marks=pytest.mark.slow)])
def test_resume_within_an_epoch_is_bit_identical(kind, tmp_path):
    dataset = TensorDataset(*pictures()) if kind == "resnet" else Noisy()

    def step():
        seed_all(3)
        model = ResNet()
        optimizer = sgd(model)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)
        options = {"schedule": scheduler, "scheduled_by": "epoch", "epochs": 3, "average_decay": 0.9}
        loading = {"workers": 2 if kind == "workers" else 0}
        return step_of(model, dataset=dataset, optimizer=lambda _: optimizer, loading=loading, **options)

    whole = step()
    losses = fit(whole, checkpoints=tmp_path, every_steps=2, keep=100).losses
    places = checkpoints(tmp_path)
    again = step()
    rest = fit(again, resume=places[len(places) // 2]).losses
    assert losses[-len(rest) :] == rest and 0 < len(rest) < len(losses)
    assert again.optimizer.param_groups[0]["lr"] == whole.optimizer.param_groups[0]["lr"] < 0.05
    assert equal(whole.model, again.model) and equal(whole.average.model, again.average.model)


def test_nan_stops_names_the_step_and_keeps_what_was_good(make_step, tmp_path):
    calls = iter(range(1, 100))

    def loss(model, images, labels):
        return cross_entropy(model(images), labels) * (float("nan") if next(calls) == 5 + 3 else 1.0)

    with pytest.raises(DivergedError, match="the loss became nan in epoch 2 at step 3"):
        train(make_step(loss=loss), checkpoints=tmp_path)
    (good,) = checkpoints(tmp_path)
    assert good.name == "checkpoint-0000000005.pt"
    assert all(tensor.isfinite().all() for tensor in load(good)["model"].values())


def test_early_stopping_and_the_best_checkpoint(make_step, tmp_path):
    outcome = train(make_step(), 10, [3.0, 2.0, 2.5, 2.1, 1.0], patience=2, checkpoints=tmp_path, keep=1)
    assert outcome.epochs == 4
    assert load(tmp_path / "best.pt")["epoch"] == 3  # saved after epoch 2: goes on with the third
    assert len(checkpoints(tmp_path)) == 1


def test_checkpoints_of_some_epochs_only(make_step, tmp_path):
    train(make_step(), 5, checkpoints=tmp_path, save_every=3, keep=9)
    found = {torch.load(path, weights_only=True)["epoch"] for path in tmp_path.glob("checkpoint-*.pt")}
    assert found == {2, 4, 6}  # the best, every third, and the last: each names the epoch to go on with


def test_another_models_checkpoint_and_weights_alone_are_refused(make_step, tmp_path):
    train(make_step(), 1, checkpoints=tmp_path)
    narrow = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 3))
    with pytest.raises(CheckpointError, match=r"1\.weight is \(16, 36\) there, \(8, 36\) here"):
        train(make_step(network=lambda: narrow), resume=tmp_path)
    torch.save(make_step().model.state_dict(), tmp_path / "mnist.pth")
    with pytest.raises(CheckpointError, match="is not a checkpoint: it contains model weights"):
        train(make_step(), resume=tmp_path / "mnist.pth")


@pytest.mark.parametrize("epochs", [1, 2])
def test_training_that_is_done_is_tested_alone(make_step, tmp_path, epochs):
    train(make_step(), 2, losses=[1.0, 0.5], checkpoints=tmp_path)
    outcome = train(make_step(), epochs, losses=[0.25], resume=tmp_path)
    assert (outcome.metrics, outcome.epochs, outcome.losses) == ({"accuracy": 0.5, "test_loss": 0.25}, 0, [])


def test_another_batch_goes_on_at_the_same_share_of_the_epoch_and_its_checkpoints_are_newer(tmp_path, capsys):
    def trained(batch, **settings):
        return fit(step_of(dataset=points(24), batch=batch), **settings)

    trained(4, checkpoints=tmp_path / "a", every_steps=2, keep=9)
    place = next(path for path in checkpoints(tmp_path / "a") if path.stem.endswith("2"))
    assert len(trained(8, resume=place).losses) == 2
    assert "an epoch had 6 steps and has 3 now: going on after step 1 of epoch 1" in capsys.readouterr().out
    for batch, epochs in ((2, 3), (6, 4), (6, 5)):  # a third of the steps; then the same again
        trained(batch, checkpoints=tmp_path / "b", resume=True, epochs=epochs, keep=2)
        assert load(checkpoints(tmp_path / "b")[0])["epoch"] == epochs + 1


def test_inside_of_a_run_checkpoints_are_the_runs(tmp_path, monkeypatch, capsys):
    def trained(folder, run=None, **settings):
        monkeypatch.setenv("SEATRIAL_RUN_DIR", str(tmp_path / run)) if run else None
        fit(step_of(nn.Linear(2, 1), mean, TensorDataset(torch.zeros(9, 2))), checkpoints=tmp_path / folder, **settings)
        return capsys.readouterr().out

    monkeypatch.delenv("SEATRIAL_RUN_DIR", raising=False)
    trained("own")
    assert "nothing is left to train: all 1 epochs" in trained("own", resume=True) and checkpoints(tmp_path / "own")
    assert "in the run's folder" in trained("other", "run", resume=True)
    assert checkpoints(tmp_path / "run/checkpoints") and not (tmp_path / "other").exists()
    # A new run goes on from what the named folder holds.
    assert "nothing is left to train" in trained("own", "next", resume=True)


# Tests, averages, data -----------------------------------------------------------------------------------------------


def test_test_is_the_mean_over_all_examples_and_picks_the_best(tmp_path, capsys):
    images, labels = pictures()

    def score(model, images, labels):
        logits = model(images)
        right, each = logits.argmax(1) == labels, cross_entropy(logits, labels, reduction="none")
        return {"test_loss": each, "accuracy": right, "largest": logits.max()}

    dataset, model = TensorDataset(images, labels), ResNet()
    step = step_of(model, dataset=dataset, epochs=2)
    outcome = fit(step, test=Test(dataset, score, batch=35), checkpoints=tmp_path)
    logits = model.eval()(images)
    assert outcome.metrics["test_loss"] == pytest.approx(cross_entropy(logits, labels).item(), rel=1e-5)
    assert outcome.metrics["accuracy"] == pytest.approx((logits.argmax(1) == labels).float().mean().item())
    assert (tmp_path / "best.pt").exists() and "largest" in capsys.readouterr().out
    assert fit(step_of(), test=lambda: None).metrics == {}, "a test that prints its numbers itself"


def test_batches_that_a_transform_changes_in_place_are_whole_again(monkeypatch):
    means = []

    def transform(inputs, labels):
        return inputs.sub_(1.0).div_(2.0), labels

    def score(model, inputs, labels):
        means.append(float(inputs.mean()))
        return {"mean": inputs.mean(1)}

    fit(step_of(epochs=3), test=Test(points(), score, transform=transform))
    assert means[0] == means[1] == means[2]
    monkeypatch.setattr(batches_file, "RESIDENT_SHARE", 0.0)
    source = batches(points(), 8, transform=transform)
    source.start(1, 0)
    source.before_step()
    first, again = (source.load(torch.zeros(1), source.spans[0].shape, 0, 8)[0].clone() for _ in range(2))
    assert torch.equal(first, again), "a streamed step is repeated"


def test_transforms_run_in_the_step_and_the_last_rows_may_be_dropped():
    seen = []

    def doubled(inputs, labels):
        seen.append(len(inputs))
        return inputs * 2, labels

    fit(step_of(loading={"transform": doubled, "drop_last": True}))
    assert seen == [8, 8]


class Tracking(nn.Module):
    """Puts a new tensor in its buffer's place, and has one that no file gets."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, inputs):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * inputs.mean(0)
            self.seen += 1
        return self.layer(inputs - self.mean)


def test_average_follows_weights_ties_and_buffers():
    network, loss, dataset = OWN["tied"]
    model, expected = network(), network()
    expected.load_state_dict(model.state_dict())
    step = step_of(model, loss, dataset(), batch=35, average_decay=0.8)
    step.source.start(1, 0)
    for span in step.source.spans:
        step.run_recovering(span.shape)
        for each, weight in zip(expected.parameters(), model.parameters(), strict=True):
            each.data.lerp_(weight.data, 1 - 0.8)
    assert step.average.model.head.weight is step.average.model.tokens.weight
    assert equal(expected, step.average.model)
    model = Tracking()
    step = step_of(model, average_decay=0.9)
    fit(step)
    assert torch.equal(step.average.model.mean, model.mean) and model.mean.any()
    assert step.average.model.seen == model.seen == 3
    model.mean = torch.arange(5.0)  # it grows
    step.average.update()
    assert torch.equal(step.average.model.mean, model.mean) and step.average.model.mean is not model.mean
    del model.mean
    step.average.update()


def test_sampler_orders_the_examples_of_every_epoch():
    seen, places = [], TensorDataset(torch.arange(20.0)[:, None], torch.arange(20))

    def loss(model, inputs, labels):
        seen.extend(labels.tolist())
        return model(inputs).mean()

    def trained(sampler):
        seen.clear()
        fit(step_of(nn.Linear(1, 1), loss, places, batch=4, loading={"sampler": sampler}, epochs=2))
        return list(seen)

    assert trained(range(20)) == [*range(20), *range(20)]
    assert trained([3, 1, 2, 0]) == [3, 1, 2, 0] * 2
    weighted = WeightedRandomSampler([1.0] * 5 + [0.0] * 15, 12)
    drawn = trained(weighted)
    assert set(drawn) <= set(range(5)) and drawn[:12] != drawn[12:]
    torch.manual_seed(7)  # what is drawn follows from seed and epoch
    assert trained(weighted) == drawn


def test_pictures_of_pil_become_bytes():
    image = pytest.importorskip("PIL.Image")
    pixels = torch.arange(5 * 4 * 3, dtype=torch.uint8).reshape(5, 4, 3)
    source = batches([(image.fromarray((pixels + place).numpy()), place) for place in range(6)], 6)
    source.start(1, 0)
    images, labels = source.load(torch.zeros(1, dtype=torch.long), source.spans[0].shape, 0, 6)
    assert images.shape == (6, 3, 5, 4) and images.dtype == torch.uint8
    assert torch.equal(images[labels == 2][0].permute(1, 2, 0), pixels + 2)


# What is printed and tracked -----------------------------------------------------------------------------------------


class Kept(list):
    """Keeps the values it gets."""

    write = list.append

    def close(self):
        """Nothing is held."""


@pytest.mark.parametrize("log_steps", [100, 2, 0])
def test_trackers_get_the_same_losses_once(make_step, monkeypatch, capsys, log_steps):
    def tracked(every_s):
        monkeypatch.setattr(progress, "EVERY_S", every_s)
        kept = Kept()
        train(make_step(), 2, trackers=[kept], log_steps=log_steps)
        assert kept[0] == {"step": 0, "epoch": 1, "phase": "train"}, "the first line marks when the training began"
        lines = [line for line in capsys.readouterr().out.splitlines() if ": step " in line]
        return [(one["step"], one["step_loss"]) for one in kept if "step_loss" in one], lines

    often, lines = tracked(0.0)
    seldom, none = tracked(1e9)
    assert often == seldom and often and none == []
    assert len(lines) == 2 * 4  # five steps an epoch, the last of which is the epoch's own line
    assert lines[0].startswith("epoch 1/2: step 1 of 5, loss ") and lines[0].endswith(" s left")
    assert lines[-1].startswith("epoch 2/2: step 4 of 5, loss ")


def test_loss_that_is_nan_is_not_reported_before_the_epochs_end_names_it(make_step, monkeypatch, capsys):
    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    with pytest.raises(DivergedError, match="in epoch 1 at step 1"):
        train(make_step(loss=lambda model, x, y: cross_entropy(model(x), y) * float("nan")), 2)
    assert ": step " not in capsys.readouterr().out


def test_of_what_a_loss_gives_only_numbers_are_logged(capsys):
    """The output of a model of transformers is a dictionary with the logits in it."""

    def loss(model, inputs, labels):
        others = {"logits": model(inputs), "rate": torch.ones(()), "half": 0.5, "text": "x"}
        return {"loss": classify(model, inputs, labels), **others}

    fit(step_of(loss=loss))
    shown = capsys.readouterr().out
    assert ", rate 1" in shown and ", half 0.5" in shown and "logits" not in shown and "text" not in shown
