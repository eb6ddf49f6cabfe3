import json
import time

import pytest

from seatrial.agent.tune import Spec, driver, trial


@pytest.fixture
def tuned(tmp_path, monkeypatch, capsys):
    """tuned(world, **options of Spec) → (exit code, the last report, what was printed): the driver, on a clock that
    goes as fast as the trials."""

    def tuned(world, **options):
        events = tmp_path / "events.jsonl"
        monkeypatch.setenv("SEATRIAL_EVENTS", str(events))
        monkeypatch.setattr(trial, "run", world.run)
        monkeypatch.setattr(time, "monotonic", lambda: world.clock_s)
        monkeypatch.setattr(driver, "_cpus", lambda: options.pop("cpus", 16))
        tuner = driver.TuneDriver(Spec(argv=["python", "train.py"], folder=str(tmp_path), **{"gpus": 1, **options}))
        code = tuner.run()
        tuner.record.report()
        reported = [json.loads(line) for line in events.read_text().splitlines()]
        return code, [line["tune"] for line in reported if "tune" in line][-1], capsys.readouterr().out

    return tuned
