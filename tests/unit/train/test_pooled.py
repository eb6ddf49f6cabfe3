"""The compiled recipe's kernels against torch's layers in double precision. They need Triton and a GPU."""

import copy

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="Triton is not installed")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 2e-5), (torch.bfloat16, 2e-2)])
def test_outputs_and_gradients(dtype, most):
    from seatrial.recipes.mnist import network
    from seatrial.train import pooled

    torch.manual_seed(0)
    allowed, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False
    try:
        model = network(28, 28, 10).to("cuda", memory_format=torch.channels_last)
        exact = copy.deepcopy(model).double()
        images = torch.randn(33, 1, 28, 28, device="cuda")
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16):
            ours = pooled.forward(model, images, dtype)
        expected = exact(images.double())
        assert error(ours, expected) < most
        ours.float().square().sum().backward()
        expected.square().sum().backward()
        for parameter, other in zip(model.parameters(), exact.parameters(), strict=True):
            assert error(parameter.grad, other.grad) < most * 4
    finally:
        torch.backends.cudnn.allow_tf32 = allowed


def test_gradient_of_filters():
    from seatrial.train import pooled

    x, dy = (torch.randn(shape, device="cuda").bfloat16() for shape in ((20, 32, 13, 13), (20, 64, 11, 11)))
    x, dy = (tensor.contiguous(memory_format=torch.channels_last) for tensor in (x, dy))
    weights = torch.zeros(64, 32, 3, 3, device="cuda", dtype=torch.double, requires_grad=True)
    torch.nn.functional.conv2d(x.double(), weights).backward(dy.double())
    assert error(pooled.filter_gradient(x, dy, 3), weights.grad) < 1e-5


def error(ours, exact):
    """Relative, in the Frobenius norm."""
    return ((ours.double() - exact).norm() / exact.norm()).item()
