"""Packed training in the loop: going on from a checkpoint within an epoch gives the same weights to the bit."""

from contextlib import closing

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from seatrial.train.data.texts import TextSet  # noqa: E402
from seatrial.train.distributed import Ranks  # noqa: E402
from seatrial.train.evaluation import evaluate  # noqa: E402
from seatrial.train.loop import Settings, fit  # noqa: E402
from seatrial.train.optim.schedules import triangle  # noqa: E402
from seatrial.train.packed.bert import PackedBert  # noqa: E402
from seatrial.train.packed.texts import PackedTests, PackedTexts  # noqa: E402
from seatrial.train.packed.weights import FlatAdamW  # noqa: E402
from seatrial.train.precision import Precision  # noqa: E402
from seatrial.train.saving.rng import seed_all  # noqa: E402
from seatrial.train.step import Step  # noqa: E402
from seatrial.train.trackers import open_trackers  # noqa: E402

pytestmark = pytest.mark.torch
ALONE = Ranks(0, 1, torch.device("cpu"))


def trained(folder, resume=None):
    seed_all(3)
    config = transformers.BertConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=40
    )
    model = transformers.BertForSequenceClassification(config).train()
    generator = torch.Generator().manual_seed(1)
    tokens = [torch.randint(1, 60, (2 + number % 7,), generator=generator).tolist() for number in range(24)]
    data = TextSet.of(tokens, torch.arange(24) % 2)
    precision, source = Precision("fp32", ALONE.device), PackedTexts(data, 4, ALONE, 0)
    bert = PackedBert(model, torch.float32, ALONE, source, weight_decay=0.01)
    step = Step(
        model, bert.loss, FlatAdamW(bert.weights, 1e-2), source, ranks=ALONE, precision=precision,
        schedule=triangle(0.2), epochs=3, clip_norm=1.0, gradients=bert.weights,
    )  # fmt: skip
    settings = Settings(epochs=3, checkpoints=folder, every_steps=4, keep=9, resume=resume)
    tests = PackedTests(data, ALONE)
    with closing(open_trackers([], folder, first=True)) as trackers:
        outcome = fit(step, lambda: evaluate(model, tests, ALONE, precision, bert.logits), trackers, settings)
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}, outcome


def test_resumed_within_an_epoch_to_the_bit(tmp_path):
    whole, first = trained(tmp_path / "whole")
    middle = tmp_path / "whole" / "checkpoint-0000000010.pt"
    again, second = trained(tmp_path / "again", middle)
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    assert second.losses == first.losses[10:] and second.metrics == first.metrics


def test_words_that_no_step_has_read_since_are_up_to_date_in_a_checkpoint(tmp_path):
    whole, _ = trained(tmp_path)
    saved = torch.load(tmp_path / "checkpoint-0000000018.pt", weights_only=True)
    name = "bert.embeddings.word_embeddings.weight"
    assert torch.equal(saved["model"][name], whole[name])
    (state,) = (slots for slots in saved["optimizer"]["state"].values() if slots["exp_avg"].shape == whole[name].shape)
    assert float(state["step"]) == 18 and bool(state["exp_avg"].any())
