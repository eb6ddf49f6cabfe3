"""A script that ends with 0 and did nothing; and honest ones that look a little like it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from seatrial.backends.base import State
from seatrial.receipt.logs import read_output
from seatrial.receipt.model import Receipt
from tables import cases, constant

from .conftest import START, Scenario, at

LEFT, HONEST = constant(__file__, "left"), constant(__file__, "honest")


class Script(Scenario):
    """A script with arguments of its own."""

    args: tuple[str, ...] = ()

    def plan(self, project: Path) -> Any:
        plan = super().plan(project)
        target = plan.job.target.model_copy(update={"args": self.args})
        return plan.model_copy(update={"job": plan.job.model_copy(update={"target": target})})


def judged(
    folder: Path,
    *,
    steps: int = 0,
    seconds: float = 2.0,
    args: tuple[str, ...] = (),
    code: int = 0,
    left_behind: tuple[int, ...] = (),
    signal: int | None = None,
    script: str | None = None,
    model: str | None = None,
    **output: Any,
) -> Receipt:
    """Judge a script on the CPU that printed ``stdout`` and ``stderr``."""
    if script is not None:
        (folder / "project").mkdir(exist_ok=True)
        (folder / "project" / "train.py").write_text(script)
    ended = {"signal": signal, "cause": "signal" if signal else "exited", "seconds": seconds}
    events = [
        at(0, "agent.started", pid=1),
        at(0, "target.started", pid=7, argv=["python3", "train.py"], launcher="none", framework=None),
        *[at(0.1 + number / 10, "step", "target", step=number, loss=0.5) for number in range(steps)],
        *[at(seconds, "signal", signal=15, name="SIGTERM", origin="end", forwarded_to=[pid]) for pid in left_behind],
        at(seconds, "target.exited", exit_code=None if signal else code, **ended),
        at(seconds, "agent.finished", exit_code=code, energy_j={}),
    ]
    run = Script(events, backend="local", state=State("exited", code), models_folder=False, model=model, **output)
    run.args = args
    return run.judge(folder)


@pytest.mark.parametrize("words", LEFT)
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_script_that_left_is_in_doubt(tmp_path: Path, words: str, stream: str) -> None:
    receipt = judged(tmp_path, **{stream: f"{words}\n"})
    [finding] = [finding for finding in receipt.findings if finding.id == "did-nothing"]
    assert finding.severity == "warning" and receipt.header.run_id in (finding.fix or "")
    assert receipt.exit_code == 0 and receipt.exit_cause.words.endswith("but apparently did nothing")


@pytest.mark.parametrize("words", HONEST)
def test_honest_script_is_not(tmp_path: Path, words: str) -> None:
    receipt = judged(tmp_path, stdout=f"{words}\n")
    assert not receipt.doubtful and "nothing" not in receipt.exit_cause.words


@pytest.mark.parametrize(
    ("script", "stdout", "doubtful"),
    [("", "", True), ("# to be written\n\n", "", True), ("open('out.txt', 'w')\n", "", False),
     ("", "from sitecustomize\n", False), ("def (\n", "", False)],
)  # fmt: skip
def test_script_without_code_is_in_doubt(tmp_path: Path, script: str, stdout: str, doubtful: bool) -> None:
    receipt = judged(tmp_path, script=script, stdout=stdout)
    assert receipt.doubtful == doubtful
    assert any("not saved yet" in (finding.cause or "") for finding in receipt.findings) == doubtful


@pytest.mark.parametrize(
    ("changes", "doubtful"),
    [({}, True), ({"steps": 3}, False), ({"model": "digits.pth"}, False), ({"seconds": 90.0}, False),
     ({"args": ("--help",)}, False), ({"code": 3}, False)],
)  # fmt: skip
def test_steps_a_model_time_or_help_are_something(tmp_path: Path, changes: Any, doubtful: bool) -> None:
    assert judged(tmp_path, stdout=f"{LEFT[0]}\n", **changes).doubtful == doubtful


@pytest.mark.parametrize(
    ("changes", "doubtful"),
    [({}, True), ({"left_behind": ()}, False), ({"seconds": 30.0}, False), ({"steps": 3}, False), ({"code": 1}, False)],
)
def test_script_that_only_starts_another_process_is_in_doubt(tmp_path: Path, changes: Any, doubtful: bool) -> None:
    started = {"stdout": "started\n", "left_behind": (12, 13), "seconds": 0.1}
    assert judged(tmp_path, **{**started, **changes}).doubtful == doubtful


FAILED = """Traceback (most recent call last):
  File "train.py", line 6, in main
    raise RuntimeError("no batch")
RuntimeError: no batch
"""


@cases("stderr", "doubtful")
def test_exception_as_last_words_casts_doubt(tmp_path: Path, stderr: str, doubtful: bool) -> None:
    receipt = judged(tmp_path, stderr=stderr.replace("TB", FAILED), stdout="epoch 1\n" * 50, steps=3)
    assert receipt.doubtful == doubtful and receipt.exit_code == 0
    assert ("its last words are an exception" in receipt.exit_cause.words) == doubtful


@pytest.mark.parametrize(("later_s", "last_words"), [(60.0, False), (0.5, True)])
def test_output_long_after_an_exception_clears_the_script(tmp_path: Path, later_s: float, last_words: bool) -> None:
    for name, at_s in (("stderr.log", START), ("stdout.log", START + later_s)):
        (tmp_path / name).write_text(FAILED if name == "stderr.log" else "epoch 9: saved\n")
        os.utime(tmp_path / name, (at_s, at_s))
    assert read_output(tmp_path).ends_with_exception == last_words


@cases("order", "model", "doubtful")
def test_saving_script_may_go_on_behind_an_exception(
    tmp_path: Path, order: str, model: str | None, doubtful: bool
) -> None:
    """``order``: the chunks of both streams as they came, TB for the traceback."""
    chunks = [(int(chunk[0]), chunk[3:].replace("TB", FAILED)) for chunk in re.findall(r"[12]: (?:TB|[^\n]*\n)", order)]
    index = "".join(f"{START} {number} {len(text)}\n" for number, text in chunks)
    stdout, stderr = ("".join(text for number, text in chunks if number == wanted) for wanted in (1, 2))
    receipt = judged(tmp_path, stdout=stdout, stderr=stderr, steps=3, model=model, index=index)
    assert receipt.doubtful == doubtful and receipt.exit_code == 0


@pytest.mark.parametrize("index", ["", "nonsense\n", "1000.1 1 5\n1000.2 1 none\n", "1000.1 1 999999999999\n"])
def test_unusable_index_clears_no_script(tmp_path: Path, index: str) -> None:
    assert judged(tmp_path, stderr=FAILED, model="model.pth", index=index).doubtful


@pytest.mark.parametrize(("stderr", "words"), [("", "printed no reason"), ("terminate called\n", "its last message")])
def test_abort_names_the_last_message(tmp_path: Path, stderr: str, words: str) -> None:
    assert words in judged(tmp_path, signal=6, stderr=stderr).exit_cause.words
