"""The server's processes: the queue of the model, counters in common memory, frames, signals and the port."""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
import threading

import pytest

for needed in ("uvicorn", "uvloop", "httptools", "starlette", "python_multipart", "numpy"):
    pytest.importorskip(needed, reason=f"{needed} is not installed")

import numpy as np  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from seatrial.serve import wire  # noqa: E402
from seatrial.serve.counters import BUCKETS, Counters, upper_s  # noqa: E402
from seatrial.serve.model_loop import Batcher  # noqa: E402
from seatrial.serve.options import parse  # noqa: E402
from seatrial.serve.sockets import StopSignals  # noqa: E402
from seatrial.serve.supervisor import Supervisor  # noqa: E402


def batcher_of(max_batch: int, patience_s: float, *fronts: range) -> Batcher:
    batcher = Batcher(max_batch, patience_s)
    for front, numbers in enumerate(fronts):
        batcher.add(front, numbers, [(np.array(100 * front + number),) for number in numbers], 10.0)
    return batcher


def test_full_batch_goes_at_once_and_the_rest_waits():
    assert Batcher(4, 0.002).patience_left_s(0.0, 0) is None
    batcher = batcher_of(4, 0.002, range(5))
    assert batcher.patience_left_s(10.0, 99) == 0.0
    keys, rows, left_out = batcher.take()
    assert keys == [(0, number) for number in range(4)] and [int(row[0]) for row in rows] == [0, 1, 2, 3]
    assert left_out == 0
    assert batcher.patience_left_s(10.0005, 99) == pytest.approx(0.0015)
    assert batcher.patience_left_s(10.01, 99) == 0.0
    assert batcher.patience_left_s(10.0, 1) == 0.0  # nobody else can come


def test_abandoned_rows_are_left_out_and_their_places_filled():
    batcher = batcher_of(3, 0.0, range(4), range(2))
    batcher.abandon(0, [0, 2, 99])
    keys, _, left_out = batcher.take()
    assert (keys, left_out) == ([(0, 1), (0, 3), (1, 0)], 2)
    batcher.add(0, [99], [(np.array(99),)], 0.0)  # a number that was abandoned too late has no effect later
    assert batcher.take()[0] == [(1, 1), (0, 99)]


def test_rows_of_a_front_that_is_gone_are_dropped():
    batcher = batcher_of(8, 0.0, range(3), range(5, 6))
    assert batcher.abandon_front(0) == 3
    assert batcher.take()[0] == [(1, 5)] and batcher.take()[0] == []


def test_places_add_up_and_outlive_their_process():
    first = Counters.create(3, place=2)
    pid = os.fork()
    if not pid:
        own = Counters(first.descriptor, 3, 0)
        for kind, status in ((0, 200), (1, 429), (2, 404), (0, 418)):
            own.answered(kind, status)
        own.enter(5, 100)
        os._exit(0)
    os.waitpid(pid, 0)
    assert first.waiting() == 5
    again = Counters(first.descriptor, 3, 0)
    assert again.waiting() == 0  # its waiting rows are gone with it, its counts are not
    again.answered(0, 200)
    first.computed(8, 1000)
    first.computed(5000, 1000)
    totals = first.totals()
    assert totals.requests == {("predict", 200): 2, ("predict", 0): 1, ("infer", 429): 1, ("other", 404): 1}
    assert totals.inferences == 4 and totals.errors == {0: 1, 429: 1}
    assert totals.batches == {8: 1, 1024: 1} and totals.queue_peak == 5


def test_queue_is_bounded_over_all_places():
    first = Counters.create(2, place=0)
    second = Counters(first.descriptor, 2, 1)
    assert first.enter(3, 4) and not second.enter(2, 4) and second.enter(1, 4) and not first.enter(1, 4)
    first.leave(3)
    assert second.enter(3, 4) and first.totals().queue_peak == 4


def test_percentiles_are_within_a_bucket_up_to_both_ends_of_the_histogram():
    counters = Counters.create(1)
    assert counters.totals().percentile_ms(50) is None
    drawn = sorted(random.Random(0).lognormvariate(-5, 1) for _ in range(5000))
    for seconds in drawn:
        counters.took(seconds)
    totals = counters.totals()
    for percent in (50, 95, 99, 100):
        exact = 1000 * drawn[max(0, int(len(drawn) * percent / 100) - 1)]
        assert exact <= totals.percentile_ms(percent) <= exact * 2 ** (1 / 8) * 1.01
    assert totals.latency_sum_s == pytest.approx(sum(drawn), rel=1e-3)
    ends = Counters.create(1)
    for seconds in (0.0, 1e-9, upper_s(0), 1e6):
        ends.took(seconds)
    latencies = ends.totals().latencies
    assert latencies[0] == 3 and latencies[-1] == 1 and len(latencies) == BUCKETS


@st.composite
def rows(draw):
    """Rows of one model: as many inputs in each, of any shapes, lengths and, for a text's, types."""
    dimensions = [draw(st.integers(0, 3)) for _ in range(draw(st.integers(1, 3)))]

    def array(n):
        shape = tuple(draw(st.integers(0, 4)) for _ in range(dimensions[n]))
        values = np.arange(int(np.prod(shape))).reshape(shape)
        made = values.astype(draw(st.sampled_from(("u1", "i4", "i8", "f2", "f4", "f8", "?", "<U5"))))
        return made.T if draw(st.booleans()) and made.ndim > 1 else made  # not contiguous in memory

    return [tuple(array(n) for n in range(len(dimensions))) for _ in range(draw(st.integers(1, 6)))]


@given(rows(), st.integers(1, 50))
@settings(max_examples=60)
def test_rows_come_back_unchanged_however_the_bytes_are_cut(rows, cut):
    numbers = list(range(2**40, 2**40 + len(rows)))
    data = wire.encode_rows(wire.ROWS, numbers, rows) + wire.pickled(wire.ABANDONED, [1, 2**63])
    frames, found = wire.Frames(), []
    for at in range(0, len(data), cut):
        found += frames.feed(data[at : at + cut])
    kind, payload = found.pop()
    assert kind == wire.ABANDONED and pickle.loads(payload) == [1, 2**63]
    back = {}
    for kind, payload in found:
        assert kind == wire.ROWS
        back.update(zip(*wire.decode_rows(payload), strict=True))
    assert sorted(back) == numbers
    for number, row in zip(numbers, rows, strict=True):
        for got, sent in zip(back[number], row, strict=True):
            assert got.dtype == sent.dtype and got.shape == sent.shape and np.array_equal(got, sent)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_each_reader_sees_a_stop_signal_whenever_it_begins_to_read(number):
    first = StopSignals.create()
    early = StopSignals(os.dup(first.descriptor))
    os.write(first.descriptor, bytes((signal.SIGALRM,)) * 10_000)  # more than one read
    assert not any(each.came() for each in (first, early) * 5)
    os.write(first.descriptor, bytes((number, signal.SIGALRM)))
    late = StopSignals(os.dup(first.descriptor))
    assert all(any(each.came() for _ in range(5)) for each in (first, early, late))
    assert all(each.came() for each in (first, early, late))
    for each in (first, early, late):
        os.close(each.descriptor)


def test_no_front_is_started_after_a_signal(capfd: pytest.CaptureFixture[str]) -> None:
    options = parse(["--model", "none", "--host", "127.0.0.1", "--port", "0", "--fronts", "1"], None)
    supervisor = Supervisor(options, 0.0, lambda options: pytest.fail("nothing is to be loaded"))
    supervisor._fronts[0] = subprocess.Popen(["sleep", "0.5"])  # it has closed its link, and still ends

    def drain() -> None:
        os.write(supervisor._signals.descriptor, bytes((signal.SIGTERM,)))
        for listener in supervisor._listeners:
            listener.close()

    soon = threading.Timer(0.1, drain)
    soon.start()
    assert supervisor._replace_front(0) is None
    soon.join()
    assert "another is started" not in capfd.readouterr().err
    os.close(supervisor._signals.descriptor)


def test_front_and_readers_import_no_torch():
    code = "import sys, seatrial.serve.front, seatrial.serve.readers.images, seatrial.serve.runners.open;"
    code += "print({'torch', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


READ_FORM = """
import sys

if sys.argv[1] == "multipart":  # as 0.0.9 is installed: under that name alone
    import python_multipart, python_multipart.exceptions, python_multipart.multipart
    for name in [name for name in sys.modules if name.startswith("python_multipart")]:
        sys.modules[name[7:]] = sys.modules.pop(name)
    sys.modules["python_multipart"] = None
from seatrial.serve.http import bodies

body = (b'--b\\r\\ncontent-disposition: form-data; name="a"\\r\\n\\r\\nno file\\r\\n'
        b'--b\\r\\nContent-Disposition: form-data; name="file"; filename="x.png"\\r\\n'
        b'Content-Type: image/png\\r\\n\\r\\n'
        b'\\x89PNG\\r\\n\\r\\n--b--\\r\\n')
print(bodies.FormParser.__module__, bodies.first_file(body, b"multipart/form-data; boundary=b"))
"""


@pytest.mark.parametrize("name", ["python_multipart", "multipart"])
def test_file_is_found_in_a_form_under_both_names_of_the_package(name):
    words = [sys.executable, "-W", "ignore", "-c", READ_FORM, name]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.endswith(r"b'\x89PNG\r\n'" + "\n")
