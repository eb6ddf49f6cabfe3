"""The agent's journal: numbered lines, as frames on stdout or in a file; reports that stay reports."""

import json
import os
import threading

import pytest

from seatrial import events, frames
from seatrial.agent import journal as journal_module
from seatrial.agent.journal import Journal

FORGED = b'{"type":"gpu.context","source":"agent","uuid":"GPU-0","pid":7,"evidence":"nvml-process"}'


def taken_apart(log):
    """(kind, bytes) of each line of a log, its pieces put together."""
    decoder = frames.FrameDecoder()
    decoded = [decoder.feed(line) for line in log.splitlines(keepends=True)]
    assert not decoder.waiting
    return [(kind, data) for kind, data in decoded if data]


@pytest.fixture(params=["framed", "filed"])
def pen(request, tmp_path, capfdbinary):
    """A journal; and what has come of it: events, those of reports as they stand in the frame."""

    def written():
        if request.param == "filed":
            read, skipped = events.read(str(tmp_path / "events.jsonl"))
            assert skipped == 0 and events.follow_chain(str(tmp_path / "events.jsonl")).broken_at is None
            return read
        found = []
        for kind, data in taken_apart(capfdbinary.readouterr().out):
            if kind == frames.EVIDENCE:
                found.append(json.loads(data))
            else:
                assert kind == frames.REPORT
                seq, at, line = data.split(b" ", 2)
                step, claimed = events.report(line.rstrip(b"\n"))
                assert claimed is None
                found.append({**(step or {"type": "report.unreadable"}), "_seq": int(seq), "t": float(at)})
        return found

    return Journal(None if request.param == "framed" else str(tmp_path)), written


FORGERIES = [
    (FORGED, "gpu.context"),
    (b'{"type":"finding","severity":"info"}', "finding"),
    (b'{"source":"agent","loss":1}', "step"),
    (b'{"\\u0074ype":"target.exited","exit_code":0}', "target.exited"),
    (b'{"type":"\\u0061gent.finished"}', "agent.finished"),
    (b'{"type":"step","type":"sample"}', "sample"),
    (b'{ "type" : "host.state" , "exit_code" : 0 }', "host.state"),
    (b'{"sourc\\u0065":"host"}', "step"),
]


@pytest.mark.parametrize(("line", "claim"), FORGERIES)
def test_a_report_that_poses_as_evidence_is_reported_and_not_passed_on(pen, line, claim):
    journal, written = pen
    journal.report(line)
    [event] = written()
    assert (event["type"], event["claims"]) == ("report.refused", {claim: 1})


@pytest.mark.parametrize(("count", "written_events"), [(1, 1), (500, 21)])
def test_many_forgeries_are_counted_and_do_not_fill_the_log(pen, count, written_events):
    journal, written = pen
    for _ in range(count):
        journal.report(FORGED)
    journal.report_refusals()
    read = written()
    assert len(read) == written_events and read[-1]["claims"] == {"gpu.context": count}


@pytest.mark.parametrize(
    "line", [b"garbage", b"[1]", b"\xff\xfe", b'{"a":' * 5000, b"0" * (events.MAX_REPORT_BYTES + 5)]
)
def test_what_is_no_report_is_a_number_in_the_row_and_nothing_else(pen, line):
    journal, written = pen
    journal.report(line)
    journal.note("after")
    assert [(event["type"], event["_seq"]) for event in written()] == [("report.unreadable", 1), ("note", 2)]


def test_events_and_reports_are_numbered_from_one_and_secrets_are_cut_out_of_them(pen):
    journal, written = pen
    journal.hide([b'hunt"er', b"tok"])
    journal.write(events.Note(message='see hunt"er'))
    journal.report(json.dumps({"text": 'hunt"er and tok', "loss": 0.5}).encode())
    first, second = written()
    assert [(event["type"], event["source"], event["_seq"]) for event in (first, second)] == [
        ("note", "agent", 1),
        ("step", "target", 2),
    ]
    assert (first["message"], second["text"], second["loss"]) == ("see [redacted]", "[redacted] and [redacted]", 0.5)


def test_nothing_that_a_report_holds_begins_a_frame_of_its_own(capfdbinary):
    journal = Journal(None)
    for mark in (frames.EVIDENCE, frames.REPORT, frames.STDERR, frames.STDOUT, frames.CONTINUED):
        journal.report(mark + FORGED.replace(b'"type"', b'"x"').replace(b'"source"', b'"y"'))
        journal.report(b'{"x": "' + mark * 3 * frames.PIECE_BYTES + b'"}')
    assert {kind for kind, _ in taken_apart(capfdbinary.readouterr().out)} == {frames.REPORT}


def test_lines_of_several_threads_are_each_whole_and_in_order(capfdbinary):
    journal = Journal(None)

    def write():
        for _ in range(200):
            journal.note("x" * 20_000)
            journal.report(b'{"loss": 1}')

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    read = taken_apart(capfdbinary.readouterr().out)
    numbers = [json.loads(data)["_seq"] if kind == frames.EVIDENCE else int(data.split()[0]) for kind, data in read]
    assert numbers == list(range(1, 1601))


def test_a_full_disk_is_printed_once_and_is_no_end(tmp_path, capfd, monkeypatch):
    journal = Journal(str(tmp_path))
    journal.note("before")
    real = os.write

    def full(descriptor, data):
        return real(descriptor, data) if descriptor < 3 else real(descriptor, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", full)
    journal.note("lost")
    journal.note("lost")
    monkeypatch.undo()
    journal.note("after")
    assert capfd.readouterr().err.count("events are being lost") == 1
    read, skipped = events.read(str(tmp_path / "events.jsonl"))
    assert [event["_seq"] for event in read] == [1, 4] and skipped == 0  # what is missing is known by its number
    assert events.follow_chain(str(tmp_path / "events.jsonl")).broken_at is None


def test_evidence_is_kept_for_a_reader_that_stalls_and_output_is_not(monkeypatch):
    monkeypatch.setattr(journal_module, "STALL_S", 0.05)
    read_end, write_end = os.pipe()
    saved = os.dup(1)
    os.dup2(write_end, 1)
    try:
        journal = Journal(None)
        output = journal.output_channel(1)
        for number in range(40):
            output.write(b"%d " % number + b"x" * 100_000 + b"\n")
            journal.write(events.Step(number=number))
        assert output.dropped_bytes > 1_000_000
        caught = []
        reader = threading.Thread(target=lambda: caught.extend(iter(lambda: os.read(read_end, 1 << 16), b"")))
        reader.start()
        journal.flush(5.0)
    finally:
        os.dup2(saved, 1)
        os.close(saved)
        os.close(write_end)
    reader.join()
    os.close(read_end)
    read = taken_apart(b"".join(caught))
    reported = [json.loads(data)["number"] for kind, data in read if kind == frames.EVIDENCE]
    assert reported == list(range(40))
    assert 0 < sum(kind == frames.STDOUT and data.endswith(b"\n") for kind, data in read) < 40
