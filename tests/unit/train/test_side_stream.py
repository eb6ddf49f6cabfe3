"""A second stream where there is none: what would go there is done at once, and nothing waits."""

import pytest

torch = pytest.importorskip("torch")

from seatrial.train.autocast_weights import SideStream  # noqa: E402

pytestmark = pytest.mark.torch


def test_on_a_cpu_it_is_done_at_once():
    side_stream, done = SideStream(torch.device("cpu")), []
    with side_stream.running(torch.zeros(1)):
        done.append(1)
    assert done == [1] and not side_stream.on
    side_stream.wait()
    side_stream.forget()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_capture_that_fails_while_the_second_stream_works_ends_with_its_own_error():
    device = torch.device("cuda", 0)
    side_stream, values = SideStream(device), torch.zeros(1 << 20, device=device)
    with pytest.raises(torch.OutOfMemoryError), torch.cuda.graph(torch.cuda.CUDAGraph()):
        with side_stream.running(values):
            values.add_(1)
        try:
            torch.empty(1 << 50, device=device)
        finally:
            side_stream.forget()
    with side_stream.running(values):
        values.add_(1)
    side_stream.wait()
    assert values.sum().item() == 1 << 20
