"""Output of `docker info` without a working Docker → one sentence, never a traceback."""

from __future__ import annotations

import pytest

from seatrial.backends.containers.client import read_info
from seatrial.backends.containers.docker import Docker
from seatrial.errors import EngineUnavailableError
from seatrial.system.command import Completed
from seatrial.system.host import Host


@pytest.mark.parametrize(
    ("exit_code", "stdout", "stderr", "words"),
    [
        (139, "", "Segmentation fault", "Docker does not respond: Segmentation fault"),
        (0, "{not json", "", "Docker does not respond: {not json"),
        (0, "[]", "", "Docker does not respond: []"),
        (0, "{}", "", "Docker gave no answer"),
        (0, "", "", "Docker gave no answer"),
        (0, '{"host": {"buildahVersion": "1.28"}}', "", "The program docker is Podman here"),
        (1, '{"ServerErrors": ["* Cannot connect to the Docker daemon"]}', "", "The Docker daemon does not respond"),
    ],
)
def test_no_answer(exit_code: int, stdout: str, stderr: str, words: str) -> None:
    with pytest.raises(EngineUnavailableError) as caught:
        read_info("docker", Docker.dialect.info_key, Completed(("docker", "info"), exit_code, stdout, stderr), Host({}))
    assert caught.value.message == words and caught.value.cause and caught.value.run


def test_a_star_before_the_reason_is_left_out() -> None:
    ended = Completed(("docker", "info"), 1, "", "errors pretty printing info\n* speak TLS to me")
    with pytest.raises(EngineUnavailableError, match=r"^Docker does not respond: speak TLS to me$"):
        read_info("docker", Docker.dialect.info_key, ended, Host({}))
