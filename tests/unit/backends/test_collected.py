"""An agent's log taken apart into the run's record: evidence, reports and output, each to its own place."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seatrial import events, frames
from seatrial.backends.log_sink import Sink


def evidence(type: str, seq: int, **keys: Any) -> bytes:
    return frames.encode(frames.EVIDENCE, json.dumps({"t": 1.0, "type": type, "_seq": seq, **keys}).encode())


def reported(seq: int, line: bytes) -> bytes:
    return frames.encode(frames.REPORT, b"%d 12.5000 %s" % (seq, line))


def take(folder: Path, log: bytes, **options: Any) -> list[dict[str, Any]]:
    """The record's events after a sink has taken this log."""
    sink = Sink(folder, **options)
    decoder = frames.FrameDecoder()
    for line in log.split(b"\n")[:-1]:
        sink.take(decoder, line)
    sink.close()
    return recorded(folder)


def recorded(folder: Path) -> list[dict[str, Any]]:
    read, skipped = events.read(str(folder / "events.jsonl"))
    assert skipped == 0 and events.follow_chain(str(folder / "events.jsonl")).broken_at is None
    return read


def texts(folder: Path) -> tuple[bytes, bytes]:
    """stdout and stderr, checked against the index."""
    logs = {"1": (folder / "stdout.log").read_bytes(), "2": (folder / "stderr.log").read_bytes()}
    counted = {"1": 0, "2": 0}
    for line in (folder / "output.idx").read_text().splitlines():
        _, number, size = line.split()
        counted[number] += int(size)
    assert counted == {number: len(log) for number, log in logs.items()}
    return logs["1"], logs["2"]


def test_each_goes_to_its_place(tmp_path: Path) -> None:
    log = b"".join(
        [
            evidence("agent.started", 1, alterable=None),
            b"epoch 1\n",
            frames.encode(frames.STDERR, b"warning"),
            reported(2, b'{"step": 1, "loss": 0.5, "t": 7.0}'),
            reported(3, b'{"step": 2}'),
            b"epoch 2\n",
        ]
    )
    started, first, second = take(tmp_path, log)
    assert (started["type"], started["source"]) == ("agent.started", "agent")
    assert (first["type"], first["source"], first["t"], first["_seq"]) == ("step", "target", 7.0, 2)
    assert second["t"] == 12.5  # the agent's clock, where the target reports no time
    assert texts(tmp_path) == (b"epoch 1\nepoch 2\n", b"warning\n")
    assert [line.split()[1] for line in (tmp_path / "output.idx").read_text().splitlines()] == ["1", "2", "1"]


def test_evidence_speaks_for_the_agent_alone(tmp_path: Path) -> None:
    """An agent that a hostile root has taken over cannot speak for the host."""
    [event] = take(tmp_path, evidence("host.state", 1, source="host", exit_code=0))
    assert event["source"] == "agent"


_BAD = st.one_of(
    st.binary(max_size=60),
    st.sampled_from(
        [
            frames.REPORT + b"",
            frames.REPORT + b"x y z",
            frames.REPORT + b"1",
            frames.REPORT + b"1 nan {}",
            frames.REPORT + b"1 1e999 {}",
            frames.REPORT + b"9" * 5000 + b" 1 {}",
            frames.EVIDENCE + b"{}",
            frames.EVIDENCE + b'{"_seq":"1","t":"x","type":7}',
            frames.EVIDENCE + b'{"_seq":1e999}',
            frames.EVIDENCE + b'{"_seq":' + b"9" * 4000 + b"}",
            frames.EVIDENCE + b'{"t":NaN,"a":' + b"[" * 900 + b"NaN" + b"]" * 900 + b"}",
            frames.CONTINUED + frames.EVIDENCE + b"{",
            frames.CONTINUED,
        ]
    ),
)


@settings(deadline=None)
@given(st.lists(_BAD.map(lambda line: line.replace(b"\n", b"")), max_size=15), st.booleans(), st.sampled_from([1, 2]))
def test_no_log_stops_the_collector(
    tmp_path_factory: pytest.TempPathFactory, lines: Sequence[bytes], again: bool, nodes: int
) -> None:
    folder = tmp_path_factory.mktemp("record")
    take(folder, b"".join(line + b"\n" for line in lines), nodes=nodes, again=again)
    sink = Sink(folder, nodes, again=again)  # and what it wrote does not stop the next
    sink.host_event(events.Note(message="p"))
    sink.close()
    assert recorded(folder)[-1]["message"] == "p"


def test_back_to_where_the_last_one_was_sure(tmp_path: Path) -> None:
    sink = Sink(tmp_path, again=True)
    decoder = frames.FrameDecoder()
    sink.take(decoder, b"kept")
    sink.flush()
    sizes = sink.sizes()
    sink.take(decoder, b"comes again")
    sink.take(decoder, frames.STDERR + b"this too")
    sink.close()
    sink = Sink(tmp_path, again=True)
    sink.cut(sizes)
    sink.close()
    assert texts(tmp_path) == (b"kept\n", b"")


def test_several_nodes_report_theirs(tmp_path: Path) -> None:
    sink = Sink(tmp_path, nodes=2)
    decoders = [frames.FrameDecoder(), frames.FrameDecoder()]
    half = frames.encode(frames.STDOUT, b"half a ", whole=False)
    sink.take(decoders[0], half.rstrip(b"\n"), 0)
    sink.take(decoders[1], b"of the other", 1)
    sink.take(decoders[0], b"line", 0)
    sink.take(decoders[0], evidence("note", 1, node=7).rstrip(b"\n"), 0)
    sink.take(decoders[1], reported(1, b'{"step": 1, "node": 0}').rstrip(b"\n"), 1)
    sink.take(decoders[1], half.rstrip(b"\n"), 1)
    sink.close()
    assert texts(tmp_path)[0] == b"[rank1]: of the other\n[rank0]: half a line\n[rank1]: half a \n"
    assert [event["node"] for event in recorded(tmp_path)] == [0, 1]


@pytest.mark.parametrize("name", ["stdout.log", "output.idx", "events.jsonl"])
def test_a_link_in_the_record_is_not_written_through(tmp_path: Path, name: str) -> None:
    (tmp_path / "outside").touch()
    (tmp_path / name).symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match="symbolic link"):
        Sink(tmp_path)
    assert (tmp_path / "outside").read_bytes() == b""


def start_of(at: float, last: int) -> bytes:
    """Return the frames of one start of an agent."""
    lines = [frames.encode(frames.EVIDENCE, json.dumps({"t": at, "type": "agent.started", "_seq": 1}).encode())]
    lines += [evidence("sample", seq) for seq in range(2, last)]
    return b"".join([*lines, evidence("agent.finished", last, exit_code=5)])


@pytest.mark.parametrize("cut", range(1, 14))
def test_a_collector_that_is_killed_at_any_line_of_several_starts(tmp_path: Path, cut: int) -> None:
    log = start_of(1.0, 5) + start_of(9.0, 3) + start_of(20.0, 6)
    lines = log.split(b"\n")[:-1]
    take(tmp_path, b"".join(line + b"\n" for line in lines[:cut]), again=True)
    kept = take(tmp_path, log, again=True)
    assert [event["_seq"] for event in kept] == [1, 2, 3, 4, 5, 1, 2, 3, 1, 2, 3, 4, 5, 6]
