"""explain: every string that programs print leads to its entry; logs of any size and encoding."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator

import pytest

from seatrial.diagnosis.diagnosis import MEANING
from seatrial.doctor.explain import explain_stream, explain_text
from seatrial.findings.catalogue import entries
from symptoms import shown
from tables import cases, constant

#: As printed, with what differs from case to case filled in → the entry.
PRINTED = constant(__file__, "PRINTED")


@pytest.mark.parametrize("text", PRINTED, ids=lambda text: text[:40])
def test_what_is_printed_leads_to_its_entry(text: str) -> None:
    assert [finding.id for finding in explain_text(text)] == [PRINTED[text]]


@pytest.mark.parametrize("entry", [entry for entry in entries() if entry.symptoms], ids=lambda entry: entry.id)
def test_every_symptom_leads_to_its_own_entry(entry: object) -> None:
    for symptom in entry.symptoms:  # type: ignore[attr-defined]
        text = shown(symptom)
        assert [finding.id for finding in explain_text(text)] == [entry.id]  # type: ignore[attr-defined]


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.id)
def test_an_id_is_explained(entry: object) -> None:
    [finding] = explain_text(f" {entry.id}\n")  # type: ignore[attr-defined]
    assert finding.cause and finding.fix


def test_a_line_that_a_terminal_broke_is_still_known() -> None:
    text = "RuntimeError: CUDA error: no kernel image is\n  available for execution on the device"
    assert "no-kernel-image" in [finding.id for finding in explain_text(text)]


#: Name → a pasted log and its findings; ``{frames}`` is a long traceback, ``{width}`` a line as wide as a terminal.
LOGS = constant(__file__, "LOGS")
FRAMES = "\n".join(
    f'  File "/opt/x/y{n}.py", line {n}, in call\n    return self._call(*args, **kwargs)' for n in range(120)
)


@pytest.mark.parametrize("name", LOGS)
def test_a_log_as_it_is_pasted(name: str) -> None:
    """From a file, and with what PowerShell makes of it."""
    text, ids = LOGS[name]
    text = text.replace("{frames}", FRAMES).replace("{width}", FRAMES[:70])
    for log in (text.encode(), text.replace("\n", "\r\n").encode(), text.encode("utf-16")):
        assert [finding.id for finding in explain_stream(io.BytesIO(log))] == list(ids)


def test_a_line_behind_a_progress_bar_is_the_evidence() -> None:
    [finding] = explain_stream(io.BytesIO(b"epoch 1\n" + b" 3%|#\r" * 500 + b"CUDA out of memory\n"))
    assert finding.evidence == ["line 2: CUDA out of memory"]


@cases("text")
def test_what_many_symptoms_begin_with_is_none_of_them(text: str) -> None:
    assert explain_text(text) == []


def test_a_part_of_a_message_in_a_file() -> None:
    [finding] = explain_stream(io.BytesIO(b"no kernel image is avail"))
    assert finding.id == "no-kernel-image"


@cases("line")
def test_a_healthy_line_is_no_part_of_a_failure_either(line: str) -> None:
    assert explain_text(line) == []
    assert explain_text(f"epoch 1\n{line}\nepoch 2 loss 0.3\n") == []


def test_nothing_is_made_up() -> None:
    assert explain_text("Traceback (most recent call last):\nKeyError: 'x'") == []


class Endless(io.RawIOBase):
    """A log that is made while it is read: ``size`` bytes of one line, and a failure behind it."""

    def __init__(self, size: int, filler: bytes) -> None:
        self.parts = self._parts(size, filler)

    def _parts(self, size: int, filler: bytes) -> Iterator[bytes]:
        for _ in range(size // (1 << 20)):
            yield filler * ((1 << 20) // len(filler))
        yield b"\nRuntimeError: CUDA out of memory. Tried \xff\xfe to allocate\n"

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        self.kept = getattr(self, "kept", b"") or next(self.parts, b"")
        count = min(len(view), len(self.kept))
        view[:count], self.kept = self.kept[:count], self.kept[count:]
        return count


@pytest.mark.parametrize("filler", [b"x" * 64, b"\xff\xfe\x00" * 21 + b"\n"], ids=["one line", "no UTF-8"])
def test_memory_stays_bounded(filler: bytes) -> None:
    stream = io.BufferedReader(Endless(6 << 20, filler), 1 << 16)
    explain_stream(io.BytesIO((filler.rstrip(b"\n") + b"\n") * 25_000))  # what is compiled once does not count
    tracemalloc.start()
    found = explain_stream(stream)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [finding.id for finding in found] == ["cuda-out-of-memory"]
    assert peak < 4 << 20  # the log itself is made of 1 MiB pieces


def run(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", "seatrial", "explain", *arguments], input=stdin, capture_output=True)


def test_the_command_reads_stdin_and_prints_what_it_knows() -> None:
    done = run("--json", stdin=b"\xff\xfeepoch 1\nRuntimeError: No CUDA GPUs are available\n")
    [finding] = json.loads(done.stdout)
    assert done.returncode == 0 and finding["id"] == "no-cuda-device"
    assert finding["evidence"] == ["line 2: RuntimeError: No CUDA GPUs are available"]
    done = run(stdin=b"all is well\n")
    assert done.returncode == 1 and b"seatrial doctor" in done.stdout
    done = run("CUDA", "out of memory")
    assert done.returncode == 0 and b"id    cuda-out-of-memory" in done.stdout


@pytest.mark.parametrize("cause", MEANING)
def test_what_bounds_a_run_is_explained(cause: str) -> None:
    (found,) = explain_text(cause)
    assert found.id == cause and MEANING[cause] in found.message  # type: ignore[index]
    assert "runs show" in (found.fix or "")
