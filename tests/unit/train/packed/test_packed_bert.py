"""A BERT over packed texts, by kernels on the CPU: loss and gradients are the padded model's in double precision."""

import copy

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from torch.nn import functional as F  # noqa: E402

from cuda_on_cpu import error  # noqa: E402
from seatrial.recipes import spam  # noqa: E402
from seatrial.train.data.texts import TextSet  # noqa: E402
from seatrial.train.distributed import Ranks  # noqa: E402
from seatrial.train.kernels import bert as kernels  # noqa: E402
from seatrial.train.optim.optimizer import adamw  # noqa: E402
from seatrial.train.packed.bert import PackedBert, takes  # noqa: E402
from seatrial.train.packed.texts import PackedTexts, packed_tests  # noqa: E402
from seatrial.train.packed.weights import FlatAdamW  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("kernels_on_cpu")]
CPU = torch.device("cpu")
ALONE = Ranks(0, 1, CPU)


def model_of(share=0.0, width=64, heads=1, between=72, layers=1):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=40, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=between, hidden_dropout_prob=share, attention_probs_dropout_prob=share,
        classifier_dropout=0.0, max_position_embeddings=128,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config).train()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0, 0.3 if parameter.ndim == 1 else 0.1)
    return model


def source_of(lengths, batch):
    generator = torch.Generator().manual_seed(2)
    tokens = [torch.randint(1, 40, (length,), generator=generator).tolist() for length in lengths]
    source = PackedTexts(TextSet.of(tokens, torch.arange(len(lengths)) % 2), batch, ALONE, 0)
    source.start(1, 0)
    return source


def batch_of(source, step, first=0, count=None):
    shape = source.spans[step].shape
    return source.load(torch.tensor([step]), shape, first, count or shape.rows)


def bert_of(model, source, dtype=torch.float32, decay=0.01):
    return PackedBert(model, dtype, ALONE, source, weight_decay=decay)


LENGTHS = [3, 9, 1, 14, 5, 7, 2, 8]


def made(lengths=LENGTHS, batch=4, **shape):
    """Return a source of texts, a model, its packed form and its optimizer."""
    source, model = source_of(lengths, batch), model_of(**shape)
    bert = bert_of(model, source)
    return source, model, bert, FlatAdamW(bert.weights, 1e-2)


def padded(batch):
    lengths = (batch.starts[1:] - batch.starts[:-1]).long()
    real = torch.arange(int(lengths.max())) < lengths[:, None]
    tokens = torch.zeros(real.shape, dtype=torch.long)
    tokens[real] = batch.tokens_T[: int(batch.starts[-1])].long()
    return tokens, real


def gradients(bert, model):
    return {name: gradient_of(bert, parameter) for name, parameter in model.named_parameters()}


def gradient_of(bert, parameter):
    if parameter is not bert.weights.words:
        return bert.weights.gradient(parameter).clone()
    there = bert.weights._there
    real = there >= 0
    dense = torch.zeros(parameter.shape, dtype=bert.weights.dtype)
    dense[there[real].long()] = bert.weights.word_gradients[real]
    return dense


def run(bert, model, batch, labels, optimizer=None):
    bert.weights.clear()
    loss = bert.loss(model, batch, labels)
    loss.backward()
    found = gradients(bert, model)
    if optimizer:
        bert.weights.clip(1.0)
        optimizer.step()
    return loss.item(), found


def exact_of(model, batch, labels):
    double = copy.deepcopy(model).double()
    loss = F.cross_entropy(spam.logits(double, padded(batch)), labels)
    loss.backward()
    return loss.item(), {name: parameter.grad for name, parameter in double.named_parameters()}


def compare(found, exact, most):
    largest = max(gradient.norm().item() for gradient in exact.values())
    for name, gradient in exact.items():
        difference = (found[name].double() - gradient.double()).norm()
        assert difference < most * (gradient.norm() + 1e-2 * largest), name  # a key's bias has none, and rounding


def test_loss_and_gradients_are_the_padded_models():
    source, model = source_of([3, 9, 1, 14, 5, 7, 2], 4), model_of(layers=2, heads=2)
    for step in range(2):
        batch, labels = batch_of(source, step)
        expected, exact = exact_of(model, batch, labels)
        own = copy.deepcopy(model)
        loss, found = run(bert_of(own, source), own, batch, labels)
        assert loss == pytest.approx(expected, rel=1e-6)
        compare(found, exact, 1e-5)


def test_micro_batches_add_up():
    source, model, bert, _ = made(batch=8)
    _, whole = run(bert, model, *batch_of(source, 0))
    bert.weights.clear()
    for first, count in ((0, 3), (3, 3), (6, 2)):
        (bert.loss(model, *batch_of(source, 0, first, count)) * (count / 8)).backward()
    compare(gradients(bert, model), whole, 1e-5)


def test_trains_as_the_padded_model_and_its_optimizer():
    source, model = source_of(LENGTHS, 4), model_of()
    other = copy.deepcopy(model)
    bert = bert_of(model, source)
    optimizer, plain = FlatAdamW(bert.weights, 1e-3), adamw(other, 1e-3, 0.01)
    for number in range(5):
        batch, labels = batch_of(source, number % 2)
        loss, _ = run(bert, model, batch, labels, optimizer)
        for parameter in other.parameters():
            parameter.grad = None
        expected = F.cross_entropy(spam.logits(other, padded(batch)), labels)
        expected.backward()
        torch.nn.utils.clip_grad_norm_(other.parameters(), 1.0)
        plain.step()
        assert loss == pytest.approx(expected.item(), abs=1e-5), number


def test_gradients_with_dropout_are_the_losses_slopes_and_those_in_bf16_close_to_them(monkeypatch):
    source, start = source_of([3, 18, 1], 3), model_of(0.1)
    batch, labels = batch_of(source, 0)
    keys = kernels.dropout_keys(3 + 1, CPU)
    monkeypatch.setattr(kernels, "dropout_keys", lambda places, device: keys)
    low, model = copy.deepcopy(start), copy.deepcopy(start)
    bert, low_bert = bert_of(model, source), bert_of(low, source, torch.bfloat16)
    loss, found = run(bert, model, batch, labels)
    low_loss, low_found = run(low_bert, low, batch, labels)  # by the kernels' attention
    assert low_loss == pytest.approx(loss, rel=0.05)
    compare(low_found, found, 0.2)
    largest = max(slopes.norm() for slopes in found.values())
    for name, parameter in model.named_parameters():
        slopes, before, losses = found[name], parameter.detach().clone(), []
        if slopes.norm() < 0.01 * largest:  # of a key's bias: rounding
            continue
        for step in (0.01, -0.01):
            parameter.data.copy_(before + step * slopes / slopes.norm())
            bert.weights.refresh()
            losses.append(bert.loss(model, batch, labels).item())
        parameter.data.copy_(before)
        assert (losses[0] - losses[1]) / 0.02 == pytest.approx(slopes.norm().item(), rel=0.02), name


def test_updates_are_adamws_though_words_and_later_layers_are_updated_later():
    source, model = source_of(LENGTHS, 4), model_of(layers=2)
    bert, double = bert_of(model, source, decay=0.1), copy.deepcopy(model).double()
    optimizer = FlatAdamW(bert.weights, 1e-2)
    plain = torch.optim.AdamW(
        [
            {"params": [each for each in double.parameters() if each.ndim > 1], "weight_decay": 0.1},
            {"params": [each for each in double.parameters() if each.ndim <= 1], "weight_decay": 0.0},
        ],
        lr=1e-2,
    )
    others = [other for name, other in double.named_parameters() if "word_embeddings" not in name]
    table = double.bert.embeddings.word_embeddings.weight
    for number, there in enumerate(([3, 5, 9], [5], [], [9, 30], [5])):
        bert.weights.begin(torch.tensor(there + [-1] * (source.slots - len(there)), dtype=torch.int32))
        generator = torch.Generator().manual_seed(number)
        optimizer.param_groups[0]["lr"].fill_(1e-2 / (number + 1))
        for group in plain.param_groups:
            group["lr"] = 1e-2 / (number + 1)
        for own, other in zip(bert.weights.parameters, parameters_as(bert, model, double), strict=True):
            other.grad = torch.randn(own.shape, generator=generator).double() * 0.01
            bert.weights.gradient(own).copy_(other.grad)
        rows = torch.randn(len(there), table.shape[1], generator=generator) * 0.01
        table.grad = torch.zeros_like(table)
        table.grad[there] = rows.double()
        bert.weights.word_gradients.zero_()[: len(there)] = rows
        torch.nn.utils.clip_grad_norm_([*others, table], 0.5)
        plain.step()
        bert.weights.clip(0.5)
        optimizer.step()
    late = model.bert.encoder.layer[1].output.dense.weight, double.bert.encoder.layer[1].output.dense.weight
    assert error(model.bert.embeddings.word_embeddings.weight, table) > 1e-5 and error(*late) > 1e-5
    bert.weights.settle()
    bert.weights.settle()  # is not done again
    for (name, own), other in zip(model.named_parameters(), double.parameters(), strict=True):
        assert error(own, other) < 1e-6, name


def test_a_step_that_is_tried_again_does_not_update_later_layers_twice():
    weights = []
    for tries in (1, 2):
        source, model, bert, optimizer = made([3, 9, 1, 14], layers=2)
        batch, labels = batch_of(source, 0)
        bert.weights.clear()
        bert.loss(model, batch, labels).backward()
        optimizer.step()
        before = bert.weights.flat.clone()
        for _ in range(tries):
            bert.weights.clear()
            bert.loss(model, batch, labels)  # as far as a step may come that runs out of memory
        assert not torch.equal(bert.weights.flat, before)
        weights.append(bert.weights.flat)
    assert torch.equal(*weights)


def parameters_as(bert, model, other):
    """The other model's parameters in the order of the weights."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = dict(other.named_parameters())
    return [found[names[id(parameter)]] for parameter in bert.weights.parameters]


def test_dropped_shares_and_independent_places():
    keys = torch.tensor([[1234567, 7654321], [1234567, 7654320]], dtype=torch.int32)
    numbers = torch.arange(1 << 18)
    masks = [kernels.dropout_mask(key, numbers, 0.1) for key in keys]
    kept = [mask > 0 for mask in masks]
    for each in kept:
        assert each.float().mean().item() == pytest.approx(0.9, abs=0.003)
    assert (kept[0] & kept[1]).float().mean().item() == pytest.approx(0.81, abs=0.004)
    assert (kept[0][1:] & kept[0][:-1]).float().mean().item() == pytest.approx(0.81, abs=0.004)
    assert masks[0].mean().item() == pytest.approx(1.0, abs=0.004)


def test_what_is_left_to_the_padded_path():
    assert "GPU" in takes(model_of(), torch.bfloat16, CPU)
    assert "fp16" in takes(model_of(), torch.float16, torch.device("cuda", 0))


def test_saved_state_is_the_models_and_comes_back(tmp_path):
    source, model, bert, optimizer = made()
    run(bert, model, *batch_of(source, 0), optimizer)
    bert.weights.settle()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "kept.pt")
    saved = torch.load(tmp_path / "kept.pt", weights_only=True)
    first, _ = run(bert, model, *batch_of(source, 1), optimizer)
    _, again, other, fresh = made()
    bert.weights.settle()
    again.load_state_dict(saved["model"])
    fresh.load_state_dict(saved["optimizer"])
    fresh.param_groups[0]["lr"] = optimizer.param_groups[0]["lr"]
    other.weights.refresh()
    assert run(other, again, *batch_of(source, 1), fresh)[0] == first
    other.weights.settle()
    assert torch.equal(other.weights.flat, bert.weights.flat) and torch.equal(other.weights.words, bert.weights.words)


def test_logits_are_the_padded_models_without_dropout():
    lengths = LENGTHS
    _, model, bert, _ = made(share=0.3)
    generator = torch.Generator().manual_seed(2)
    tokens = [torch.randint(1, 40, (length,), generator=generator).tolist() for length in lengths]
    tests = packed_tests(TextSet.of(tokens, torch.arange(len(lengths))), ALONE, 3)
    seen = 0
    for batch, labels in tests:
        expected = spam.logits(copy.deepcopy(model).double().eval(), padded(batch))
        assert error(bert.logits(model, batch), expected) < 1e-5
        assert (batch.starts[1:] - batch.starts[:-1]).tolist() == [lengths[label] for label in labels]
        seen += len(labels)
    assert seen == len(lengths)
