"""The examples in the helps: each of ``explain``'s is run, those of the other verbs are parsed."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest

import fork_server
from seatrial.cli import VERBS

LOG = "epoch 1\nRuntimeError: CUDA error: no kernel image is available for execution on the device\n"
KERNEL = "[ 12.3] NVRM: Xid (PCI:0000:17:00): 31, pid=4711, name=python, Ch 00000008\n"


@lru_cache
def seatrial(*words: str, folder: str = ".", stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {"COLUMNS": "160", "PATH": "/usr/bin:/bin", "HOME": folder}
    if not stdin:
        return fork_server.server().run(words, Path(folder), environment, 60)
    command = [sys.executable, "-m", "seatrial", *words]
    return subprocess.run(command, cwd=folder, input=stdin, capture_output=True, text=True, env=environment)


def examples(text: str) -> list[str]:
    """Lines that begin with our name, or with a program whose output we get; without what is said of them."""
    lines = (re.split(r"\s{3,}|\s+#\s", line.strip())[0] for line in text.splitlines())
    return [line for line in lines if re.match(r"(\w+ \| )?seatrial [a-z]", line)]


def own_words(example: str) -> list[str]:
    words = shlex.split(example.rpartition("| ")[2])
    return words[1 : words.index("<")] if "<" in words else words[1:]


def test_there_are_examples() -> None:
    assert len(examples(seatrial("explain", "--help").stdout)) >= 5
    assert len(examples(seatrial("--help").stdout)) >= 1


def test_every_example_of_explain_explains(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(LOG)
    for example in examples(seatrial("explain", "--help").stdout):
        if own_words(example) == ["explain", "last"]:  # a run: integration/test_lifecycle.py
            continue
        stdin = KERNEL if "|" in example else LOG if "<" in example else ""
        done = seatrial(*own_words(example), folder=str(tmp_path), stdin=stdin)
        assert done.returncode == 0 and "fix" in done.stdout, (example, done.stdout, done.stderr)


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_every_example_can_be_parsed(verb: str) -> None:
    """With --help behind it a verb says its help, unless it does not know an option before."""
    done = seatrial(*([verb] if verb else []), "--help")
    assert done.returncode == 0
    for example in examples(done.stdout):
        words = own_words(example)
        if words[0] not in VERBS:
            assert words == ["COMMAND", "--help"]
            continue
        ours = words[: words.index("--")] if "--" in words else words
        result = seatrial(*ours, "--help")
        assert result.returncode == 0 and "Usage: " in result.stdout, (example, result.stderr)
