"""Which ranks the watchdog takes for stuck, from what each last wrote."""

import time

import pytest

torch = pytest.importorskip("torch")

from seatrial.train.distributed import Ranks  # noqa: E402
from seatrial.train.watchdog import Watchdog  # noqa: E402

pytestmark = pytest.mark.torch
LIMIT_S = 10.0


def late(*beats):
    """Ranks named, of beats (step, seconds since progress, seconds since the heartbeat, whether it makes steps)."""
    now = time.time()
    keys = ("step", "changed", "beat", "stepping")
    written = [b and dict(zip(keys, (b[0], now - b[1], now - b[2], b[3]), strict=True)) for b in beats]
    return Watchdog(Ranks(0, len(beats), torch.device("cpu")), LIMIT_S)._late(written, LIMIT_S)


@pytest.mark.parametrize(
    ("beats", "named"),
    [
        ([(8, 30, 1, True), (7, 30, 1, True)], [1]),
        ([(8, 30, 1, True), (8, 30, 1, True)], [0, 1]),
        ([(8, 30, 1, False), (8, 30, 1, True)], []),  # the first tests, the second waits for it
        ([(8, 1, 1, True), (7, 30, 1, True)], []),  # the first makes a slow step
        ([(8, 30, 30, False), (8, 30, 1, True)], [0]),  # its process is gone or stopped
        ([(8, 30, 1, True), None], [0]),  # the other has not begun
    ],
)
def test_ranks_are_named_when_none_works_or_one_does_not_answer(beats, named):
    assert late(*beats) == named


def test_pause_lasts_until_the_next_beat():
    watchdog = Watchdog(Ranks(0, 1, torch.device("cpu")), LIMIT_S)
    assert not watchdog._stepping
    watchdog.beat(3)
    assert watchdog._stepping
    watchdog.pause()
    assert not watchdog._stepping
