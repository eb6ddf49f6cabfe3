"""Messages as programs print them, with causes that threads or manuals established: explain finds each first."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.doctor.explain import explain_text
from seatrial.findings.catalogue import by_id
from tables import cases, constant

tomllib = pytest.importorskip("tomllib")  # Python 3.11
MESSAGES = tomllib.loads((Path(__file__).parents[2] / "findings" / "messages.toml").read_text())["message"]
TUTORIALS = constant(__file__, "tutorials")


def test_first_finding_is_the_cause() -> None:
    wrong = {}
    for message in MESSAGES:
        found = [finding.id for finding in explain_text(str(message["text"]))]
        if found[:1] != [message["finds"]]:
            wrong[message["text"]] = found
    assert wrong == {}
    assert by_id("harmless-note").severity == "info"


def test_tutorials_messages_have_one_finding_each() -> None:
    found = {each["text"]: [finding.id for finding in explain_text(each["text"])] for each in TUTORIALS}
    assert found == {each["text"]: [each["finds"]] for each in TUTORIALS}


def test_messages_with_numbers_and_addresses_have_them_in_their_fix() -> None:
    [found] = explain_text(
        "The repository 'https://nvidia.github.io/nvidia-docker/ubuntu22.04 Release' does not have a"
    )
    assert found.fix and "libnvidia-container/stable/deb" in found.fix and "base =" not in found.fix
    [found] = explain_text("RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x1600 and 9216x128)")
    assert found.cause and "nn.Linear(9216, 128) expects 9216 features" in found.cause and "1600" in found.cause
    assert found.fix and found.fix.startswith("nn.Linear(1600, 128) ")


TRACEBACK = """Traceback (most recent call last):
  File "/workspace/train.py", line 9, in <module>
    {call}
{error}
"""
ABSENT = "FileNotFoundError: [Errno 2] No such file or directory: '/outputs/a.csv'"
ERRORS = {"absent": ABSENT, "refused": "PermissionError: [Errno 13] Permission denied: '/outputs/a.csv'"}


@cases("call", "error", "finds")
def test_failed_write_differs_from_missing_data(call: str, error: str, finds: str) -> None:
    [found] = explain_text(TRACEBACK.format(call=call, error=ERRORS[error]))
    assert found.id == finds
    assert finds != "output-folder-missing" or found.message.endswith(": /outputs")


def test_fix_of_a_folder_of_another_user_gives_it_to_this_one() -> None:
    refused = "PermissionError: [Errno 13] Permission denied: 'my out/model.json'"
    [found] = explain_text(TRACEBACK.format(call='open("my out/model.json", "w")', error=refused))
    assert found.fix == """sudo chown -R "$(id -u)" 'my out'""", "the folder is there, so makedirs changes nothing"
    [found] = explain_text(TRACEBACK.format(call='open("out/a", "w")', error=ABSENT.replace("/outputs", "out")))
    assert found.fix and found.fix.startswith('os.makedirs("out", exist_ok=True)')


def test_read_after_a_write_that_was_caught_is_a_read() -> None:
    written = TRACEBACK.format(call='torch.save(state, "last.pt")', error="RuntimeError: something")
    read = TRACEBACK.format(call='open("/data/a.csv")', error=ABSENT)
    assert "file-missing" in [finding.id for finding in explain_text(written + read)]


def test_harmless_note_is_left_out_with_a_failure() -> None:
    note = "This TensorFlow binary is optimized with oneAPI Deep Neural Network Library"
    assert [finding.id for finding in explain_text(note)] == ["harmless-note"]
    failed = explain_text(f"{note}\nRuntimeError: No CUDA GPUs are available")
    assert [finding.id for finding in failed] == ["no-cuda-device"]
