"""Layer normalisation, run on the CPU thread by thread, against torch in double precision."""

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from seatrial.train.kernels import layernorm  # noqa: E402

pytestmark = pytest.mark.torch
FP32, BF16 = torch.float32, torch.bfloat16


@pytest.mark.parametrize(
    ("width", "given", "made", "biased"),
    [(128, FP32, FP32, True), (384, FP32, BF16, True), (52, BF16, BF16, False), (260, BF16, FP32, True)],
)
def test_layer_norm_and_its_gradients(kernels_on_cpu, monkeypatch, width, given, made, biased):
    monkeypatch.setattr(layernorm, "BLOCKS", 2)
    monkeypatch.setattr(layernorm, "BLOCKS_BACK", 3)
    torch.manual_seed(0)
    x = (torch.randn(3, 13, width) * 3 + 5).to(given).requires_grad_()
    weight, bias = (torch.randn(width).requires_grad_() for _ in range(2))
    exact = [tensor.detach().double().requires_grad_() for tensor in (x, weight, bias)]
    out = layernorm.LayerNorm.apply(x, weight, bias if biased else None, 1e-5, made)
    expected = F.layer_norm(exact[0], (width,), exact[1], exact[2] if biased else None, 1e-5)
    slope = torch.randn_like(expected).to(made)
    (out * slope).sum().backward()
    (expected * slope.double()).sum().backward()
    assert out.dtype == made and x.grad.dtype == given
    assert error(out, expected) < (1e-6 if made == FP32 else 4e-3)
    for own, other in list(zip((x, weight, bias), exact, strict=True))[: 2 + biased]:
        assert error(own.grad, other.grad) < (4e-3 if own.dtype == BF16 else 1e-5)


def error(own, exact):
    return ((own.double() - exact).norm() / exact.norm()).item()
