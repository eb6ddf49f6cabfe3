"""The packed BERT's kernels that go over rows, against torch in double precision: every width, any number of rows."""

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from seatrial.train.kernels import dropout, gelu, norm_residual, token_sums  # noqa: E402

pytestmark = pytest.mark.torch
#: What rounding the results to the type may cost.
MOST = {torch.float32: 2e-6, torch.bfloat16: 4e-3}
EPSILON = 1e-5
#: Rows and columns: less than a block has, one more, several rounds of each of two blocks; widths that fill no warp.
SHAPES = [(1, 8), (3, 128), (9, 72), (53, 72), (17, 768), (5, 1024), (2, 1536)]


def error(own, exact):
    return ((own.double() - exact).norm() / exact.norm().clamp(min=1e-3)).item()


def numbers(*shape, seed, device, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def mask_of(keys, place, like, share):
    count = torch.arange(like.numel(), device=like.device).view_as(like)
    return dropout.mask(keys[place], count, share).double()


def keys_on(device):
    return torch.tensor([[3, 4], [1234567, 7654321]], dtype=torch.int32, device=device)


@pytest.mark.parametrize("dtype", list(MOST), ids=["fp32", "bf16"])
@pytest.mark.parametrize("share", [0.1, 0.0])
@pytest.mark.parametrize(("rows", "width"), SHAPES)
def test_normalisation_with_dropout_and_sum(device, monkeypatch, rows, width, share, dtype):
    monkeypatch.setattr(norm_residual, "MOST_PARTS", 2)
    x, residual = (numbers(rows, width, seed=seed, device=device, dtype=dtype) for seed in (0, 1))
    bias, gain, shift = (numbers(width, seed=seed, device=device) for seed in (2, 3, 4))
    keys = keys_on(device)
    y, *normed = norm_residual.forward(x, bias, residual, gain, shift, keys, 1, share, EPSILON)
    before, weights = (x.double() + bias.double()).requires_grad_(), (gain.double(), shift.double())
    z = before * mask_of(keys, 1, x, share) + residual.double()
    z.retain_grad()
    for each in weights:
        each.requires_grad_()
    exact = F.layer_norm(z, (width,), *weights, EPSILON)
    assert error(y, exact) < MOST[dtype]
    dy = numbers(rows, width, seed=5, device=device, dtype=dtype)
    dz, dx, parts = norm_residual.backward(dy, normed, gain, keys, 1, share)
    exact.backward(dy.double())
    assert error(dz, z.grad) < 2 * MOST[dtype]
    assert error(dx, before.grad) < 2 * MOST[dtype]
    sums = torch.cat([before.grad.sum(0), weights[0].grad, weights[1].grad])
    assert parts.shape[1] == 3 * width and error(parts.double().sum(0), sums) < 2 * MOST[dtype]
    again = norm_residual.backward(dy, normed, gain, keys, 1, share)
    assert all(torch.equal(first, second) for first, second in zip((dz, dx, parts), again, strict=True))


@pytest.mark.parametrize("dtype", list(MOST), ids=["fp32", "bf16"])
@pytest.mark.parametrize(("rows", "width"), [(1, 8), (9, 128), (17, 768)])
def test_embeddings_normalised_then_dropped_out(device, rows, width, dtype):
    share, place, keys = 0.1, 0, keys_on(device)
    tables = tuple(numbers(count, width, seed=count, device=device) for count in (11, 7, 2))
    tokens, positions = (torch.arange(rows, device=device, dtype=torch.int32) % count for count in (11, 7))
    gain, shift = (numbers(width, seed=seed, device=device) for seed in (3, 4))
    y, *normed = norm_residual.embed(tokens, positions, tables, gain, shift, keys, place, share, EPSILON, dtype)
    words, places, kinds = (table.double() for table in tables)
    z = (words[tokens.long()] + places[positions.long()] + kinds[0]).requires_grad_()
    weights = (gain.double().requires_grad_(), shift.double().requires_grad_())
    exact = F.layer_norm(z, (width,), *weights, EPSILON) * mask_of(keys, place, y, share)
    assert error(y, exact) < MOST[dtype]
    dy = numbers(rows, width, seed=5, device=device, dtype=dtype)
    dz, _, parts = norm_residual.backward(dy, normed, gain, keys, place, share, after=True)
    exact.backward(dy.double())
    assert error(dz, z.grad) < 2 * MOST[dtype]
    sums = torch.cat([z.grad.sum(0), weights[0].grad, weights[1].grad])
    assert error(parts.double().sum(0), sums) < 2 * MOST[dtype]


@pytest.mark.parametrize("dtype", list(MOST), ids=["fp32", "bf16"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 8), (9, 72), (30, 264), (403, 256), (60, 3072), (3, 7000)])
def test_gelu(device, monkeypatch, rows, columns, dtype):
    monkeypatch.setattr(gelu, "MOST_BLOCKS", 24)
    x, dy = (numbers(rows, columns, seed=seed, device=device, dtype=dtype) * 2 for seed in (0, 1))
    bias = numbers(columns, seed=2, device=device)
    z = (x.double() + bias.double()).requires_grad_()
    exact = F.gelu(z)
    assert error(gelu.forward(x, bias), exact) < MOST[dtype]
    exact.backward(dy.double())
    dx, parts = gelu.backward(dy, x, bias)
    assert error(dx, z.grad) < MOST[dtype]
    assert error(parts.double().sum(0), z.grad.sum(0)) < MOST[dtype]


def test_gelu_far_out(device):
    x = torch.tensor([[-1e4, -40.0, -12.0, -0.0, 0.0, 12.0, 40.0, 1e4]], device=device).bfloat16()
    none = torch.zeros(8, device=device)
    assert gelu.forward(x, none)[0].tolist() == pytest.approx(x[0].clamp(min=0).tolist(), abs=1e-20)
    dx, _ = gelu.backward(torch.ones_like(x), x, none)
    assert dx[0].tolist() == pytest.approx([0.0, 0.0, 0.0, 0.5, 0.5, 1.0, 1.0, 1.0], abs=1e-20)


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("counts", [(1,), (264, 33), (5, 130, 1, 40)])
def test_parts_are_summed_side_by_side(device, counts, add):
    widths = (72, 40, 8, 264)
    parts = [numbers(count, width, seed=count, device=device) for count, width in zip(counts, widths, strict=False)]
    sums = numbers(sum(each.shape[1] for each in parts), seed=1, device=device)
    exact = torch.cat([each.double().sum(0) for each in parts]) + (sums.double() if add else 0)
    gelu.sum_parts(parts, sums, add=add)
    assert error(sums, exact) < 1e-6


@pytest.mark.parametrize("width", [8, 128, 768, 1024])
def test_rows_of_each_token_are_summed(device, width):
    counts = torch.tensor([1, 0, 70, 5, 32, 33])
    begins = torch.cat([torch.zeros(1), counts.cumsum(0)]).int().to(device)
    rows = numbers(int(counts.sum()), width, seed=0, device=device, dtype=torch.bfloat16)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(1)).int().to(device)
    sums = torch.zeros(len(counts), width, device=device, dtype=torch.bfloat16)
    token_sums.token_sums(rows, order, begins, sums)
    pieces = rows.double()[order.long()].split(counts.tolist())
    assert error(sums, torch.stack([each.sum(0) for each in pieces])) < 4e-3
