"""The pool's kernels, compiled for the CPU with one thread after the other, against torch's pool, bit for bit."""

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from seatrial.train.kernels import pool  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(3, 16, 7, 9), (2, 64, 8, 8), (1, 8, 31, 31)])
def test_same_as_torchs_forward_and_backward(kernels_on_cpu, dtype, shape):
    generator = torch.Generator().manual_seed(3)
    values = torch.randint(-9, 9, shape, generator=generator).to(dtype)  # with equals and zeros
    values = values.contiguous(memory_format=torch.channels_last)
    ours, torchs = values.clone().requires_grad_(), values.clone().requires_grad_()
    pooled, expected = pool.MaxPool.apply(ours), F.max_pool2d(torchs, 2)
    assert torch.equal(pooled, expected)
    gradient = torch.randn(pooled.shape, generator=generator).to(dtype)
    pooled.backward(gradient)
    expected.backward(gradient)
    assert torch.equal(ours.grad, torchs.grad)


def test_torchs_own_pool_on_a_cpu():
    images = torch.randn(2, 3, 6, 6)
    assert torch.equal(pool.MaxPool2x2()(images), F.max_pool2d(images, 2))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_same_as_torchs_on_a_gpu(dtype):
    images = torch.randn(9, 32, 15, 13, device="cuda").to(dtype).contiguous(memory_format=torch.channels_last)
    ours, torchs = images.clone().requires_grad_(), images.clone().requires_grad_()
    pooled, expected = pool.max_pool(ours), F.max_pool2d(torchs, 2)
    assert type(pooled.grad_fn).__name__ == "MaxPoolBackward"
    assert torch.equal(pooled, expected)
    pooled.sum().backward()
    expected.sum().backward()
    assert torch.equal(ours.grad, torchs.grad)
