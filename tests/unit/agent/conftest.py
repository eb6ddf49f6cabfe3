"""The agent takes over its process's signals; a test that runs a part of it in this process gives them back."""

import signal

import pytest

from seatrial.agent.target import FORWARDED


@pytest.fixture(autouse=True)
def own_signals():
    """Handlers as they were before the test."""
    before = {number: signal.getsignal(number) for number in (*FORWARDED, signal.SIGCHLD)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
