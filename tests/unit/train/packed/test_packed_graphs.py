"""Packed training captured in a graph: at every batch size the losses of an eager training, to the bit."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from seatrial.train import engine  # noqa: E402
from seatrial.train.data.texts import TextSet  # noqa: E402
from seatrial.train.distributed import Ranks  # noqa: E402
from seatrial.train.optim.schedules import triangle  # noqa: E402
from seatrial.train.packed.bert import PackedBert  # noqa: E402
from seatrial.train.packed.texts import PackedTexts  # noqa: E402
from seatrial.train.packed.weights import FlatAdamW  # noqa: E402
from seatrial.train.precision import Precision  # noqa: E402
from seatrial.train.saving.rng import seed_all  # noqa: E402
from seatrial.train.step import Step  # noqa: E402

pytestmark = pytest.mark.torch
#: Messages as the SMS Spam Collection has them for training: so many, of 25 tokens on average.
MESSAGES, MEAN = 4460, 25
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 40}
WIDE = {"hidden_size": 768, "num_hidden_layers": 2, "num_attention_heads": 12, "intermediate_size": 3072}


def step_of(device, shape, precision, batch, messages):
    """A step of a BERT of ``shape`` over random messages."""
    ranks, chosen = Ranks(0, 1, device), Precision(precision, device)
    chosen.apply()
    generator = torch.Generator().manual_seed(1)
    lengths = (MEAN * 0.8 * torch.exp(0.7 * torch.randn(messages, generator=generator))).long().clamp(3, 128)
    tokens = [torch.randint(1, 500, (length,), generator=generator).tolist() for length in lengths.tolist()]
    data = TextSet.of(tokens, torch.arange(messages) % 2)
    seed_all(3)
    model = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=500, **shape)).to(device)
    source = PackedTexts(data, batch, ranks, 0)
    bert = PackedBert(model.train(), chosen.dtype, ranks, source, weight_decay=0.01)
    return Step(
        model, bert.loss, FlatAdamW(bert.weights, 1e-3), source, ranks=ranks, precision=chosen,
        schedule=triangle(0.1), epochs=2, clip_norm=1.0, gradients=bert.weights,
    )  # fmt: skip


def test_last_batch_is_tried_out_with_its_own_tables():
    """At step 0 its sums of gradients would follow the first batch's tables, beyond the last one's rows."""
    step = step_of(torch.device("cpu"), SMALL, "fp32", 16, 20)
    step.source.start(1, 0)
    for shape in engine.longest_runs([step.source.spans]):
        engine.watched_steps(step, shape, fresh=True)


def losses_of(name, batch):
    """Every loss of two epochs, run eagerly or by graphs."""
    step = step_of(torch.device("cuda", 0), WIDE, "bf16", batch, MESSAGES)
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
