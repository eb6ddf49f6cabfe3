"""The pool's kernels, compiled for the CPU with one thread after the other, against torch's pool, bit for bit."""

import ctypes
import shutil
import subprocess

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from seatrial.train import pool  # noqa: E402

pytestmark = pytest.mark.torch

HEAD = """
static struct { int x; } blockIdx, blockDim, threadIdx;
#define __device__ static
#define __global__
"""
LOOP = """
extern "C" void run_NAME(A a, B b, C c, int total, int groups, int H, int W, int PH, int PW, int block, int grid) {
  blockDim.x = block;
  for (blockIdx.x = 0; blockIdx.x < grid; blockIdx.x++)
    for (threadIdx.x = 0; threadIdx.x < block; threadIdx.x++) NAME(a, b, c, total, groups, H, W, PH, PW);
}
"""
TYPES = {
    "pool": ("const Channels*", "Channels*", "Choices*"),
    "pool_back": ("const Channels*", "const Choices*", "Channels*"),
}


@pytest.fixture
def on_the_cpu(tmp_path, monkeypatch):
    """``pool.kernels`` as functions that run here."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")

    def build(number_bytes):
        text = f"{HEAD}typedef {pool.BITS[number_bytes]} Bits;\n{pool.SOURCE}"
        for name, types in TYPES.items():
            part = LOOP.replace("NAME", name)
            for letter, kind in zip("ABC", types, strict=True):
                part = part.replace(f"{letter} {letter.lower()}", f"{kind} {letter.lower()}")
            text += part
        source, library = tmp_path / f"pool{number_bytes}.cpp", tmp_path / f"pool{number_bytes}.so"
        source.write_text(text)
        subprocess.run(["g++", "-std=c++17", "-shared", "-fPIC", "-o", library, source], check=True)
        functions = ctypes.CDLL(str(library))

        def caller(name):
            def call(grid, block, args):
                values = [ctypes.c_void_p(a.data_ptr()) if isinstance(a, torch.Tensor) else a for a in args]
                getattr(functions, f"run_{name}")(*values, block[0], grid[0])

            return call

        return caller("pool"), caller("pool_back")

    monkeypatch.setattr(pool, "kernels", build)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(3, 16, 7, 9), (2, 64, 8, 8), (1, 8, 31, 31)])
def test_same_as_torchs_forward_and_backward(on_the_cpu, dtype, shape):
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
