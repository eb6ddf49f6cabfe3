"""The packed BERT's kernels, run on the CPU thread by thread, against torch in double precision."""

import itertools

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from cuda_on_cpu import error  # noqa: E402
from seatrial.train.kernels import bert  # noqa: E402

pytestmark = pytest.mark.torch
slow = pytest.mark.slow
#: What rounding the results to the type may cost.
MOST = {torch.float32: 2e-6, torch.bfloat16: 4e-3}
TYPES = pytest.mark.parametrize("dtype", list(MOST), ids=["fp32", "bf16"])
EPSILON, HEAD, PLACE = 1e-5, bert.HEAD, 1
KEYS = torch.tensor([[3, 4], [1234567, 2**31 - 5]], dtype=torch.int32)


def numbers(*shape, seed, device, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def mask_of(keys, place, like, share):
    return bert.dropout_mask(keys[place], torch.arange(like.numel(), device=like.device).view_as(like), share).double()


def exact_of(*tensors):
    return [tensor.detach().double().requires_grad_() for tensor in tensors]


# Rows: less than a block has, one more, several rounds of each of two blocks; widths that fill no warp ----------------


@TYPES
@pytest.mark.parametrize("share", [0.1, 0.0])
@pytest.mark.parametrize(("rows", "width"), [(1, 8), (3, 128), (9, 72), (53, 72), (17, 768), (5, 1024), (2, 1536)])
def test_normalisation_with_dropout_and_sum(device, monkeypatch, rows, width, share, dtype):
    monkeypatch.setattr(bert, "MOST_PARTS", 2)
    x, residual = (numbers(rows, width, seed=seed, device=device, dtype=dtype) for seed in (0, 1))
    bias, gain, shift = (numbers(width, seed=seed, device=device) for seed in (2, 3, 4))
    keys = KEYS.to(device)
    y, *normed = bert.norm_residual(x, bias, residual, gain, shift, keys, 1, share, EPSILON)
    before, *weights = exact_of(x.double() + bias.double(), gain, shift)
    z = before * mask_of(keys, 1, x, share) + residual.double()
    z.retain_grad()
    exact = F.layer_norm(z, (width,), *weights, EPSILON)
    assert error(y, exact) < MOST[dtype]
    dy = numbers(rows, width, seed=5, device=device, dtype=dtype)
    dz, dx, parts = bert.norm_back(dy, normed, gain, keys, 1, share)
    exact.backward(dy.double())
    assert error(dz, z.grad) < 2 * MOST[dtype] and error(dx, before.grad) < 2 * MOST[dtype]
    sums = torch.cat([before.grad.sum(0), weights[0].grad, weights[1].grad])
    assert parts.shape[1] == 3 * width and error(parts.double().sum(0), sums) < 2 * MOST[dtype]
    again = bert.norm_back(dy, normed, gain, keys, 1, share)
    assert all(map(torch.equal, (dz, dx, parts), again))


@TYPES
@pytest.mark.parametrize(("rows", "width"), [(1, 8), (9, 128), (17, 768)])
def test_embeddings_normalised_then_dropped_out(device, rows, width, dtype):
    share, place, keys = 0.1, 0, KEYS.to(device)
    tables = tuple(numbers(count, width, seed=count, device=device) for count in (11, 7, 2))
    tokens, positions = (torch.arange(rows, device=device, dtype=torch.int32) % count for count in (11, 7))
    gain, shift = (numbers(width, seed=seed, device=device) for seed in (3, 4))
    y, *normed = bert.norm_embedded(tokens, positions, tables, gain, shift, keys, place, share, EPSILON, dtype)
    words, places, kinds = (table.double() for table in tables)
    z, *weights = exact_of(words[tokens.long()] + places[positions.long()] + kinds[0], gain, shift)
    exact = F.layer_norm(z, (width,), *weights, EPSILON) * mask_of(keys, place, y, share)
    assert error(y, exact) < MOST[dtype]
    dy = numbers(rows, width, seed=5, device=device, dtype=dtype)
    dz, _, parts = bert.norm_back(dy, normed, gain, keys, place, share, after=True)
    exact.backward(dy.double())
    sums = torch.cat([z.grad.sum(0), weights[0].grad, weights[1].grad])
    assert error(dz, z.grad) < 2 * MOST[dtype] and error(parts.double().sum(0), sums) < 2 * MOST[dtype]


@TYPES
@pytest.mark.parametrize(("rows", "columns"), [(1, 8), (9, 72), (30, 264), (403, 256), (60, 3072), (3, 7000)])
def test_gelu(device, monkeypatch, rows, columns, dtype):
    monkeypatch.setattr(bert, "MOST_BLOCKS", 24)
    x, dy = (numbers(rows, columns, seed=seed, device=device, dtype=dtype) * 2 for seed in (0, 1))
    bias = numbers(columns, seed=2, device=device)
    (z,) = exact_of(x.double() + bias.double())
    exact = F.gelu(z)
    assert error(bert.gelu(x, bias), exact) < MOST[dtype]
    exact.backward(dy.double())
    dx, parts = bert.gelu_back(dy, x, bias)
    assert error(dx, z.grad) < MOST[dtype] and error(parts.double().sum(0), z.grad.sum(0)) < MOST[dtype]


def test_gelu_far_out(device):
    x = torch.tensor([[-1e4, -40.0, -12.0, -0.0, 0.0, 12.0, 40.0, 1e4]], device=device).bfloat16()
    none = torch.zeros(8, device=device)
    assert bert.gelu(x, none)[0].tolist() == pytest.approx(x[0].clamp(min=0).tolist(), abs=1e-20)
    dx, _ = bert.gelu_back(torch.ones_like(x), x, none)
    assert dx[0].tolist() == pytest.approx([0.0, 0.0, 0.0, 0.5, 0.5, 1.0, 1.0, 1.0], abs=1e-20)


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("counts", [(1,), (264, 33), (5, 130, 1, 40)])
def test_parts_are_summed_side_by_side(device, counts, add):
    widths = (72, 40, 8, 264)
    parts = [numbers(count, width, seed=count, device=device) for count, width in zip(counts, widths, strict=False)]
    sums = numbers(sum(each.shape[1] for each in parts), seed=1, device=device)
    exact = torch.cat([each.double().sum(0) for each in parts]) + (sums.double() if add else 0)
    bert.sum_parts(parts, sums, add=add)
    assert error(sums, exact) < 1e-6


@pytest.mark.parametrize("width", [8, 128, 768, 1024])
def test_rows_of_each_token_are_summed(device, width):
    counts = torch.tensor([1, 0, 70, 5, 32, 33])
    begins = torch.cat([torch.zeros(1), counts.cumsum(0)]).int().to(device)
    rows = numbers(int(counts.sum()), width, seed=0, device=device, dtype=torch.bfloat16)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(1)).int().to(device)
    sums = torch.zeros(len(counts), width, device=device, dtype=torch.bfloat16)
    bert.token_sums(rows, order, begins, sums)
    pieces = rows.double()[order.long()].split(counts.tolist())
    assert error(sums, torch.stack([each.sum(0) for each in pieces])) < 4e-3


# Attention -----------------------------------------------------------------------------------------------------------


def mixed(lengths):
    return [lengths[number] for number in torch.randperm(len(lengths), generator=torch.Generator().manual_seed(0))]


def inputs_of(lengths, heads, behind, device, *, steep=1.0):
    """Return inputs, starts and a gradient of the result. What lies behind the last text is NaN."""
    generator = torch.Generator().manual_seed(sum(lengths) + heads)
    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    rows = int(starts[-1]) + behind
    inputs = torch.randn(rows, 3 * heads * HEAD, generator=generator) * steep
    grad = torch.randn(rows, heads * HEAD, generator=generator)
    inputs[starts[-1] :], grad[starts[-1] :] = float("nan"), float("nan")
    return inputs.bfloat16().to(device), starts.to(device), grad.bfloat16().to(device)


def run(inputs, starts, grad, heads, share):
    keys, longest = KEYS.to(inputs.device), int((starts[1:] - starts[:-1]).max())
    out, logs = bert.attention(inputs, starts, heads, longest, keys, PLACE, share)
    return out, logs, *bert.attention_back(grad, inputs, logs, starts, heads, longest, keys, PLACE, share)


def expected(inputs, starts, grad, heads, share):
    """Return result, logs, gradient and its sums over each text, text by text in double precision."""
    out, grads = torch.zeros(grad.shape, dtype=torch.double), torch.zeros(inputs.shape, dtype=torch.double)
    logs, parts = torch.zeros(len(grad), heads, dtype=torch.double), []
    inputs, grad, bounds = inputs.cpu().double(), grad.cpu().double(), starts.tolist()
    for text, (begin, end) in enumerate(itertools.pairwise(bounds)):
        own = inputs[begin:end].clone().requires_grad_()
        query, key, value = own.view(end - begin, 3, heads, HEAD).permute(1, 2, 0, 3)  # [H, L, D]
        scores = query @ key.transpose(1, 2) * HEAD**-0.5
        logs[begin:end] = scores.logsumexp(2).t() / torch.tensor(2.0).log()
        places = torch.arange(end - begin)
        elements = ((text * heads + torch.arange(heads)[:, None, None]) * 128 + places[:, None]) * 128 + places
        mask = bert.dropout_mask(KEYS[PLACE], elements, share) if share else 1.0
        found = ((scores.softmax(2) * mask) @ value).transpose(0, 1).reshape(end - begin, heads * HEAD)
        out[begin:end] = found.detach()
        grads[begin:end] = torch.autograd.grad(found, own, grad[begin:end])[0]
        parts.append(grads[begin:end].sum(0))
    return out, logs.detach(), grads, torch.stack(parts)


@pytest.mark.parametrize(
    ("lengths", "heads", "share", "behind"),
    [
        pytest.param([1, 16, 17, 40, 128], 1, 0.1, 5, id="one head"),
        pytest.param([100, 3, 33, 64, 20], 5, 0.1, 0, id="the longest first, five heads"),
        pytest.param([2, 65, 1], 3, 0.0, 70, id="without dropout, many rows behind"),
        pytest.param(list(range(1, 129)), 1, 0.1, 9, id="every length, ascending", marks=slow),
        pytest.param(list(range(128, 0, -1)), 2, 0.0, 0, id="every length, descending", marks=slow),
        pytest.param(mixed(range(1, 129)), 3, 0.1, 1, id="every length, mixed", marks=slow),
        pytest.param(mixed([1, 2, 5] * 100 + [90]), 1, 0.1, 3, id="more texts than a block has threads", marks=slow),
        pytest.param([3, 30, 60, 90], 12, 0.1, 40, id="twelve heads", marks=slow),
        pytest.param([20, 70], 13, 0.1, 0, id="thirteen heads", marks=slow),
    ],
)
def test_attention_and_its_gradients(device, lengths, heads, share, behind):
    given = inputs_of(lengths, heads, behind, device)
    out, logs, grads, parts = run(*given, heads, share)
    exact_out, exact_logs, exact_grads, exact_parts = expected(*given, heads, share)
    end = sum(lengths)
    assert (out[end:] == 0).all() and (grads[end:] == 0).all()
    assert error(out, exact_out) < 4e-3 and error(logs[:end], exact_logs[:end]) < 1e-4
    assert all(error(*pair) < 6e-3 for pair in zip(grads.chunk(3, 1), exact_grads.chunk(3, 1), strict=True))
    (queries, keys, values), exact = parts.chunk(3, 1), exact_parts.chunk(3, 1)
    assert error(queries, exact[0]) < 6e-3 and error(values, exact[2]) < 6e-3
    assert (keys.cpu().double() - exact[1]).norm() < 6e-3 * exact[0].norm()  # they are nearly zero
    again = run(*given, heads, share)
    assert torch.equal(out, again[0]) and torch.equal(grads, again[2]) and torch.equal(parts, again[3])


def test_attention_where_one_token_takes_all(device):
    """Shares that are next to 0 and to 1, and scores far from 0."""
    given = inputs_of([40, 7, 16], 2, 2, device, steep=6.0)
    out, logs, grads, parts = run(*given, 2, 0.1)
    exact_out, exact_logs, exact_grads, _ = expected(*given, 2, 0.1)
    assert error(out, exact_out) < 6e-3 and error(logs[:63], exact_logs[:63]) < 1e-4
    assert error(grads, exact_grads) < 1e-2 and parts.isfinite().all()


def test_text_without_tokens_has_no_gradient(device):
    *_, grads, parts = run(*inputs_of([4, 0, 9], 2, 0, device), 2, 0.1)
    assert (parts[1] == 0).all() and error(parts[2], grads[4:].cpu().double().sum(0)) < 1e-2


def test_blocks_of_attention_are_enough():
    for heads in range(1, 130):
        for tokens in (*range(0, 129, 16), *range(1, 129, 16), 128):
            tiles = next(tiles for tiles in (1, 2, 4, 8) if tokens <= 16 * tiles)
            for texts in (1, 7, 64):
                most = bert.attention_blocks(texts * tokens, texts, heads)
                assert texts * -(-heads * tiles // 8) + heads <= most, (heads, tokens, texts)
