"""The chain as a whole: a healthy machine, blocking, crashes, time-outs, files that are closed, others' checks."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from machines import FakeHost, healthy
from seatrial.doctor import examine, report
from seatrial.doctor.check import Check, Layer, Verdict, ok
from seatrial.doctor.examine import CHAIN, Result
from seatrial.doctor.inspection import LOADER, LookError, modules
from seatrial.doctor.machine import Machine
from seatrial.findings.catalogue import by_id
from seatrial.system.host import Host


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return healthy(tmp_path)


def by_check(results: list[Result]) -> dict[str, Result]:
    return {result.check.id: result for result in results}


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_healthy_machine_is_all_green(host: FakeHost, gpus: int) -> None:
    if gpus == 2:
        host.two_gpus()
    results = examine.examine(host.machine())
    assert {result.check.id for result in results if result.verdict.status not in ("ok", "skipped")} == set()
    assert report.exit_code(results) == 0
    seen = {result.check.layer for result in results if result.verdict.status == "ok"}
    assert seen == {layer.name for layer in CHAIN} - {"kubernetes"}


def test_what_stands_behind_a_break_is_blocked_by_it_and_not_blamed(host: FakeHost) -> None:
    host.remove("/proc/driver/nvidia/version")
    host.nvml_error = 9
    results = by_check(examine.examine(host.machine()))
    broken = [id for id, result in results.items() if result.verdict.status == "broken"]
    assert broken == ["driver.loaded"]
    for id in ("userspace.cuda", "toolkit.installed", "container.starts", "container.kernels", "framework.types"):
        assert results[id].verdict.status == "blocked" and results[id].blocked_by == "driver.loaded", id
    assert results["engine.docker"].verdict.status == "ok"  # which needs no driver


def test_a_python_that_is_not_there_is_reported_once(host: FakeHost) -> None:
    message = 'OCI runtime create failed: exec: "/nosuch": stat /nosuch: no such file or directory: unknown.'
    host.still = host.live = LookError("The image cannot run /nosuch", message)
    results = by_check(examine.examine(host.machine()))
    details = [id for id, result in results.items() if result.verdict.status in ("broken", "unknown", "warning")]
    assert details == ["image.python"] and "/nosuch" in results["image.python"].verdict.line
    assert results["image.python"].verdict.findings[0].fix.startswith("docker run --rm -it --entrypoint sh image:1 ")
    behind = {id for id, result in results.items() if result.blocked_by == "image.python"}
    assert {"image.compat", "container.starts", "framework.torch-build", "framework.types"} <= behind


def test_an_image_without_python_is_reported_once(host: FakeHost) -> None:
    machine = host.machine()
    vars(machine.inspection).update(python=None, still=None, live=None)
    results = by_check(examine.examine(machine))
    details = {id: result.verdict for id, result in results.items() if result.verdict.status not in ("ok", "skipped")}
    assert list(details) == ["image.python"]
    assert details["image.python"].status == "unknown" and "--python PATH" in details["image.python"].line


def test_ids_layers_needs_and_findings_fit_together() -> None:
    checks = [check for layer in CHAIN for check in layer.checks]
    ids = [check.id for check in checks]
    assert len(ids) == len(set(ids))
    for layer in CHAIN:
        assert all(check.layer == layer.name for check in layer.checks)
    for number, check in enumerate(checks):
        assert set(check.needs) <= set(ids), check.id
        for need in check.needs:
            same_layer = need.partition(".")[0] == check.layer
            assert ids.index(need) < number or same_layer, f"{check.id} needs {need}, which stands behind it"
        assert all(by_id(id) for id in check.finds)


def a_layer(*checks: Check) -> list[Layer]:
    return [Layer("other", "Other", list(checks))]


def test_a_crash_is_a_finding_and_no_green(host: FakeHost) -> None:
    def crash(machine: Machine) -> Verdict:
        raise ZeroDivisionError("of course")

    layers = a_layer(Check("other.crash", "It works", (), crash), Check("other.fine", "Fine", (), lambda m: ok("fine")))
    crashed, fine = examine.examine(host.machine(), layers)
    assert fine.verdict.status == "ok"
    assert crashed.verdict.status == "unknown" and crashed.verdict.findings[0].id == "check-crashed"
    assert "ZeroDivisionError: of course" in crashed.verdict.findings[0].evidence[0]
    assert report.exit_code([crashed, fine]) == 1


def test_a_check_that_hangs_is_given_up(host: FakeHost) -> None:
    release = threading.Event()
    hangs = Check("other.hangs", "It answers", (), lambda machine: ok(str(release.wait(300))), timeout_s=0.2)
    [result] = examine.examine(host.machine(), a_layer(hangs))
    release.set()
    assert result.verdict.status == "unknown" and result.verdict.findings[0].id == "check-timed-out"


def test_a_file_that_may_not_be_read_is_no_green(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = host.root / "etc/apt/sources.list.d/x.list"
    host.write("/etc/apt/sources.list.d/x.list", "deb https://example.org stable main\n")
    real = Path.read_bytes

    def refuse(path: Path) -> bytes:  # tests may run as root, whom no mode keeps out
        if path == closed:
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    result = by_check(examine.examine(host.machine()))["toolkit.apt"]
    assert result.verdict.status == "unknown"
    assert "/etc/apt/sources.list.d/x.list" in result.verdict.line


def third_party(monkeypatch: pytest.MonkeyPatch, loads: object) -> list[Check]:
    class Entry(EntryPoint):
        def load(self) -> object:
            if isinstance(loads, Exception):
                raise loads
            return loads

    entry = Entry("theirs", "their_package.checks", examine.ENTRY_POINTS)
    monkeypatch.setattr(examine, "entry_points", lambda group: [entry])
    layers = examine.with_third_party()
    assert layers[: len(CHAIN)] == CHAIN
    return list(layers[-1].checks)


def test_other_packages_add_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = Check("infiniband.link", "InfiniBand is up", (), lambda machine: ok("up"))
    assert third_party(monkeypatch, theirs) == [theirs]
    assert third_party(monkeypatch, [theirs]) == [theirs]


@pytest.mark.parametrize(
    "loads",
    [
        ImportError("their wheel is broken"),
        [Check("driver.loaded", "Ours", (), lambda machine: ok("I replace it"))],
        ["no check"],
    ],
    ids=["import-error", "replaces-ours", "no-check"],
)
def test_other_packages_replace_nothing_and_fail_aloud(
    monkeypatch: pytest.MonkeyPatch, host: FakeHost, loads: object
) -> None:
    [check] = third_party(monkeypatch, loads)
    verdict = check.look(host.machine())
    assert check.id == "other.theirs" and verdict.findings[0].id == "check-not-loadable"


def test_a_broken_contract_asks_the_host_part(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.remove("/dev/nvidia-uvm")
    monkeypatch.setattr(examine, "Machine", lambda _: host.machine())
    finding = examine.first_broken(Host({}))
    assert finding is not None and finding.id == "uvm-node-missing"
    assert not any(words[1:2] == ("run",) for words in host.commands)  # no container was started for it


def test_a_process_of_this_machine_is_not_reported_to_install_an_engine(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examine, "Machine", lambda _: host.machine())
    host.docker = None
    assert "No working container engine" in examine.second_opinion(Host({}))
    assert "look at the script" in examine.second_opinion(Host({}), in_container=False)
    host.remove("/dev/nvidia-uvm")
    assert "nvidia-uvm" in examine.second_opinion(Host({}), in_container=False)


def inside(gpus: bool, **environ: str) -> dict[str, Any]:
    """Look inside with a plain interpreter that has nothing of ours installed (-S: no site-packages)."""
    order = json.dumps({"modules": modules(), "gpus": gpus})
    argv = [sys.executable, "-I", "-S", "-c", LOADER]
    done = subprocess.run(argv, input=order, capture_output=True, text=True, timeout=300, env=environ)
    assert done.stderr == "" and "secret" not in done.stdout
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


@pytest.mark.parametrize("gpus", [False, True])
def test_look_inside_needs_nothing_installed_and_takes_no_secret(gpus: bool) -> None:
    facts = inside(gpus, CUDA_VISIBLE_DEVICES="7", HF_TOKEN="secret", PATH="/usr/bin")
    assert facts["python"] and isinstance(facts["device_nodes"], list) and facts["shm_bytes"] != 0
    assert facts["distributions"] == {} and facts["torch"] is None and ("cuda" in facts) is gpus
    assert facts["env"] == {"CUDA_VISIBLE_DEVICES": "7"}
