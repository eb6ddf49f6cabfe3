"""Reports of the target: read as they grow, from any kind of file."""

import os

import pytest

from seatrial import events
from seatrial.agent import output
from seatrial.agent.journal import Journal
from seatrial.agent.output import Activity, TargetReports
from seatrial.events import MAX_REPORT_BYTES


class Desk:
    """A file of reports, its reader, and the events that it makes."""

    def __init__(self, folder):
        self.path = folder / "events.jsonl"
        (folder / "evidence").mkdir()
        self._journal = str(folder / "evidence")
        self.activity = Activity()

    def open(self):
        self.reports = TargetReports(str(self.path), Journal(self._journal), self.activity)
        return self.reports

    def write(self, data):
        with self.path.open("ab") as file:
            file.write(data)

    def reported(self):
        return events.read(f"{self._journal}/events.jsonl")[0]

    def steps(self):
        return [event.get("step") for event in self.reported() if event["type"] == "step"]


@pytest.fixture
def desk(tmp_path):
    made = Desk(tmp_path)
    made.open()
    return made


def line(number):
    return b'{"step": %d}\n' % number


def test_lines_come_as_they_are_completed(desk):
    desk.reports.read()
    assert not desk.activity.new()
    desk.write(line(1) + line(2) + b'{"st')
    desk.reports.read()
    assert desk.steps() == [1, 2] and desk.activity.new()
    desk.reports.read()
    assert desk.steps() == [1, 2] and not desk.activity.new()
    desk.write(b'ep": 3}\n')
    desk.reports.read()
    assert desk.steps() == [1, 2, 3]


def test_lines_from_before_the_agent_are_skipped_and_the_last_line_need_not_end(desk):
    desk.write(line(1))
    desk.open()
    desk.write(line(2) + b'{"step": 3}')
    desk.reports.finish()
    assert desk.steps() == [2, 3]


def test_a_file_that_is_cut_or_replaced_is_read_from_its_beginning(desk):
    desk.write(line(1) + line(2))
    desk.reports.read()
    desk.path.write_bytes(line(3))
    desk.reports.read()
    other = desk.path.with_name("other")
    other.write_bytes(line(4) + line(5) + line(6))
    other.replace(desk.path)
    desk.reports.finish()
    assert desk.steps() == [1, 2, 3, 4, 5, 6]


def test_a_line_that_is_too_long_is_passed_over_with_its_end(desk):
    """Its last part could be read as a line of its own."""
    desk.write(line(1) + b"x" * (3 << 20))
    desk.reports.read()
    desk.write(b"x" * (2 << 20) + line(2) + line(3) + b"x" * (MAX_REPORT_BYTES + 1))
    desk.reports.finish()
    assert desk.steps() == [1, 3]


@pytest.mark.slow
def test_a_fast_writer_does_not_keep_the_agent(desk, monkeypatch):
    desk.write(b"".join(line(number) for number in range(200_000)))
    desk.reports.read(1 << 20)
    once = len(desk.steps())
    assert 0 < once < 200_000
    monkeypatch.setattr(output, "_AT_END_BYTES", 2 << 20)
    desk.reports.finish()
    assert once < len(desk.steps())


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "device"])
def test_what_is_no_regular_file_is_noted_once_and_never_followed(desk, tmp_path, kind):
    outside = tmp_path / "outside"
    outside.write_bytes(line(99))
    make = {
        "link": lambda: desk.path.symlink_to(outside),
        "pipe": lambda: os.mkfifo(desk.path),
        "folder": desk.path.mkdir,
        "device": lambda: os.mknod(desk.path, 0o020600, os.makedev(1, 5)),
    }
    try:
        make[kind]()
    except PermissionError:
        pytest.skip("only root makes devices")
    for _ in range(3):
        desk.reports.read()
    desk.reports.finish()
    [note] = desk.reported()
    assert note["type"] == "note" and "reports in $SEATRIAL_EVENTS are not read" in note["message"]
    desk.open()  # an agent that starts with it does not hang either


def test_a_file_that_becomes_one_again_is_read_and_a_missing_folder_is_no_trouble(desk, tmp_path):
    desk.write(line(1))
    desk.reports.read()
    desk.path.unlink()
    desk.path.symlink_to(tmp_path / "nowhere")
    desk.reports.read()
    desk.path.unlink()
    desk.write(line(2))
    desk.reports.finish()
    assert desk.steps() == [1, 2]
    desk.reports._lines.path = str(desk.path / "not" / "there")
    desk.reports.finish()
    assert desk.steps() == [1, 2]


@pytest.mark.parametrize(("bound", "most"), [("_MOST_LINES", 3), ("_MOST_BYTES", 3 * len(line(1)) - 3)])
def test_a_target_cannot_make_evidence_that_no_judge_can_hold(desk, monkeypatch, bound, most):
    monkeypatch.setattr(output, bound, most)
    desk.write(b"".join(map(line, range(1, 9))))
    desk.reports.finish()
    notes = [event["message"] for event in desk.reported() if event["type"] == "note"]
    assert desk.steps() == [1, 2, 3] and notes == ["lines in $SEATRIAL_EVENTS beyond the first 3 are ignored"]
