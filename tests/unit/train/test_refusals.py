"""Parts, options and data that make no sense are refused in one sentence, with what to write instead."""

import itertools
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.optim import lr_scheduler as schedulers  # noqa: E402
from torch.utils import data  # noqa: E402

from own_models import BATCH, mean, points, sgd, step_of  # noqa: E402
from seatrial.train import Step, Test, batches, cosine, fit  # noqa: E402
from seatrial.train.data.images import ImageSet  # noqa: E402
from seatrial.train.data.texts import TextSet  # noqa: E402
from seatrial.train.errors import DataError, InputError  # noqa: E402
from seatrial.train.memory import cap  # noqa: E402
from seatrial.train.precision import choose_precision  # noqa: E402
from seatrial.train.trackers import open_trackers  # noqa: E402

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")
MODEL, OTHER, NINE = nn.Linear(2, 1), nn.Linear(2, 1), data.TensorDataset(torch.zeros(9, 2))
BYTES = torch.zeros(2, 1, 2, 2, dtype=torch.uint8)


class Items(data.Dataset):
    """Nine examples, each what a function gives for its place."""

    def __init__(self, item):
        self.item = item

    def __len__(self):
        return 9

    def __getitem__(self, place):
        return self.item(place)


def torn(place):
    if place == 7:
        raise OSError("no photo of this one")
    return torch.zeros(2)


class Endless(data.IterableDataset):
    def __iter__(self):
        return itertools.repeat(0)

    def __len__(self):
        return 8


def load(dataset):
    batches(dataset, 1)


def sample(sampler):
    fit(step_of(loading={"sampler": sampler}))


def lose(loss):
    fit(step_of(MODEL, loss, NINE))


def make(options):
    return step_of(MODEL, mean, NINE, **options)


def parts(given):
    model = given.get("model", MODEL)
    whole = {"model": model, "loss": mean, "optimizer": sgd(MODEL), "source": batches(NINE, BATCH), **given}
    Step(whole["model"], whole["loss"], whole["optimizer"], whole["source"])


def schedule(scheduler):
    optimizer = sgd(MODEL)
    return Step(MODEL, mean, optimizer, batches(NINE, 1), schedule=scheduler(optimizer))


def train(settings):
    fit(make({}), **settings)


def train_longer(scheduler):
    fit(schedule(scheduler), epochs=3)


def score(given):
    fit(step_of(), test=Test(points(), lambda *_: given))


def precise(name):
    choose_precision(name, CPU)


def cap_memory(share):
    cap(share, CPU)


BOTH = torch.optim.SGD([*MODEL.parameters(), *OTHER.parameters()], 0.1)
LONGER = r"after the Step's 1 epochs.* fit\(\) has epochs=3\n  fix: Step\(..., epochs=3\)"
WHOLE = r"of whole arrays or sets is not a data set(.|\n)*TensorDataset\(inputs, labels\)"

#: Action, what it gets, the sentence.
REFUSED = {
    "text in an example": (load, Items(lambda _: {"of": "a boat"}), r"an example\['of'\] is a str: only numbers"),
    "examples of several lengths": (load, Items(lambda place: torch.zeros(place + 1)), r"make a batch(.|\n)*fix: pad"),
    "example that cannot be read": (load, Items(torn), "example 7 cannot be read: OSError: no photo of this one"),
    "no examples": (load, data.TensorDataset(torch.zeros(0, 2)), "no examples"),
    "loader as data": (load, data.DataLoader(NINE), "a DataLoader makes batches by its"),
    "iterable data": (load, Endless(), "Endless is not a map-style data set"),
    "arrays in a dictionary": (load, {"x": torch.zeros(9, 2)}, WHOLE),
    "arrays in a tuple": (load, (torch.zeros(9, 2), torch.zeros(9)), WHOLE),
    "batch of 0": (lambda batch: batches(NINE, batch), 0, "a batch of 0"),
    "label without a class": (lambda labels: ImageSet(BYTES, labels, 3), torch.tensor([0, 7]), "run from 0 to 7, but"),
    "text beyond the model": (lambda texts: TextSet.of(texts, torch.zeros(1)), [[1] * 513], "a text has 513 tokens"),
    "sampler of batches": (sample, data.BatchSampler(range(40), 4, drop_last=False), "no places in the data set"),
    "sampler of lists": (sample, [[1, 2]] * 8, "no places in the data set"),
    "sampler beyond the examples": (sample, [5, 20, 1, 2] * 2, "outside of the 20 examples"),
    "sampler without a length": (sample, iter([1]), "no __len__"),
    "sampler without an end": (sample, Endless(), "gives more examples in epoch 1, and its length is 8"),
    "sampler of too many": (sample, data.RandomSampler(points(), True, 10**10), "10,000,000,000 examples in an epoch"),
    "sampler that deals": (sample, data.DistributedSampler(points(), 2, 0), "deals the examples to the ranks itself"),
    "loss of each row": (lose, lambda model, x: model(x), r"of shape \[8, 1\], not one number\n  fix: loss.mean"),
    "loss as a float": (lose, lambda model, x: mean(model, x).item(), "gives a float, not a tensor"),
    "loss as a tuple": (lose, lambda model, x: (mean(model, x), x), "gives a tuple, not a tensor"),
    "loss under another name": (lose, lambda model, x: {"mse": mean(model, x)}, "gives mse but no 'loss'"),
    "loss without a gradient": (
        lose,
        lambda model, x: mean(model, x).detach(),
        "not depend on anything that is trained",
    ),
    "criterion as loss": (parts, {"loss": nn.CrossEntropyLoss()}, r"compares outputs(.|\n)*criterion\(model"),
    "no loss": (parts, {"loss": None}, "the loss is a NoneType"),
    "two optimizers": (parts, {"optimizer": [1, 2]}, r"one optimizer, not a list\n.*GAN"),
    "loader as source": (parts, {"source": data.DataLoader(NINE)}, "a Step takes batches, not a DataLoader"),
    "another model's parameters": (parts, {"model": OTHER}, "none of the model's parameters"),
    "parameters of another model, too": (
        parts,
        {"optimizer": BOTH},
        r"2 parameters that the model lacks(.|\n)*ModuleDict",
    ),
    "LBFGS": (parts, {"optimizer": torch.optim.LBFGS(MODEL.parameters())}, "LBFGS evaluates the loss several times"),
    "schedule too short": (schedule, lambda o: schedulers.OneCycleLR(o, 0.1, total_steps=5), r"fix: one of 9 steps"),
    "schedule of the test loss": (schedule, schedulers.ReduceLROnPlateau, "needs the test loss"),
    "longer than our schedule": (train_longer, lambda _: cosine(), LONGER),
    "longer than torch's schedule": (train_longer, lambda optimizer: schedulers.StepLR(optimizer, 5), LONGER),
    "schedule not called": (make, {"schedule": cosine}, r"cosine\(\), with its parentheses"),
    "schedule by name": (make, {"schedule": "cosine"}, "a schedule is a function"),
    "schedules beyond the groups": (make, {"schedule": [cosine()] * 2}, "2 schedules for 1 parameter groups"),
    "schedule counting steps": (make, {"schedule": cosine(), "scheduled_by": "steps"}, "neither 'step' nor 'epoch'"),
    "accumulation of 0": (make, {"accumulation": 0}, "accumulation=0"),
    "clipping to 0": (make, {"clip_norm": 0.0}, "clip_norm=0.0 leaves nothing"),
    "average that decays by 2": (make, {"average_decay": 2.0}, "average_decay=2.0"),
    "setting that is none": (train, {"patence": 3}, "no setting patence"),
    "patience without a test loss": (
        train,
        {"patience": 3, "test": lambda: {"mean": 1.0}},
        "the test gives mean alone",
    ),
    "engine that is none": (train, {"engine": "warp"}, "engine 'warp' is not one of auto, eager"),
    "score that is a tensor": (score, torch.ones(()), "the score gives a Tensor, not a dictionary"),
    "score of other rows": (score, {"loss": torch.ones(3, 7)}, r"gives loss of shape \[3, 7\] for 20 examples"),
    "fp16 on a CPU": (precise, "fp16", "fp16 needs a GPU"),
    "tf32 on a CPU": (precise, "tf32", "tf32 needs a GPU"),
    "memory of no GPU": (cap_memory, 0.5, "needs a GPU"),
    "memory above 1": (cap_memory, 1.5, "above 0 and at most 1"),
    "tracker that is none": (lambda names: open_trackers(names, Path()), ["abacus"], "no tracker 'abacus'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_sentence(case, monkeypatch):
    monkeypatch.delenv("SEATRIAL_EVENTS", raising=False)
    act, given, sentence = REFUSED[case]
    with pytest.raises((InputError, DataError), match=sentence):
        act(given)


@pytest.mark.parametrize("setting", ["keep", "every_steps", "patience", "test_every", "save_every"])
@pytest.mark.parametrize("value", [0, -1, "3", 1.5])
def test_settings_that_count_nothing(setting, value):
    with pytest.raises(InputError, match=f"{setting}={value!r} is not a whole number of 1 or more"):
        fit(make({}), test=lambda: {"test_loss": 1.0}, **{setting: value})


class Shortened(nn.Module):
    """Like minGPT's blocks: a function over the layers, which copy.deepcopy leaves as it is."""

    def __init__(self):
        super().__init__()
        self.layer = layer = nn.Linear(6, 3)
        self.short = lambda x: layer(x).relu()

    def forward(self, x):
        return self.short(x)


def test_no_average_of_a_model_whose_copy_would_call_the_original():
    with pytest.raises(InputError, match="it's short is a function that calls its layers"):
        step_of(Shortened(), average_decay=0.9)
    fit(step_of(Shortened()))
