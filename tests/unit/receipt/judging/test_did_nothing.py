"""A script that leaves with 0 and has done nothing; and the many honest ones that look a little like it."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from seatrial.backends.base import State
from seatrial.common.contract.agent_plan import AgentPlan
from seatrial.job.model import Job, Target
from seatrial.job.plan import Plan
from seatrial.receipt.judge import judge
from seatrial.receipt.logs import read_output
from seatrial.receipt.model import Receipt
from seatrial.receipt.render import terminal

LEFT = [
    "Unable to locate sufficient 2 gpus to run this example. Exiting.",
    "Not enough GPUs (1 found): aborting",
    "This example requires at least 2 GPUs",
    "SKIP: needs 2 GPUs",
    "No CUDA devices\nExiting...",
    "usage: train.py [-h] --data DIR",
    "Dataset not found in ./data, nothing to do",
    "\x1b[31mNo GPU found. Exiting\x1b[0m",
    "loading |####|\rNo images found, quitting",
]

HONEST = [
    "hello",
    "",
    "No GPU found, using the CPU\naccuracy 0.98",
    "Epoch 3: loss 0.1\nNo improvement for 5 epochs, stopping early",
    "done, exiting",
    "CUDA is not available",
    "\n".join(f"epoch {epoch} loss {1 / epoch:.3f}" for epoch in range(1, 30)) + "\nNo more batches. Exiting.",
    "cpu 3.1 s\ncpu 3.0 s\ncpu 3.2 s\ncpu 3.1 s\nmean 3.1 s\nskipping the GPU: none found",
    "memory usage: 12 MB",
]


def cpu_run(
    folder: Path,
    *,
    steps: int = 0,
    model: str | None = None,
    seconds: float = 2.0,
    args: tuple[str, ...] = (),
    exit_code: int = 0,
    left_behind: tuple[int, ...] = (),
    signal: int | None = None,
    script: str | None = None,
    **logs: str,
) -> Receipt:
    """A script on the CPU, which printed ``stdout`` and ``stderr``."""
    project, run_dir = folder / "project", folder / "run"
    project.mkdir()
    run_dir.mkdir(exist_ok=True)
    for name in ("stdout", "stderr"):
        (run_dir / f"{name}.log").write_text(logs.get(name, ""))
    if script is not None:
        (project / "train.py").write_text(script)
    if model:
        (project / model).write_text("weights")
        os.utime(project / model, (1001, 1001))

    def at(at_s: float, type: str, **keys: Any) -> dict[str, Any]:
        return {"t": 1000 + at_s, "type": type, "source": "target" if type == "step" else "agent", **keys}

    events = [
        at(0, "agent.started", pid=1),
        at(0, "target.started", pid=7, argv=["python3", "train.py"], launcher="none", framework=None),
        *[at(0.1 + number / 10, "step", step=number, loss=0.5) for number in range(steps)],
        *[at(seconds, "signal", signal=15, name="SIGTERM", origin="end", forwarded_to=[pid]) for pid in left_behind],
        at(
            seconds,
            "target.exited",
            exit_code=None if signal else exit_code,
            signal=signal,
            cause="signal" if signal else "exited",
            seconds=seconds,
        ),
        at(seconds, "agent.finished", exit_code=exit_code, energy_j={}),
    ]
    plan = Plan(
        run_id="20261120-120000-train",
        created_at="",
        job=Job(project=project, target=Target(kind="script", value="train.py", args=args)),
        backend="local",
        gpus=(),
        injection="none",
        agent=AgentPlan(run_id="20261120-120000-train", argv=("python3",), workdir="/", run_dir="/"),
    )
    state = State("exited", exit_code)
    return judge(plan, events, skipped_lines=0, state=state, run_dir=run_dir, now=2000, image=None)


@pytest.mark.parametrize("words", LEFT)
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_script_that_left(tmp_path: Path, words: str, stream: str) -> None:
    receipt = cpu_run(tmp_path, **{stream: f"{words}\n"})
    [finding] = [finding for finding in receipt.findings if finding.id == "did-nothing"]
    assert finding.severity == "warning" and receipt.header.run_id in (finding.fix or "")
    assert receipt.exit_code == 0 and receipt.exit_cause.words.endswith("but apparently did nothing")
    console = Console(file=io.StringIO(), record=True, width=80)
    terminal.render(receipt, console)
    assert console.export_text().startswith("[!] ")


@pytest.mark.parametrize("words", HONEST)
def test_an_honest_script(tmp_path: Path, words: str) -> None:
    receipt = cpu_run(tmp_path, stdout=f"{words}\n")
    assert not receipt.doubtful and "nothing" not in receipt.exit_cause.words


@pytest.mark.parametrize(
    ("script", "stdout", "doubtful"),
    [
        ("", "", True),
        ("# to be written\n\n", "", True),
        ("open('out.txt', 'w')\n", "", False),
        ("", "from sitecustomize\n", False),
        ("def (\n", "", False),
    ],
)
def test_a_script_without_code(tmp_path: Path, script: str, stdout: str, doubtful: bool) -> None:
    receipt = cpu_run(tmp_path, script=script, stdout=stdout)
    assert receipt.doubtful == doubtful
    assert [finding.cause for finding in receipt.findings if "not saved yet" in (finding.cause or "")] or not doubtful


def test_what_was_reported_saved_long_or_asked_for_is_something(tmp_path: Path) -> None:
    left = f"{LEFT[0]}\n"
    folders = iter(range(9))

    def doubtful(**changes: Any) -> bool:
        folder = tmp_path / str(next(folders))
        folder.mkdir()
        return cpu_run(folder, stdout=left, **changes).doubtful

    assert doubtful()
    assert not doubtful(steps=3)
    assert not doubtful(model="digits.pth")
    assert not doubtful(seconds=90.0)
    assert not doubtful(args=("--help",))
    assert not doubtful(exit_code=3)


FAILED = """Traceback (most recent call last):
  File "train.py", line 6, in main
    raise RuntimeError("no batch")
RuntimeError: no batch
"""


@pytest.mark.parametrize(
    ("stderr", "doubtful"),
    {
        "its last words": (f"epoch 1\n{FAILED}", True),
        "went on": (f"{FAILED}trying the next file\n", False),
        "announced by logging": (f"ERROR:root:failed\n{FAILED}", True),
        "in a destructor": (f"Exception ignored in: <function D.__del__ at 0x7f>\n{FAILED}", False),
        "in a thread": (f"Exception in thread Thread-1:\n{FAILED}", False),
        "at exit": (f"Error in atexit._run_exitfuncs:\n{FAILED}", False),
        "in a task": (f"Task exception was never retrieved\nfuture: <Task finished name='Task-1'>\n{FAILED}", False),
        "in a callback": (f"Exception in callback f()\nhandle: <Handle f()>\n{FAILED}", False),
        "only its last line": ("RuntimeError: no batch\n", False),
        "behind colours": (f"\x1b[31m{FAILED}\x1b[0m", True),
    }.values(),
)
def test_an_exception_that_was_printed_and_not_raised(tmp_path: Path, stderr: str, doubtful: bool) -> None:
    receipt = cpu_run(tmp_path, stderr=stderr, stdout="epoch 1\n" * 50, steps=3)
    assert receipt.doubtful == doubtful and receipt.exit_code == 0
    assert ("its last words are an exception" in receipt.exit_cause.words) == doubtful


def test_a_script_that_prints_an_exception_and_trains_on(tmp_path: Path) -> None:
    for name, at in (("stderr.log", 1000.0), ("stdout.log", 1060.0)):
        (tmp_path / name).write_text(FAILED if name == "stderr.log" else "epoch 9: saved\n")
        os.utime(tmp_path / name, (at, at))
    assert not read_output(tmp_path).ends_with_exception
    os.utime(tmp_path / "stdout.log", (1000.5, 1000.5))  # held back until the end
    assert read_output(tmp_path).ends_with_exception


@pytest.mark.parametrize(
    ("order", "model", "doubtful"),
    [
        ("1: epoch 1\n 2: TB 1: saved to model.pth\n", "model.pth", False),
        ("2: TB 1: upload skipped\n 1: \n 1: done, exiting\n", "model.pth", False),
        ("2: TB 1: test error 0.031\n", "model.pth", False),
        ("1: epoch 1\n 2: TB 1: done\n", None, True),  # nothing shows that it came to what it was for
        ("1: epoch 1: saved model.pth\n 2: TB", "model.pth", True),
        ("2: TB 1: Training failed, see above\n", "model.pth", True),
        ("2: TB 1: epoch 2 was the last\n 1: Aborted.\n", "model.pth", True),
        ("2: TB 1: stopped by an error\n", "model.pth", True),
        ("2: TB 1: done\n 2: TB", "model.pth", True),
        ("2: TB 1: done\n 2: \n", "model.pth", True),  # a line end behind it, on the same stream
    ],
)
def test_a_script_that_saved_and_went_on_behind_an_exception(
    tmp_path: Path, order: str, model: str | None, doubtful: bool
) -> None:
    """``order``: the chunks of both streams as they came, TB for the traceback."""
    chunks = [(int(chunk[0]), chunk[3:].replace("TB", FAILED)) for chunk in re.findall(r"[12]: (?:TB|[^\n]*\n)", order)]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "output.idx").write_text("".join(f"1000.1 {n} {len(said)}\n" for n, said in chunks))
    stdout, stderr = ("".join(said for number, said in chunks if number == wanted) for wanted in (1, 2))
    receipt = cpu_run(tmp_path, stdout=stdout, stderr=stderr, steps=3, model=model)
    assert receipt.doubtful == doubtful and receipt.exit_code == 0


@pytest.mark.parametrize("index", ["", "nonsense\n", "1000.1 1 5\n1000.2 1 none\n", "1000.1 1 999999999999\n"])
def test_an_index_that_does_not_tell_clears_nobody(tmp_path: Path, index: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "output.idx").write_text(index)
    receipt = cpu_run(tmp_path, stdout="", stderr=FAILED, model="model.pth")
    assert receipt.doubtful


def test_a_script_that_goes_to_the_background(tmp_path: Path) -> None:
    folders = iter(range(9))

    def doubtful(**changes: Any) -> bool:
        folder = tmp_path / str(next(folders))
        folder.mkdir()
        return cpu_run(folder, stdout="started\n", **{"left_behind": (12, 13), "seconds": 0.1, **changes}).doubtful

    assert doubtful()
    assert not doubtful(left_behind=())
    assert not doubtful(seconds=30.0)  # it worked itself, and left a helper
    assert not doubtful(steps=3)
    assert not doubtful(exit_code=1)


@pytest.mark.parametrize(("stderr", "words"), [("", "printed no reason"), ("terminate called\n", "its last message")])
def test_a_library_that_aborts(tmp_path: Path, stderr: str, words: str) -> None:
    assert words in cpu_run(tmp_path, signal=6, stderr=stderr).exit_cause.words
