"""Steering runs that have ended asks no engine."""

import json

from seatrial.runs import run_actions
from seatrial.runs.run import Run
from seatrial.runs.store import RunStore
from seatrial.system.host import Host

#: Whoever asks this engine fails: there is no such program.
NO_ENGINE = {"SEATRIAL_DOCKER": "/nonexistent/docker"}


def a_run(store: RunStore, number: int, *, finalised: bool) -> Run:
    run = store.create(f"20261121-00000{number}-bcdf", None)
    run.give_up()
    (run.folder / "handle.json").write_text(json.dumps({"backend": "docker", "id": f"{number}" * 64}))
    if finalised:
        (run.folder / "summary.json").write_text("{}")
    return run


def test_prune_takes_what_is_finalised_and_leaves_what_cannot_be_requested(tmp_path):
    store = RunStore(tmp_path)
    runs = [a_run(store, number, finalised=number != 2) for number in (1, 2, 3)]
    assert run_actions.prune(store, Host(NO_ENGINE), keep=0, dry_run=True).runs == 2
    assert run_actions.prune(store, Host(NO_ENGINE), keep=1, dry_run=False).runs == 1
    assert [run.id for run in store.all()] == [runs[1].id, runs[2].id]
