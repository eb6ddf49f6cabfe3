"""Evidence read from lines of any shape: one clock of several writers, the script's numbers, and the output."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seatrial.receipt.clock import MAX_GAP_S, on_one_clock
from seatrial.receipt.evidence import gather
from seatrial.receipt.logs import read_output
from seatrial.receipt.reported import MAX_POINTS, read_steps, thin
from seatrial.receipt.sections.measured import measure
from tables import cases

START = 1_795_000_000.0
LEAP = 2.0 + MAX_GAP_S
Lines = list[dict[str, Any]]


@pytest.mark.parametrize(
    ("lines", "elapsed", "jumps"),
    [
        ([("agent", 100.0), ("agent", 101.0), ("agent", 103.5)], [0, 1, 3.5], 0),
        ([("agent", 100.0), ("agent", 101.0), ("agent", 50.0), ("agent", 52.0)], [0, 1, 1, 3], 1),
        ([("agent", 0.0), ("agent", 1.0), ("agent", LEAP), ("agent", LEAP + 1)], [0, 1, 1, 2], 1),
        ([("agent", 0.0), ("agent", 2.0), ("agent", 1.5), ("agent", 3.0)], [0, 2, 2, 3], 0),
        (
            [("agent", 1000.0), ("target", 0.5), ("target", None), ("target", 1001.5), ("agent", 1002.0)],
            [0, 0, 0, 1.5, 2], 0,
        ),
        ([("agent", 0.0), ("host", 86400.0)], [0, 0], 0),
    ],
)  # fmt: skip
def test_steps_back_and_leaps_count_as_no_time(lines: Any, elapsed: list[float], jumps: int) -> None:
    found = on_one_clock([{"source": source, "t": t} for source, t in lines])
    assert found[1] == elapsed and len(found[2]) == jumps


def line(t: float, type: str = "sample", source: str = "agent", **keys: object) -> dict[str, Any]:
    return {"t": START + t, "type": type, "source": source, **keys}


def pod(t: float, *, seconds: float = 10.0, code: int = 0, **keys: object) -> Lines:
    """An agent's lines; it starts at ``t`` by its own clock."""
    return [
        line(t, "agent.started", **keys),
        line(t + 0.2, "target.started", **keys),
        *(line(t + second, **keys) for second in range(1, int(seconds))),
        line(t + seconds, "target.exited", exit_code=code, seconds=seconds - 0.2, **keys),
        line(t + seconds, "agent.finished", exit_code=code, **keys),
    ]


def seen(t: float, node: int = 0, name: str = "pod") -> dict[str, Any]:
    return line(t, "host.pod", "host", name=name, node=node)


LAUNCHED = line(0.0, "host.launched", "host")


@pytest.mark.parametrize(
    ("lines", "end_s", "startup_s"),
    [
        # detached: the host's words come before the lines of the agent, which has ended
        ([seen(51.0), line(51.2, "note", "host", message="pod is running"), *pod(1.0)], 51.2, 1.2),
        ([*pod(1.0, node=0, seconds=50.0), seen(51.0), seen(51.1, 1), *pod(1.5, node=1, seconds=50.0)], 51.5, 1.2),
        ([seen(2.0), seen(2.1, 1), *pod(1.0, node=0), *pod(61.0, node=1)], 13, 1.2),  # clocks a minute apart
        ([seen(2.0), *pod(1.0, code=143), seen(15.0, name="pod-2"), *pod(-26.0)], 25, 1.2),  # another machine's clock
        (pod(7200.0), 7210, 7200.2),  # hours in a queue
        *(([seen(2.0), *pod(1.0 + ahead_s)], 13, None) for ahead_s in (50.0, -50.0, 3600.0, -86400.0)),
    ],
)
def test_clocks_of_several_writers_make_one_without_a_jump(lines: Lines, end_s: float, startup_s: Any) -> None:
    evidence = gather([LAUNCHED, *lines])
    times = [moment.at_s for moment in evidence.moments]
    assert evidence.jumps == () and times == sorted(times) and times[-1] <= end_s + 0.01
    found = measure(evidence, []).startup_s
    assert found is not None and (0 <= found <= 3 if startup_s is None else found == pytest.approx(startup_s))
    assert evidence.exited is not None and evidence.exited.number("exit_code") == 0


def test_a_launch_that_was_noted_after_the_end_comes_first() -> None:
    """A Compose service of half a second is found when it has ended."""
    noted = line(1.5, "host.launched", "host")
    types = [event["type"] for event in on_one_clock([*pod(0.2, seconds=0.6), noted])[0]]
    assert types[0] == "host.launched" and types[1] == "agent.started"


def test_a_start_follows_the_end_of_the_one_before_that_the_launch_was_noted_after() -> None:
    again = [*pod(0.2, seconds=1.3, code=5), *pod(1.9, seconds=1.3)]
    types = [event["type"] for event in on_one_clock([line(1.0, "host.launched", "host"), *again])[0]]
    assert [each for each in types if each.startswith("agent")] == ["agent.started", "agent.finished"] * 2


def test_clock_that_was_set_in_the_middle_is_one_jump() -> None:
    set_back = [{**event, "t": event["t"] - 50.0} if at > 5 else event for at, event in enumerate(pod(1.0))]
    [jump] = gather([LAUNCHED, *set_back]).jumps
    assert "back by 49 s" in jump


_JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "_seq", "t"]), inner),
    max_leaves=6,
)
_TYPES = ("agent.started", "agent.summary", "agent.finished", "host.pod", "host.launched", "sample", "step")
_LINE = st.fixed_dictionaries(
    {
        "source": st.sampled_from(["agent", "host", "target", "", "Agent"]),
        "type": st.sampled_from(_TYPES),
        **dict.fromkeys(("t", "node", "_seq"), _JUNK),
        "events": st.lists(_JUNK, max_size=3),
    }
)


@settings(max_examples=30, deadline=None)
@given(st.lists(_LINE, max_size=12))
def test_no_line_is_lost(events: Lines) -> None:
    ordered, elapsed, _ = on_one_clock(events)
    assert sorted(map(id, ordered)) == sorted(map(id, events))
    assert len(elapsed) == len(events) and all(at >= 0 for at in elapsed)
    evidence = gather(events)
    assert {id(event) for event in events} <= {id(moment.keys) for moment in evidence.moments}
    assert evidence.missing_lines >= 0


@given(st.lists(st.tuples(st.sampled_from(["agent", "host", "target"]), st.none() | st.floats())))
def test_agent_and_host_never_run_backwards(lines: Any) -> None:
    ordered, elapsed, _ = on_one_clock([{"source": source, "t": t} for source, t in lines])
    for writer in ("agent", "host"):
        own = [at for at, event in zip(elapsed, ordered, strict=True) if event["source"] == writer]
        assert own == sorted(own) and all(at >= 0 for at in own)


@cases("lines", "axis", "series")
def test_series_and_their_axis(lines: Lines, axis: str, series: Any) -> None:
    steps = read_steps((float(number), event) for number, event in enumerate(lines))
    found = {name: [list(point) for point in points] for name, points in steps.series.items()}
    assert (steps.axis, found) == (axis, series)


@cases("lines", "per_s")
def test_throughput(lines: Any, per_s: float) -> None:
    assert read_steps(lines).images_per_s == pytest.approx(per_s)


@given(st.lists(st.floats(-1e6, 1e6), max_size=3000))
def test_thinned_points_are_ordered_and_keep_the_extremes(ys: list[float]) -> None:
    points = [(float(i), y) for i, y in enumerate(ys)]
    kept = thin(points)
    assert len(kept) <= MAX_POINTS and kept == sorted(kept) and set(kept) <= set(points)
    if points:
        assert (kept[0], kept[-1]) == (points[0], points[-1])
        assert {min(ys), max(ys)} <= {y for _, y in kept}


REPORT = (
    "Traceback (most recent call last):\n"
    '  File "torch/distributed/run.py", line 1032, in <module>\n'
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    "============================================================\n"
)


@cases("stderr", "last")
def test_last_line_of_stderr(tmp_path: Path, stderr: str, last: str) -> None:
    (tmp_path / "stderr.log").write_text(stderr.replace("REPORT", REPORT))
    assert (read_output(tmp_path).last_line or "").startswith(last)


def test_function_that_raised(tmp_path: Path) -> None:
    code = "import subprocess\nsubprocess.run(['no-such-program'])\n"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    (tmp_path / "stderr.log").write_text(ended.stderr)
    output = read_output(tmp_path)
    assert output.raised_in == "_execute_child" and (output.exception or "").startswith("FileNotFoundError: ")


@pytest.mark.parametrize(("name", "hides"), [("queue", "queue.py"), ("other", None)])
def test_a_file_that_a_package_imports_in_place_of_another_is_named(
    tmp_path: Path, name: str, hides: str | None
) -> None:
    """``concurrent.futures`` imports queue; a script's own import hides nothing."""
    (tmp_path / f"{name}.py").write_text("import math\nmath.no_such_name\n")
    (tmp_path / "go.py").write_text("import other" if name == "other" else "import concurrent.futures.thread")
    ended = subprocess.run([sys.executable, tmp_path / "go.py"], capture_output=True, text=True, check=False)
    (tmp_path / "stderr.log").write_text(ended.stderr)
    output = read_output(tmp_path)
    assert "no_such_name" in (output.exception or "") and output.hides == hides


def test_long_lines_of_a_traceback_are_read_in_no_time(tmp_path: Path) -> None:
    frame = '  File "' + 'File "/x-packages/' * 4000
    (tmp_path / "stderr.log").write_text(f"Traceback (most recent call last):\n{frame}\nValueError: x\n")
    began = time.monotonic()
    assert read_output(tmp_path).exception == "ValueError: x" and time.monotonic() - began < 5
