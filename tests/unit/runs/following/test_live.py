"""A run while it goes on: the tail of its events, its alerts, and garbage in between."""

import json

from seatrial.runs.following.live import look
from seatrial.runs.following.watch import Alerts
from seatrial.runs.run import Run


def a_run(tmp_path):
    return Run(tmp_path / "record", tmp_path / "place")


def write(run, *lines):
    run.folder.mkdir(exist_ok=True)
    with run.events_path.open("ab") as file:
        for line in lines:
            file.write(line if isinstance(line, bytes) else json.dumps(line, separators=(",", ":")).encode() + b"\n")


def a_sample(t, **gpu):
    values = {"uuid": "GPU-0", "utilization_pct": 30.0, "sm_activity_pct": 4.0, "throttle_reasons": [], **gpu}
    return {"t": t, "type": "sample", "source": "agent", "gpus": [values], "cpu_cores": 1.0, "main_cpu_cores": 1.0}


def a_finding(message, source="agent"):
    return {"t": 1.0, "type": "finding", "source": source, "id": "hang", "severity": "warning", "message": message,
            "evidence": ["seen"]}  # fmt: skip


def test_last_numbers_and_what_bounds_the_last_minute(tmp_path):
    run = a_run(tmp_path)
    write(run, *(a_sample(t, sm_activity_pct=99.0, utilization_pct=100.0) for t in range(60)))
    write(run, b"garbage\n", *(a_sample(t) for t in range(1000, 1005)), {"step": 7, "loss": 0.5, "t": 1004.0}, b'{"st')
    now = look(run)
    assert dict(now.numbers) == {"step": 7.0, "loss": 0.5}
    assert now.diagnosis.cause == "launch-bound"


def test_a_clock_that_was_set_back_hides_nothing(tmp_path):
    run = a_run(tmp_path)
    write(run, *(a_sample(t, sm_activity_pct=99.0, utilization_pct=100.0) for t in range(5000, 5060)))
    write(run, *(a_sample(t) for t in range(1000, 1005)), {"loss": 0.5, "t": 1004.0})
    assert look(run).diagnosis.cause == "launch-bound"


def test_alerts_come_once_and_cannot_steer_the_terminal(tmp_path):
    run = a_run(tmp_path)
    alerts = Alerts(run)
    assert list(alerts.new()) == []
    write(run, a_sample(1), a_finding("It \x1b[2Jhangs"), a_finding("no", source="host"), b'{"type":"finding","half')
    assert list(alerts.new()) == ["warning: It hangs (seen)"] and list(alerts.new()) == []
    assert list(Alerts(run, from_now=True).new()) == []


def test_printed_numbers_are_shown_until_the_script_reports_its_own(tmp_path):
    run = a_run(tmp_path)
    write(run, a_sample(1))
    (run.folder / "stdout.log").write_text("epoch 2/4 loss 0.5 acc 91.5 %\nat 12.5 dB\n")
    now = look(run, "", {"psnr": r"at (\S+) dB"})
    assert now.latest == {"psnr": 12.5, "loss": 0.5, "acc": 91.5}
    assert (now.percent, now.progress) == ({"acc"}, "epoch 2/4")
    write(run, {"t": 2.0, "loss": 0.25})
    latest = look(run, "", {"psnr": r"at (\S+) dB"}).latest
    assert latest == {"psnr": 12.5, "loss": 0.25, "t": 2.0}
