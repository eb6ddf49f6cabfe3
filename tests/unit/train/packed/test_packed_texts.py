"""Batches of packed texts: every text once, within capacity, the same on all ranks; each sum has its rows once."""

import pytest

torch = pytest.importorskip("torch")

from seatrial.train.data.texts import TextSet  # noqa: E402
from seatrial.train.distributed import Ranks  # noqa: E402
from seatrial.train.errors import InputError  # noqa: E402
from seatrial.train.packed.texts import PackedTexts, sample_epoch  # noqa: E402

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")


def texts(count, seed=0, most=40):
    generator = torch.Generator().manual_seed(seed)
    lengths = (torch.rand(count, generator=generator).square() * most).int() + 2
    tokens = [torch.randint(1, 30, (int(n),), generator=generator).tolist() for n in lengths]
    return TextSet.of(tokens, torch.arange(count)), tokens


def unpacked(batch, labels):
    """Label (the text's number here) → its tokens."""
    starts = batch.starts.tolist()
    return {
        int(label): batch.tokens_T[begin:end].tolist()
        for label, begin, end in zip(labels, starts, starts[1:], strict=False)
    }


def epoch(source, number):
    source.start(number, 0)
    for step, span in enumerate(source.spans):
        yield span.shape, source.load(torch.tensor([step]), span.shape, 0, span.shape.rows)


@pytest.mark.parametrize("world", [1, 3])
def test_every_text_once_whole_and_within_its_capacity(world):
    data, tokens = texts(107)
    orders = []
    for number in (1, 2):
        seen = {}
        for rank in range(world):
            for shape, (batch, labels) in epoch(PackedTexts(data, 8, Ranks(rank, world, CPU), 5), number):
                assert len(batch.tokens_T) == shape.length and int(batch.starts[-1]) <= shape.length
                assert not batch.tokens_T[int(batch.starts[-1]) :].any()
                seen |= unpacked(batch, labels)
        assert seen == dict(enumerate(tokens))
        orders.append(list(seen))
    assert orders[0] != orders[1]


def test_no_rank_is_left_without_a_text():
    data, tokens = texts(49)  # 6 batches of 8 over two ranks, and one text
    seen, steps = {}, []
    for rank in range(2):
        found = list(epoch(PackedTexts(data, 4, Ranks(rank, 2, CPU), 0), 1))
        steps.append([shape.rows for shape, _ in found])
        assert sum(shape.share for shape, _ in found[:-2]) == len(found) - 2
        for _, (batch, labels) in found:
            seen |= unpacked(batch, labels)
    assert seen == dict(enumerate(tokens))
    assert steps == [[4] * 5 + [3, 2], [4] * 5 + [2, 2]]
    with pytest.raises(InputError, match="the last batch has 1 examples for 2 ranks"):
        PackedTexts(data, 1, Ranks(0, 2, CPU), 0)


def test_epoch_is_a_function_of_seed_and_number_and_its_batches_nearly_as_long():
    data, _ = texts(60)
    sources = [PackedTexts(data, 8, Ranks(0, 1, CPU), seed) for seed in (1, 1, 2)]
    first, again, other = ([labels.tolist() for _, (_, labels) in epoch(source, 3)] for source in sources)
    assert first == again != other
    data, _ = texts(800, most=120)
    source = PackedTexts(data, 32, Ranks(0, 1, CPU), 0)
    assert len({span.shape for span in source.spans}) == 1
    assert source.padding < 0.05


def test_no_batch_is_larger_than_its_capacity_after_changes():
    source = PackedTexts(TextSet.of([[7] * n for n in [3] * 30 + [300]], torch.arange(31)), 4, Ranks(0, 1, CPU), 0)
    for number in range(4):
        assert sum(len(labels) for _, (_, labels) in epoch(source, number)) == 31
    lengths = torch.tensor([2] * 40 + [50] * 10)
    rows, capacity = [10] * 5, {10: 130}
    found = sample_epoch(lengths, rows, capacity, seed=0, epoch=1)
    assert found is not None and max(int(lengths[batch].sum()) for batch in found) <= 130
    assert sample_epoch(lengths, rows, {10: 110}, seed=0, epoch=1) is None  # the mean is 116


def sums_of(batch):
    """Row → token and position that its sums are of."""
    found = []
    for names, (order, begins) in ((batch.there_S, batch.by_token), (torch.arange(batch.longest), batch.by_position)):
        rows = {}
        for begin, end, name in zip(begins[:-1].tolist(), begins[1:].tolist(), names.tolist(), strict=True):
            assert name >= 0 or begin == end
            rows |= dict.fromkeys(order[begin:end].tolist(), name)
        found.append(rows)
    return found


def named(values):
    return dict(enumerate(values.tolist()))


@pytest.mark.parametrize("world", [1, 2])
def test_sums_name_every_row_of_a_token_once(world):
    data, _ = texts(40)
    for steps in zip(*(epoch(PackedTexts(data, 8, Ranks(n, world, CPU), 0), 1) for n in range(world)), strict=True):
        everyone = set()
        for _, (batch, _) in steps:
            real = int(batch.starts[-1])
            assert sums_of(batch) == [named(batch.tokens_T[:real]), named(batch.positions_T[:real])]
            everyone |= set(batch.tokens_T[:real].tolist())
        for _, (batch, _) in steps:
            assert [token for token in batch.there_S.tolist() if token >= 0] == sorted(everyone)


@pytest.mark.parametrize("parts", [2, 3, 8])
def test_micro_batches_are_the_batch(parts):
    data, _ = texts(40)
    source = PackedTexts(data, 8, Ranks(0, 1, CPU), 0)
    source.start(1, 0)
    shape, position = source.spans[0].shape, torch.tensor([0])
    whole = unpacked(*source.load(position, shape, 0, 8))
    size, seen = -(-8 // parts), {}
    for first in range(0, 8, size):
        batch, labels = source.load(position, shape, first, min(size, 8 - first))
        real = int(batch.starts[-1])
        assert sums_of(batch) == [named(batch.tokens_T[:real]), named(batch.positions_T[:real])]
        seen |= unpacked(batch, labels)
    assert seen == whole
