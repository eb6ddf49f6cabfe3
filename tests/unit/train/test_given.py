"""Parts of users' scripts are trained as there, or refused with the code to write instead."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402
from torch.utils.data import Dataset, TensorDataset  # noqa: E402

from seatrial.train import Step, Test, batches, cosine, fit  # noqa: E402
from seatrial.train.data import batches as batches_file  # noqa: E402
from seatrial.train.data.order import shuffled  # noqa: E402
from seatrial.train.errors import InputError  # noqa: E402
from seatrial.train.saving.checkpoint import checkpoints, load  # noqa: E402
from seatrial.train.saving.rng import seed_all  # noqa: E402

pytestmark = pytest.mark.torch
BATCH = 8


def points(count=20):
    return TensorDataset(torch.randn(count, 6, generator=torch.Generator().manual_seed(0)), torch.arange(count) % 3)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))


def sgd(model):
    return torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)


def classify(model, inputs, labels):
    return cross_entropy(model(inputs), labels)


def score(model, inputs, labels):
    return {"test_loss": cross_entropy(model(inputs), labels, reduction="none")}


def plain_loop(model, loss, dataset, optimizer, epochs, collate=torch.utils.data.default_collate):
    seed_all(0)
    losses = []
    for epoch in range(1, epochs + 1):
        order = shuffled(len(dataset), 0, epoch, torch.device("cpu")).tolist()
        for first in range(0, len(order), BATCH):
            batch = collate([dataset[row] for row in order[first : first + BATCH]])
            optimizer.zero_grad()
            value = loss(model, *batch) if isinstance(batch, (tuple, list)) else loss(model, batch)
            value.backward()
            optimizer.step()
            losses.append(value.item())
    return losses


def test_a_model_that_was_loaded_trains_and_reports_it(capsys):
    model, twin = network().eval(), network()
    expected = plain_loop(twin, classify, points(), sgd(twin), 3)
    assert fit(Step(model, classify, sgd(model), batches(points(), BATCH), epochs=3)).losses == expected
    assert "the model was in evaluation mode" in capsys.readouterr().out


@pytest.mark.parametrize("test", ["Test", "function"])
def test_what_is_kept_in_evaluation_stays_there_after_a_test(test):
    model, twin = network(), network()
    for each in (model, twin):
        each[1].eval()  # as fine-tuning keeps normalisation

    def own():
        model.eval()
        return {"test_loss": torch.ones(())}

    tested = Test(points(), score) if test == "Test" else own
    outcome = fit(Step(model, classify, sgd(model), batches(points(), BATCH), epochs=3), test=tested)
    assert outcome.losses == plain_loop(twin, classify, points(), sgd(twin), 3)
    assert model.training and not model[1].training
    assert type(outcome.metrics["test_loss"]) is float


def test_a_test_that_prints_its_numbers_itself():
    model = network()
    outcome = fit(Step(model, classify, sgd(model), batches(points(), BATCH)), test=lambda: None)
    assert outcome.epochs == 1 and outcome.metrics == {}


def test_a_test_set_that_is_changed_in_place_is_whole_again():
    model, means = network(), []

    def transform(inputs, labels):
        return inputs.sub_(1.0).div_(2.0), labels

    def mean(model, inputs, labels):
        means.append(float(inputs.mean()))
        return {"mean": inputs.mean(1)}

    fit(
        Step(model, classify, sgd(model), batches(points(), BATCH), epochs=3),
        test=Test(points(), mean, transform=transform),
    )
    assert means[0] == means[1] == means[2]


def test_a_streamed_batch_that_is_changed_in_place_is_whole_when_its_step_is_repeated(monkeypatch):
    def transform(inputs, labels):
        return inputs.sub_(1.0), labels

    monkeypatch.setattr(batches_file, "RESIDENT_SHARE", 0.0)
    source = batches(points(), BATCH, transform=transform)
    source.start(1, 0)
    source.before_step()
    first, again = (source.load(torch.zeros(1), source.spans[0].shape, 0, BATCH)[0].clone() for _ in range(2))
    assert torch.equal(first, again)


class Sentences(Dataset):
    """Sentences of 2 to 6 words."""

    def __len__(self):
        return 20

    def __getitem__(self, place):
        return torch.arange(1, 3 + place % 5), place % 3


def words_first(examples):
    """Pad as torch does by default: [T, B]; lengths as numbers, which packing wants on the host."""
    words = [words for words, _ in examples]
    labels = torch.tensor([label for _, label in examples])
    return nn.utils.rnn.pad_sequence(words), [len(each) for each in words], labels


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


def test_what_a_collate_gives_reaches_the_loss():
    model, twin = Reader(), Reader()
    source = batches(Sentences(), BATCH, collate=words_first)
    tested = Test(Sentences(), lambda *batch: {"one": torch.ones(len(batch[-1]))}, batch=7, collate=words_first)
    outcome = fit(Step(model, read, sgd(model), source, epochs=3), test=tested)
    assert outcome.losses == plain_loop(twin, read, Sentences(), sgd(twin), 3, words_first)
    assert outcome.metrics == {"one": 1.0}
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


def test_a_batch_of_another_library_moves_itself():
    def loss(model, graphs):
        assert graphs.moved == torch.device("cpu")
        return classify(model, graphs.nodes, graphs.labels)

    def plain(model, graphs):
        return classify(model, graphs.nodes, graphs.labels)

    model, twin = network(), network()
    losses = fit(Step(model, loss, sgd(model), batches(points(), BATCH, collate=Graphs), epochs=2)).losses
    assert losses == plain_loop(twin, plain, points(), sgd(twin), 2, Graphs)


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


def test_the_average_has_the_buffers_of_the_model():
    model = Tracking()
    step = Step(model, classify, sgd(model), batches(points(), BATCH), average_decay=0.9)
    fit(step)
    assert torch.equal(step.average.model.mean, model.mean) and model.mean.any()
    assert step.average.model.seen == model.seen == 3


def test_a_schedule_of_ones_own_counts_epochs():
    model = network()
    seen = []
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    optimizer.register_step_pre_hook(lambda *_: seen.append(optimizer.param_groups[0]["lr"]))
    decay = {"schedule": lambda epoch, epochs: 0.1**epoch / epochs, "scheduled_by": "epoch"}
    fit(Step(model, classify, optimizer, batches(points(), BATCH), epochs=2, **decay))
    assert seen == pytest.approx([0.5] * 3 + [0.05] * 3)


def test_going_on_with_another_batch_begins_at_the_same_share_of_the_epoch(tmp_path, capsys):
    def step(batch):
        model = network()
        return Step(model, classify, sgd(model), batches(points(24), batch))

    fit(step(4), checkpoints=tmp_path, every_steps=2, keep=9)
    place = next(path for path in checkpoints(tmp_path) if path.stem.endswith("2"))
    assert len(fit(step(8), resume=place).losses) == 2
    assert "an epoch had 6 steps and has 3 now: going on after step 1 of epoch 1" in capsys.readouterr().out


def test_checkpoints_of_fewer_steps_are_newer_than_those_before(tmp_path):
    def trained(batch, epochs):
        model = network()
        step = Step(model, classify, sgd(model), batches(points(24), batch))
        return fit(step, checkpoints=tmp_path, resume=True, epochs=epochs, keep=2)

    def newest():
        return load(checkpoints(tmp_path)[0])["epoch"]

    trained(2, 3)
    for epochs in (4, 5):  # a third of the steps; then the same again
        trained(6, epochs)
        assert newest() == epochs + 1


def test_parts_of_a_step_that_make_no_sense():
    model, other = network(), nn.Linear(3, 3)
    source, optimizer = batches(points(), BATCH), sgd(model)
    both = torch.optim.SGD([*model.parameters(), *other.parameters()], 0.1)
    for parts, sentence in (
        ((model, classify, [optimizer, optimizer], source), r"one optimizer, not a list\n.*GAN"),
        (
            (model, nn.CrossEntropyLoss(), optimizer, source),
            r"CrossEntropyLoss compares outputs(.|\n)*criterion\(model",
        ),
        ((model, None, optimizer, source), "the loss is a NoneType"),
        ((model, classify, both, source), r"2 parameters that the model lacks(.|\n)*ModuleDict"),
    ):
        with pytest.raises(InputError, match=sentence):
            Step(*parts)


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ({"accumulation": 0}, "accumulation=0"),
        ({"clip_norm": 0.0}, "clip_norm=0.0 leaves nothing"),
        ({"average_decay": 2.0}, "average_decay=2.0"),
        ({"schedule": cosine(), "scheduled_by": "steps"}, "neither 'step' nor 'epoch'"),
        ({"schedule": cosine}, r"cosine\(\), with its parentheses"),
        ({"schedule": "cosine"}, "a schedule is a function"),
        ({"schedule": [cosine(), cosine()]}, "2 schedules for 1 parameter groups"),
    ],
)
def test_options_of_a_step_that_make_no_sense(option, sentence):
    model = network()
    with pytest.raises(InputError, match=sentence):
        Step(model, classify, sgd(model), batches(points(), BATCH), **option)


def test_longer_than_the_schedule_is_refused_before_it_trains():
    for schedule in (cosine(), lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 5)):
        model = network()
        optimizer = sgd(model)
        made = schedule(optimizer) if schedule.__name__ == "<lambda>" else schedule
        step = Step(model, classify, optimizer, batches(points(), BATCH), schedule=made)
        with pytest.raises(
            InputError, match=r"after the Step's 1 epochs.* fit\(\) has epochs=3\n  fix: Step\(..., epochs=3\)"
        ):
            fit(step, epochs=3)


@pytest.mark.parametrize("setting", ["keep", "every_steps", "patience", "test_every", "save_every"])
@pytest.mark.parametrize("value", [0, -1, "3", 1.5])
def test_settings_that_count_nothing(setting, value):
    model = network()
    step = Step(model, classify, sgd(model), batches(points(), BATCH))
    with pytest.raises(InputError, match=f"{setting}={value!r} is not a whole number of 1 or more"):
        fit(step, test=lambda: {"test_loss": 1.0}, **{setting: value})


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (lambda *_: torch.ones(()), "the score gives a Tensor, not a dictionary"),
        (lambda *_: {"loss": torch.ones(3, 7)}, r"gives loss of shape \[3, 7\] for 20 examples"),
    ],
)
def test_a_score_that_make_no_sense(given, sentence):
    model = network()
    with pytest.raises(InputError, match=sentence):
        fit(Step(model, classify, sgd(model), batches(points(), BATCH)), test=Test(points(), given))


def test_a_sampler_orders_the_examples_of_every_epoch():
    seen = []

    class Recorded(Dataset):
        def __len__(self):
            return 20

        def __getitem__(self, place):
            return torch.tensor(float(place)), place

    def loss(model, inputs, places):
        seen.extend(places.tolist())
        return model(inputs[:, None]).mean()

    def trained(sampler, **options):
        seen.clear()
        model = nn.Linear(1, 1)
        fit(Step(model, loss, sgd(model), batches(Recorded(), 4, sampler=sampler), epochs=2), **options)
        return list(seen)

    assert trained(range(20)) == [*range(20), *range(20)]
    assert trained([3, 1, 2, 0]) == [3, 1, 2, 0] * 2
    weighted = torch.utils.data.WeightedRandomSampler([1.0] * 5 + [0.0] * 15, 12)
    drawn = trained(weighted)
    assert set(drawn) <= set(range(5)) and drawn[:12] != drawn[12:]
    torch.manual_seed(7)  # what is drawn follows from seed and epoch
    assert trained(weighted) == drawn
    for sampler, sentence in (
        ([5, 20, 1, 2], "outside of the 20 examples"),
        ([[1, 2]] * 4, "no places in the data set"),
        (iter([1]), "no __len__"),
        (torch.utils.data.RandomSampler(Recorded(), True, 10**10), "10,000,000,000 examples in an epoch"),
        (torch.utils.data.DistributedSampler(Recorded(), 2, 0), "deals the examples to the ranks itself"),
    ):
        with pytest.raises(InputError, match=sentence):
            trained(sampler)


@pytest.mark.parametrize("arrays", [{"x": torch.zeros(9, 2)}, (torch.zeros(9, 2), torch.zeros(9))])
def test_arrays_are_no_data_set(arrays):
    with pytest.raises(
        InputError, match=r"of whole arrays or sets is not a data set(.|\n)*TensorDataset\(inputs, labels\)"
    ):
        batches(arrays, 2)
