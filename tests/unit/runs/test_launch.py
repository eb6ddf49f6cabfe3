"""What a launch says before anything starts."""

from pathlib import Path

from seatrial.runs.launch import _nothing_to_resume


def test_resuming_a_run_without_checkpoints_says_that_it_begins_anew(tmp_path: Path) -> None:
    (warning,) = _nothing_to_resume("worker1", tmp_path)
    assert "worker1" in warning
    assert "$SEATRIAL_RESUME_DIR" in warning


def test_resuming_a_run_with_a_checkpoint_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "step-10.pt").touch()
    assert _nothing_to_resume("worker1", tmp_path) == []
    assert _nothing_to_resume(None, None) == []
