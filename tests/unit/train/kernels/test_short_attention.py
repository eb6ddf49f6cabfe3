"""Attention of packed short texts: kernels, run on the CPU thread by thread, against torch in double precision."""

import itertools

import pytest

torch = pytest.importorskip("torch")

from seatrial.train.kernels import dropout, short_attention  # noqa: E402

pytestmark = pytest.mark.torch
slow = pytest.mark.slow
HEAD = short_attention.HEAD
KEYS = torch.tensor([[0, 0], [1234567, 2**31 - 5]], dtype=torch.int32)
PLACE = 1


def mixed(lengths, seed=0):
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(seed))
    return [lengths[number] for number in order]


def inputs_of(lengths, heads, behind, device, *, steep=1.0):
    """Inputs, starts and a gradient of the result. What lies behind the last text is no number."""
    generator = torch.Generator().manual_seed(sum(lengths) + heads)
    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    rows = int(starts[-1]) + behind
    inputs = torch.randn(rows, 3 * heads * HEAD, generator=generator) * steep
    grad = torch.randn(rows, heads * HEAD, generator=generator)
    inputs[starts[-1] :], grad[starts[-1] :] = float("nan"), float("nan")
    return inputs.bfloat16().to(device), starts.to(device), grad.bfloat16().to(device)


def run(inputs, starts, grad, heads, share):
    keys = KEYS.to(inputs.device)
    longest = int((starts[1:] - starts[:-1]).max())
    out, logs = short_attention.forward(inputs, starts, heads, longest, keys, PLACE, share)
    grads, parts = short_attention.backward(grad, inputs, logs, starts, heads, longest, keys, PLACE, share)
    return out, logs, grads, parts


def expected(inputs, starts, grad, heads, share):
    """Result, logs, gradient and its sums over each text, text by text in double precision."""
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
        mask = dropout.mask(KEYS[PLACE], elements, share) if share else 1.0
        mixed = (scores.softmax(2) * mask) @ value
        mixed = mixed.transpose(0, 1).reshape(end - begin, heads * HEAD)
        out[begin:end] = mixed.detach()
        grads[begin:end] = torch.autograd.grad(mixed, own, grad[begin:end])[0]
        parts.append(grads[begin:end].sum(0))
    return out, logs.detach(), grads, torch.stack(parts)


def error(own, exact):
    return ((own.cpu().double() - exact).norm() / exact.norm()).item()


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
def test_result_and_gradients(device, lengths, heads, share, behind):
    given = inputs_of(lengths, heads, behind, device)
    out, logs, grads, parts = run(*given, heads, share)
    exact_out, exact_logs, exact_grads, exact_parts = expected(*given, heads, share)
    end = sum(lengths)
    assert (out[end:] == 0).all() and (grads[end:] == 0).all()
    assert error(out, exact_out) < 4e-3
    assert error(logs[:end], exact_logs[:end]) < 1e-4
    for own, exact in zip(grads.chunk(3, 1), exact_grads.chunk(3, 1), strict=True):
        assert error(own, exact) < 6e-3
    exact_queries, exact_keys, exact_values = exact_parts.chunk(3, 1)
    queries, keys, values = parts.chunk(3, 1)
    assert error(queries, exact_queries) < 6e-3 and error(values, exact_values) < 6e-3
    assert (keys.cpu().double() - exact_keys).norm() < 6e-3 * exact_queries.norm()  # they are nearly zero


def test_again_the_same_to_the_bit(device):
    given = inputs_of([1, 70, 20], 2, 3, device)
    for own, again in zip(run(*given, 2, 0.1), run(*given, 2, 0.1), strict=True):
        end = 91 if own.shape[0] == 94 else 3
        assert torch.equal(own[:end], again[:end])


def test_rows_where_one_token_takes_all(device):
    """Shares that are next to 0 and to 1, and scores far from 0."""
    given = inputs_of([40, 7, 16], 2, 2, device, steep=6.0)
    out, logs, grads, parts = run(*given, 2, 0.1)
    exact_out, exact_logs, exact_grads, _ = expected(*given, 2, 0.1)
    assert error(out, exact_out) < 6e-3 and error(logs[:63], exact_logs[:63]) < 1e-4
    assert error(grads, exact_grads) < 1e-2 and parts.isfinite().all()


def test_a_text_without_tokens_has_no_gradient(device):
    given = inputs_of([4, 0, 9], 2, 0, device)
    *_, grads, parts = run(*given, 2, 0.1)
    assert (parts[1] == 0).all()
    assert error(parts[2], grads[4:].cpu().double().sum(0)) < 1e-2


def test_blocks_are_enough():
    def taken(tokens, heads):
        tiles = 1 if tokens <= 16 else 2 if tokens <= 32 else 4 if tokens <= 64 else 8
        return -(-heads * tiles // 8)

    for heads in range(1, 130):
        for tokens in (*range(0, 129, 16), *range(1, 129, 16), 128):
            for texts in (1, 7, 64):
                room = short_attention.blocks(texts * tokens, texts, heads)
                assert texts * taken(tokens, heads) + heads <= room, (heads, tokens, texts)
