"""Models, data, optimizers and schedules of users train to the bit as in a plain loop, on a CPU."""

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402
from torch.optim import lr_scheduler as schedulers  # noqa: E402
from torch.utils.data import Dataset  # noqa: E402

from own_models import BATCH, OWN, classify, plain_loop, points, sgd, small  # noqa: E402
from seatrial.train import Step, Test, batches, fit  # noqa: E402
from seatrial.train.data import batches as batches_file  # noqa: E402
from seatrial.train.errors import InputError  # noqa: E402
from seatrial.train.saving.rng import seed_all  # noqa: E402

pytestmark = pytest.mark.torch


def train_both(
    model, loss, dataset, optimizer, *, epochs=6, scheduler=None, plain=None, twin=None, test=None, **options
):
    """Train a model and its twin by a plain loop; assert that losses and weights are equal to the bit."""
    twin = twin or copy.deepcopy(model)
    ours, theirs = optimizer(model), optimizer(twin)
    collate = options.pop("collate", None)
    source = batches(dataset, BATCH, **({"collate": collate} if collate else {}))
    schedule = scheduler and scheduler(ours)
    outcome = fit(Step(model, loss, ours, source, epochs=epochs, schedule=schedule, **options), test=test)
    shared = {"parts": options.get("accumulation", 1), "clip": options.get("clip_norm"), "collate": collate}
    shared["scheduler"] = scheduler and scheduler(theirs)
    assert outcome.losses == plain_loop(twin, plain or loss, dataset, theirs, epochs, **shared)
    for (key, own), other in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
        assert torch.equal(own, other), key
    return outcome


def own(name):
    network, loss, dataset = OWN[name]
    seed_all(0)
    return network(), loss, dataset()


OPTIMIZERS = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=5e-4, nesterov=True),
    "dampened": lambda model: torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, dampening=0.5),
    "nadam": lambda model: torch.optim.NAdam(model.parameters(), 1e-3),
    "radam": lambda model: torch.optim.RAdam(model.parameters(), 1e-3),
    "rmsprop": lambda model: torch.optim.RMSprop(model.parameters(), 1e-3, momentum=0.9, centered=True),
    "adagrad": lambda model: torch.optim.Adagrad(model.parameters(), 1e-2),
    "asgd": lambda model: torch.optim.ASGD(model.parameters(), 1e-2),
    "rprop": lambda model: torch.optim.Rprop(model.parameters(), 1e-3),
    "adamax": lambda model: torch.optim.Adamax(model.parameters(), 1e-3),
}
SCHEDULERS = {
    "cosine": lambda o: schedulers.CosineAnnealingLR(o, 54),
    "one cycle": lambda o: schedulers.OneCycleLR(o, 0.1, total_steps=54),
    "cyclic": lambda o: schedulers.CyclicLR(o, 0.01, 0.1, step_size_up=5),
    "warm-up": lambda o: schedulers.SequentialLR(
        o, [schedulers.LinearLR(o, 0.1, total_iters=9), schedulers.ExponentialLR(o, 0.97)], [9]
    ),
}


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("streamed", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["resident", "streamed"])
def test_fifty_steps_of_own_models(name, streamed, monkeypatch):
    if streamed:
        monkeypatch.setattr(batches_file, "RESIDENT_SHARE", 0.0)
    outcome = train_both(*own(name), lambda model: torch.optim.AdamW(model.parameters(), 3e-3))
    assert len(outcome.losses) == 54


@pytest.mark.parametrize(
    ("optimizer", "scheduler"), [*((name, None) for name in OPTIMIZERS), *(("sgd", name) for name in SCHEDULERS)]
)
def test_any_optimizer_and_scheduler_of_torch(optimizer, scheduler):
    train_both(*own("vae"), OPTIMIZERS[optimizer], scheduler=SCHEDULERS.get(scheduler))


def test_streamed_batches_accumulation_and_clipping(monkeypatch):
    monkeypatch.setattr(batches_file, "RESIDENT_SHARE", 0.0)
    train_both(*own("tied"), lambda model: torch.optim.SGD(model.parameters(), 0.1), accumulation=2, clip_norm=0.5)


def test_model_that_was_loaded_in_evaluation_trains_and_reports_it(capsys):
    train_both(small().eval(), classify, points(), sgd, epochs=3, twin=small())
    assert "the model was in evaluation mode" in capsys.readouterr().out


@pytest.mark.parametrize("test", ["Test", "function"])
def test_layer_kept_in_evaluation_stays_there_after_a_test(test):
    model = small()
    model[1].eval()  # as fine-tuning keeps normalisation

    def evaluate():
        model.eval()
        return {"test_loss": torch.ones(())}

    def score(model, inputs, labels):
        return {"test_loss": cross_entropy(model(inputs), labels, reduction="none")}

    tested = Test(points(), score) if test == "Test" else evaluate
    outcome = train_both(model, classify, points(), sgd, epochs=3, test=tested)
    assert model.training and not model[1].training
    assert type(outcome.metrics["test_loss"]) is float


class Sentences(Dataset):
    """Sentences of 2 to 6 words."""

    def __len__(self):
        return 20

    def __getitem__(self, place):
        return torch.arange(1, 3 + place % 5), place % 3


def words_first(examples):
    """Pad as torch does by default: [T, B]; lengths as numbers, which packing wants on the host."""
    words = [words for words, _ in examples]
    return nn.utils.rnn.pad_sequence(words), [len(each) for each in words], torch.tensor([y for _, y in examples])


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.cells, self.head = nn.Embedding(9, 8), nn.GRU(8, 8), nn.Linear(8, 3)

    def forward(self, words, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(self.words(words), lengths, enforce_sorted=False)
        return self.head(self.cells(packed)[1][0])


def read(model, words, lengths, labels):
    return cross_entropy(model(words, lengths), labels)


def test_collate_of_ones_own_reaches_the_loss_and_is_not_cut():
    model = Reader()
    tested = Test(Sentences(), lambda *batch: {"one": torch.ones(len(batch[-1]))}, batch=7, collate=words_first)
    outcome = train_both(model, read, Sentences(), sgd, epochs=3, test=tested, collate=words_first)
    assert outcome.metrics == {"one": 1.0}
    source = batches(Sentences(), BATCH, collate=words_first)
    with pytest.raises(InputError, match=r"cannot be taken in parts: its collate gives a tensor of shape \[\d, 8\]"):
        fit(Step(model, read, sgd(model), source, accumulation=2))


class Graphs:
    """A batch of another library's: moves itself."""

    def __init__(self, examples):
        self.nodes = torch.stack([nodes for nodes, _ in examples])
        self.labels = torch.tensor([int(label) for _, label in examples])
        self.moved = None

    def to(self, device):
        self.moved = torch.device(device)
        return self


def test_batch_of_another_library_moves_itself():
    def plain(model, graphs):
        return classify(model, graphs.nodes, graphs.labels)

    def loss(model, graphs):
        assert graphs.moved == torch.device("cpu")
        return plain(model, graphs)

    train_both(small(), loss, points(), sgd, epochs=2, plain=plain, collate=Graphs)
