"""The scheduler with GPUs that are counted and runs that only take time: who starts when, and who waits."""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from seatrial.errors import GpusHeldError
from seatrial.job.notify import Notify
from seatrial.pipelines.group import GroupStore, Member
from seatrial.pipelines.request import Front
from seatrial.pipelines.stages import execution
from seatrial.pipelines.stages.digests import Digests
from seatrial.pipelines.stages.execution import Execution
from seatrial.pipelines.stages.graph import Stage, read_graph
from seatrial.pipelines.stages.one_stage import StageFailedError
from seatrial.pipelines.stages.record import Result, StageRecords
from seatrial.pipelines.stages.workshop import Workshop
from seatrial.runs.run import Run
from seatrial.runs.store import RunStore, new_run_id


class Machine:
    """Some GPUs; each run holds one for a moment.

    Attributes:
        at_once: the most runs that there ever were at a time. order: names in which they started.
    """

    def __init__(self, gpus: int, fails: str = "") -> None:
        self.gpus, self.fails = gpus, fails
        self.running, self.at_once = 0, 0
        self.order: list[str] = []
        self.lock = threading.Lock()

    def prepare(self, job: Any, environ: object, *, building: object, notifies: bool = False) -> SimpleNamespace:
        with self.lock:
            if self.running == self.gpus:
                raise GpusHeldError(f"{self.gpus} GPUs, 0 free")
            self.running += 1
            self.at_once = max(self.at_once, self.running)
            self.order.append(job.target.args[0])
        run = Run(Path(new_run_id()), Path("place"))
        return SimpleNamespace(run=run, plan=SimpleNamespace(gpus=("one",), warnings=()))

    def see_through(self, shop: Workshop, stage: Stage, job: Any, run: Run, result: Result, *_: object) -> Result:
        time.sleep(0.2)
        with self.lock:
            self.running -= 1
        if stage.name == self.fails:
            raise StageFailedError("bad luck", 1)
        return replace(result, wrote=(), seconds=0.2)


def execute(
    folder: Path, monkeypatch: pytest.MonkeyPatch, machine: Machine, needs: dict[str, list[str]]
) -> tuple[int, dict[str, str], list[str]]:
    """(exit code, states, what was said)."""
    (folder / "a.py").write_text("")
    stages = [
        f'[stages.{name}]\ntarget = "a.py"\nargs = ["{name}"]\nneeds = {below}\n' for name, below in needs.items()
    ]
    (folder / "seatrial.toml").write_text("".join(stages))
    graph = read_graph(folder, {}, without_container=lambda name: False, recipes=[])
    store = RunStore(folder)
    records = StageRecords(store)
    shop = Workshop(store, records, Digests(records.digests), {})
    said: list[str] = []
    front = Front(
        said.append, lambda: nullcontext(said.append), lambda stream, data: None, said.append, lambda job: None
    )
    monkeypatch.setattr(execution.launch, "prepare", machine.prepare)
    monkeypatch.setattr(execution.launch, "start", lambda prepared, environ, progress: progress("image ready (cached)"))
    monkeypatch.setattr(execution, "see_through", machine.see_through)
    monkeypatch.setattr(execution, "GPU_INTERVAL_S", 5.0)  # it is woken, and does not look again by itself
    groups = GroupStore(store)
    group = groups.create("stages", tuple(Member(name) for name in needs))
    code = Execution(graph, shop, groups, group, front, (), Notify()).run(graph.chosen(()))
    now = groups.find(group.id)
    return code, {member.name: member.state for member in now.members}, said


@pytest.mark.parametrize(("gpus", "at_once"), [(1, 1), (2, 2), (8, 3)])
def test_as_many_at_once_as_gpus_are_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: int, at_once: int
) -> None:
    machine = Machine(gpus)
    began = time.monotonic()
    code, states, said = execute(tmp_path, monkeypatch, machine, {"x": [], "y": [], "z": []})
    assert code == 0 and set(states.values()) == {"done"} and machine.at_once == at_once
    assert said.count("image ready (cached)") == 3
    assert sum("waits for a free GPU" in line for line in said) == 3 - at_once
    assert time.monotonic() - began < 5, "one that waits is told when a GPU is free"


def test_needs_come_first_and_a_failure_ends_only_what_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs = {"last": ["good", "bad"], "good": ["first"], "bad": ["first"], "after": ["good"], "first": []}
    machine = Machine(8, fails="bad")
    code, states, said = execute(tmp_path, monkeypatch, machine, needs)
    assert code == 1
    assert states == {"first": "done", "good": "done", "bad": "failed", "last": "skipped", "after": "done"}
    assert machine.order[0] == "first" and set(machine.order[1:3]) == {"good", "bad"} and machine.order[3:] == ["after"]
    assert "last: not started: bad failed" in said


def test_what_needs_a_skipped_one_is_skipped_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(8, fails="a")
    _, states, said = execute(tmp_path, monkeypatch, machine, {"a": [], "b": ["a"], "c": ["b"]})
    assert states == {"a": "failed", "b": "skipped", "c": "skipped"} and "c: not started: b was skipped" in said


def test_an_error_of_our_own_is_not_swallowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(8)
    machine.see_through = lambda *args: 1 // 0  # type: ignore[assignment, method-assign]
    with pytest.raises(ZeroDivisionError):
        execute(tmp_path, monkeypatch, machine, {"a": []})
