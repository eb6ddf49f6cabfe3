"""`runs verify`: a real run of the local backend, and then somebody's hand in its record."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes import a_local_job, untold
from seatrial.errors import UntrustedPathError
from seatrial.events import EvidenceLog, Note
from seatrial.monitor.run_view import Receipts
from seatrial.runs.launch import prepare, start
from seatrial.runs.run import Run
from seatrial.runs.run_actions import verify
from seatrial.runs.status import finalise
from seatrial.runs.watch import follow
from seatrial.system.host import Host

SCRIPT = 'import json, os\nprint(json.dumps({"loss": 0.5}), file=open(os.environ["SEATRIAL_EVENTS"], "a"))\n'


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that has ended and has its receipt; not to be changed."""
    job, host = a_local_job(tmp_path_factory.mktemp("verify"), SCRIPT)
    prepared = prepare(job, host, building=untold)
    start(prepared, host, lambda line: None)
    follow(prepared.run, lambda stream, data: None, host)
    receipt = finalise(prepared.run, host)
    assert receipt is not None and receipt.exit_code == 0
    return prepared.run


@pytest.fixture
def run(ended: Run, tmp_path: Path) -> Run:
    """A copy of it."""
    shutil.copytree(ended.folder, tmp_path / ended.id)
    place = tmp_path / "project" / ".seatrial" / "runs" / ended.id
    shutil.copytree(ended.place, place, symlinks=True)
    for link in (each for each in place.iterdir() if each.is_symlink()):
        link.unlink()
        link.symlink_to(tmp_path / ended.id / link.name)
    return Run(tmp_path / ended.id, place)


def lines_of(run: Run) -> list[bytes]:
    return run.events_path.read_bytes().splitlines(keepends=True)


def test_a_run_as_it_was_written_is_intact(run: Run) -> None:
    verdict = verify(run)
    lines = len(lines_of(run))
    assert verdict.intact and verdict.sentences[0].startswith(f"intact: {lines} lines, digest ")


def rewrite(name: str, change: Callable[[bytes], bytes]) -> Callable[[Run], object]:
    """Make a hand that changes a file of the record."""
    return lambda run: (run.folder / name).write_bytes(change((run.folder / name).read_bytes()))


def _write_anew(run: Run) -> None:
    events = [{k: v for k, v in json.loads(line).items() if k != "_chain"} for line in lines_of(run)]
    run.events_path.unlink()
    EvidenceLog(str(run.events_path), "agent").append([*events, {"type": "gpu.context", "source": "agent"}])


def _fifo(run: Run, name: str = "plan.json") -> None:
    (run.folder / name).unlink()
    os.mkfifo(run.folder / name)


def _lead_elsewhere(run: Run) -> None:
    (run.place / "stdout.log").unlink()
    (run.place / "stdout.log").write_text("Done.\n")


EVENTS = "events.jsonl"
BARE = b'{"type":"gpu.context","source":"agent","uuid":"GPU-0"}\n'
_edit = rewrite(EVENTS, lambda data: data.replace(b'"exit_code":0', b'"exit_code":1', 1))
_receipt = rewrite("receipt.json", lambda data: data.replace(b'"exit_code": 0', b'"exit_code": 1'))

HANDS: dict[str, tuple[Callable[[Run], object], str]] = {
    "a line is edited": (_edit, "was changed after it was written"),
    "a line is taken out": (
        rewrite(EVENTS, lambda data: b"".join(line for n, line in enumerate(data.splitlines(True)) if n != 2)),
        "line 3 of",
    ),
    "the end is cut off": (rewrite(EVENTS, lambda data: b"".join(data.splitlines(True)[:-1])), "the receipt covers"),
    "a line is added with its chain": (
        lambda run: EvidenceLog(str(run.events_path), "agent").write(Note(message="more")),
        "the receipt covers",
    ),
    "a line is added": (rewrite(EVENTS, lambda data: data + BARE), "was changed after it was written"),
    "all is written anew": (_write_anew, "the receipt covers"),
    "all is emptied": (rewrite(EVENTS, lambda data: b""), "the receipt covers"),
    "the evidence is gone": (lambda run: run.events_path.unlink(), "events.jsonl is missing"),
    "the receipt is edited": (_receipt, "receipt.json"),
    "the receipt is gone": (lambda run: (run.folder / "receipt.json").unlink(), "receipt.json is missing"),
    "the receipt fits evidence that is written anew": (lambda run: (_write_anew(run), _receipt(run)), "receipt.json"),
    "a file is added": (lambda run: (run.folder / "more.log").touch(), "more.log was added"),
    "a link is added": (lambda run: (run.folder / "more.log").symlink_to("name"), "more.log was added"),
    "a file becomes a FIFO": (_fifo, "plan.json"),
    "the evidence becomes a FIFO": (lambda run: _fifo(run, EVENTS), "events.jsonl cannot be read"),
    "the summary has other content": (rewrite("summary.json", lambda data: b"[]"), "summary.json"),
    "the seal is gone": (lambda run: (run.folder / "seal.json").unlink(), "seal.json is missing"),
    "the copy in the project is edited": (
        lambda run: (run.place / "receipt.html").write_text("another"),
        "receipt.html differs from the record",
    ),
    "the log's link in the project leads elsewhere": (_lead_elsewhere, "stdout.log does not lead to the record"),
}


@pytest.mark.parametrize("hand", HANDS)
def test_a_hand_in_it_is_found(run: Run, hand: str) -> None:
    change, printed = HANDS[hand]
    change(run)
    verdict = verify(run)
    assert not verdict.intact
    assert verdict.sentences[0].startswith("broken: ") and printed in verdict.sentences[0]


def test_a_run_that_goes_on_is_intact_so_far(run: Run) -> None:
    (run.folder / "summary.json").unlink()
    verdict = verify(run)
    assert verdict.intact and "has not ended" in verdict.sentences[0]
    _edit(run)
    assert not verify(run).intact


def test_an_edit_to_any_file_of_the_record_is_found(run: Run) -> None:
    names = sorted(each.name for each in run.folder.iterdir() if each.is_file() and each.suffix != ".lock")
    assert {"receipt.html", "receipt.md", "stdout.log", "stderr.log", "plan.json", "summary.json"} <= {*names}
    for name in names:
        before = (run.folder / name).read_bytes()
        (run.folder / name).write_bytes(before + b" ")
        verdict = verify(run)
        assert not verdict.intact and any(name in sentence for sentence in verdict.sentences), name
        (run.folder / name).write_bytes(before)
    assert verify(run).intact


def test_notes_that_are_written_after_the_judgement_are_named_as_not_covered(run: Run) -> None:
    (run.folder / "notified.txt").write_text("true: done\n")
    verdict = verify(run)
    assert verdict.intact and verdict.sentences[1] == "not covered, as written later or above 512 MiB: notified.txt"


def test_a_run_of_an_earlier_version_names_the_files_without_a_digest(run: Run) -> None:
    (run.folder / "seal.json").unlink()
    summary = json.loads((run.folder / "summary.json").read_bytes())
    del summary["sealed"]
    (run.folder / "summary.json").write_text(json.dumps(summary))
    verdict = verify(run)
    assert verdict.intact and "not covered, as an earlier version kept no digest: " in verdict.sentences[1]
    assert "plan.json" in verdict.sentences[1] and "stdout.log" in verdict.sentences[1]


def test_a_receipt_that_was_changed_is_not_shown(run: Run) -> None:
    assert finalise(run, Host({})) is not None
    _receipt(run)
    with pytest.raises(UntrustedPathError, match=r"receipt\.json was changed after it was written"):
        finalise(run, Host({}))
    with pytest.raises(UntrustedPathError, match=r"receipt\.json was changed after it was written"):
        Receipts().of(run)
