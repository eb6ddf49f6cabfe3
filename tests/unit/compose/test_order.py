"""Which services are tasks, and who waits for their end in the short form of depends_on."""

from __future__ import annotations

import pytest

from seatrial.compose.read import ComposeFile
from tables import cases, constant

HEAD = """
services:
  prep:
    image: x
    command: python prep.py
    volumes: [data:/out]
"""
TAIL = "volumes: {data: , other: }\n"


def waits(file: ComposeFile) -> list[tuple[str, str]]:
    return list(file.short_waits)


READERS = constant(__file__, "READERS")


@pytest.mark.parametrize("name", READERS)
def test_a_reader(read, name: str) -> None:
    lines, expected = READERS[name]
    file = read(f"{HEAD}  train:\n    image: x\n    command: python train.py\n    {lines}\n{TAIL}")
    assert waits(file) == list(expected)


@cases("sign")
def test_nobody_waits_for_the_end_of_a_service(read, sign: str) -> None:
    file = read(f"{HEAD}    {sign}\n  train:\n    image: x\n    depends_on: [prep]\n    volumes: [data:/in]\n{TAIL}")
    assert waits(file) == [] and file.services["prep"].why_service


@pytest.mark.parametrize(
    "command", ["redis-server", "uvicorn app:app", "python serve.py", "sleep infinity", "mlflow ui"]
)
def test_a_command_that_serves(read, command: str) -> None:
    file = read(f"services:\n  a:\n    image: x\n    command: {command}\n")
    assert (
        file.services["a"].why_service
        == f'its command is a server\'s ("{command.split(" app")[0].removeprefix("python ")}")'
    )


@pytest.mark.parametrize(
    "command", ["python train.py", "python preserve.py", "torchrun train.py --server-lr 1", "sleep 5"]
)
def test_a_command_that_ends(read, command: str) -> None:
    assert read(f"services:\n  a:\n    image: x\n    command: {command}\n").services["a"].is_task


@pytest.mark.parametrize("command", ["python train.py", "sh -c 'python train.py'"])
def test_training_on_a_terminal_ends_too(read, command: str) -> None:
    file = read(f"services:\n  a: {{image: x, tty: true, stdin_open: true, command: {command}}}\n")
    assert file.services["a"].is_task


def test_a_shell_on_a_terminal_does_not(read) -> None:
    file = read("services:\n  a: {image: x, tty: true, command: /bin/bash}\n")
    assert file.services["a"].why_service == "it keeps a terminal open"


def test_a_restart_on_failure_is_a_tasks(read) -> None:
    assert read("services:\n  a: {image: x, restart: on-failure}\n").services["a"].is_task


def test_folders_of_the_host_are_handed_over_too(read, tmp_path) -> None:
    text = """
services:
  prep: {image: x, volumes: ["./data:/out"]}
  train: {image: x, depends_on: [prep], volumes: ["./data/processed:/in:ro"]}
"""
    assert waits(read(text)) == [("prep", "train")]


def test_who_never_runs_next_to_whom(read) -> None:
    text = f"""{HEAD}
  train: {{image: x, depends_on: [prep], volumes: [data:/in]}}
  eval: {{image: x, depends_on: {{train: {{condition: service_completed_successfully}}}}}}
  other: {{image: x}}
{TAIL}"""
    file = read(text)
    assert file.needs["train"] == ("prep",) and file.never_together("eval", "prep")
    assert file.never_together("prep", "train") and not file.never_together("other", "prep")
