"""A live run with arbitrary bytes in its files: no error, no wait, no old numbers."""

import json
import os
import time

import pytest

from fakes import a_plan
from pace import within
from seatrial.runs import live
from seatrial.runs.live import live_runs, look

NOW = time.time()
GOOD = json.dumps({"t": NOW, "type": "step", "source": "target", "loss": 0.5}).encode() + b"\n"

#: Content of events.jsonl; a good line follows each.
CONTENTS = {
    "nothing": b"",
    "no JSON": b"\0\xff\xfe{}[]\n" * 100,
    "deep lists": b'{"t":1,"type":"step","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
    "deep objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"\n",
    "a number of 5,000 digits": b'{"t":1,"type":"step","loss":' + b"9" * 5000 + b"}\n",
    "a time of 4,000 digits": b'{"t":' + b"9" * 4000 + b',"type":"sample","gpus":[]}\n',
    "times that are none": b"".join(
        b'{"t":%s,"type":"sample","gpus":[{"uuid":"a","utilization_pct":1}]}\n' % t
        for t in (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1", b"true", b'"x"', b"[]", b"{}", b"null")
    ),
    "samples of wrong types": b"".join(
        b'{"t":%f,"type":"sample","gpus":%s,"cpu_cores":%s,"memory_bytes":%s,"memory_limit_bytes":0}\n' % (NOW, x, x, x)
        for x in (
            b'"x"',
            b"1",
            b"null",
            b"[1]",
            b'[{"uuid":[],"throttle_reasons":[[]]}]',
            b'{"a":1}',
            b"[[[]]]",
            b"1e308",
        )
    ),
    "findings of wrong types": b"".join(
        b'{"t":%f,"type":"finding","message":%s}\n' % (NOW, x) for x in (b"[]", b"{}", b"1e999", b"null", b'"\\ud800"')
    ),
    "names of metrics": json.dumps(
        {"t": NOW, "type": "step", "\x1b]0;x\x07": 1, "": 2, " ": 3, "\ud800": 4, "x" * 10_000: 5, "_seq": 6, "\n": 7}
    ).encode()
    + b"\n",
    "numbers that are none": b'{"t":%f,"type":"step","a":NaN,"b":Infinity,"c":1e999,"d":true,"e":"1"}\n' % NOW,
    "a line of 2 MB": b'{"t":1,"type":"step","x":"' + b"x" * 2_000_000 + b'"}\n',
    "types that are none": b'{"type":[]}\n{"type":{}}\n{"type":null}\n[]\n1\n"x"\nnull\n',
}


@pytest.fixture
def run(store):
    return a_run(store, "20261120-231501-k3f9")


def a_run(store, run_id):
    made = store.create(run_id, None)
    made.save_plan(a_plan(made.folder, run_id=run_id))
    return made


@pytest.mark.parametrize("name", CONTENTS)
def test_garbage_hides_neither_the_run_nor_its_good_lines(store, run, name):
    run.events_path.write_bytes(CONTENTS[name] + GOOD)
    [row], now = within(2.0, lambda: (live_runs(store), look(run)))
    assert row["numbers"] == {"loss": 0.5}
    json.dumps(dict(now.numbers), allow_nan=False).encode()


def test_a_run_whose_evidence_does_not_grow_has_no_numbers(store, run):
    """Its agent or its collector is gone: the last numbers are old."""
    run.events_path.write_bytes(GOOD)
    assert live_runs(store)[0]["numbers"] == {"loss": 0.5}
    old = time.time() - live.LOOK_BACK_S - 1
    os.utime(run.events_path, (old, old))
    assert live_runs(store)[0]["numbers"] == {}


@pytest.mark.parametrize("text", ["", "[]", "null", '{"job":' * 100_000, "\xff", "{}"])
def test_a_plan_that_cannot_be_read_hides_no_other_run(store, run, text):
    other = a_run(store, "20261120-231502-k3f9")
    for each in (run, other):
        each.events_path.write_bytes(GOOD)
    (run.folder / "plan.json").write_text(text)
    assert [row["id"] for row in live_runs(store)] == [other.id]
