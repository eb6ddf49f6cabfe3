"""Output of `docker info` without a working Docker → one sentence, never a traceback."""

from __future__ import annotations

import pytest

from seatrial.backends.containers.client import read_info
from seatrial.backends.containers.docker import Docker
from seatrial.errors import EngineUnavailableError
from seatrial.system.command import Completed
from seatrial.system.host import Host
from tables import cases


@cases("exit_code", "stdout", "stderr", "words")
def test_no_answer(exit_code: int, stdout: str, stderr: str, words: str) -> None:
    with pytest.raises(EngineUnavailableError) as caught:
        read_info("docker", Docker.dialect.info_key, Completed(("docker", "info"), exit_code, stdout, stderr), Host({}))
    assert caught.value.message == words and caught.value.cause and caught.value.run


def test_a_star_before_the_reason_is_left_out() -> None:
    ended = Completed(("docker", "info"), 1, "", "errors pretty printing info\n* speak TLS to me")
    with pytest.raises(EngineUnavailableError, match=r"^Docker does not respond: speak TLS to me$"):
        read_info("docker", Docker.dialect.info_key, ended, Host({}))
