"""Packed training in steps: resumed within an epoch and captured in graphs, its losses are the same to the bit."""

from contextlib import closing

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from seatrial.train import engine  # noqa: E402
from seatrial.train.data.texts import TextSet  # noqa: E402
from seatrial.train.distributed import Ranks  # noqa: E402
from seatrial.train.evaluation import evaluate  # noqa: E402
from seatrial.train.loop import Settings, fit  # noqa: E402
from seatrial.train.optim.schedules import triangle  # noqa: E402
from seatrial.train.packed.bert import PackedBert  # noqa: E402
from seatrial.train.packed.texts import PackedTexts, packed_tests  # noqa: E402
from seatrial.train.packed.weights import FlatAdamW  # noqa: E402
from seatrial.train.precision import Precision  # noqa: E402
from seatrial.train.saving.rng import seed_all  # noqa: E402
from seatrial.train.step import Step  # noqa: E402
from seatrial.train.trackers import open_trackers  # noqa: E402

pytestmark = pytest.mark.torch
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
WIDE = {"hidden_size": 768, "num_hidden_layers": 2, "num_attention_heads": 12, "intermediate_size": 3072}


def step_of(device, shape, precision, batch, lengths, epochs):
    """Return a step of a BERT of ``shape`` over random texts of these lengths, its PackedBert and its data."""
    ranks, chosen = Ranks(0, 1, device), Precision(precision, device)
    chosen.apply()
    generator = torch.Generator().manual_seed(1)
    tokens = [torch.randint(1, 60, (length,), generator=generator).tolist() for length in lengths]
    data = TextSet.of(tokens, torch.arange(len(lengths)) % 2)
    seed_all(3)
    model = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=60, **shape)).to(device)
    source = PackedTexts(data, batch, ranks, 0)
    bert = PackedBert(model.train(), chosen.dtype, ranks, source, weight_decay=0.01)
    made = Step(
        model, bert.loss, FlatAdamW(bert.weights, 1e-2), source, ranks=ranks, precision=chosen,
        schedule=triangle(0.2), epochs=epochs, clip_norm=1.0, gradients=bert.weights,
    )  # fmt: skip
    return made, bert, data


def trained(folder, resume=None):
    step, bert, data = step_of(CPU, SMALL, "fp32", 4, [2 + number % 7 for number in range(16)], 3)
    settings, tests = (
        Settings(3, checkpoints=folder, every_steps=3, keep=9, resume=resume),
        packed_tests(data, step.ranks),
    )
    with closing(open_trackers([], folder, first=True)) as trackers:
        outcome = fit(
            step, lambda: evaluate(step.model, tests, step.ranks, step.precision, bert.logits), trackers, settings
        )
    return {name: tensor.clone() for name, tensor in step.model.state_dict().items()}, outcome


@pytest.mark.usefixtures("kernels_on_cpu")
def test_resumed_within_an_epoch_to_the_bit_with_words_that_no_step_has_read_since(tmp_path):
    whole, first = trained(tmp_path / "whole")
    again, second = trained(tmp_path / "again", tmp_path / "whole" / "checkpoint-0000000007.pt")
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    assert second.losses == first.losses[7:] and second.metrics == first.metrics
    saved = torch.load(tmp_path / "whole" / "checkpoint-0000000012.pt", weights_only=True)
    name = "bert.embeddings.word_embeddings.weight"
    assert torch.equal(saved["model"][name], whole[name])
    (state,) = (slots for slots in saved["optimizer"]["state"].values() if slots["exp_avg"].shape == whole[name].shape)
    assert float(state["step"]) == 12 and bool(state["exp_avg"].any())


def messages(count):
    """Return lengths as the SMS Spam Collection has them for training: 25 tokens on average."""
    drawn = torch.randn(count, generator=torch.Generator().manual_seed(1))
    return (25 * 0.8 * torch.exp(0.7 * drawn)).long().clamp(3, 128).tolist()


@pytest.mark.usefixtures("kernels_on_cpu")
def test_last_batch_is_tried_out_with_its_own_tables():
    """At step 0 its sums of gradients would follow the first batch's tables, beyond the last one's rows."""
    step, *_ = step_of(CPU, SMALL, "fp32", 4, [2 + number % 7 for number in range(6)], 2)
    step.source.start(1, 0)
    for shape in engine.longest_runs([step.source.spans]):
        engine.watched_steps(step, shape, fresh=True)


def losses_of(name, batch):
    """Return every loss of two epochs, run eagerly or by graphs."""
    step, *_ = step_of(GPU, WIDE, "bf16", batch, messages(4460), 2)
    source, notes, losses = step.source, [], []
    source.start(1, 0)
    prepared = engine.choose_engine(name, step, notes.append)
    assert notes[-1].startswith(f"engine: {name},"), notes
    for epoch in (1, 2):
        source.start(epoch, 0)
        step.start_epoch((epoch - 1) * len(source.spans), 0)
        for span in source.spans:
            prepared.run(span.shape, 1)
        step.reducer.settle()
        losses += step.losses.tolist()
    return losses


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_graphs_of_every_batch_size_give_the_losses_of_eager_steps():
    for batch in (32, 64, 192, 256, 512, 64):
        assert losses_of("graph", batch) == losses_of("eager", batch), batch
