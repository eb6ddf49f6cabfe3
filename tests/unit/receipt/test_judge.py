"""Ends of runs: cause, exit code, criteria and findings; and no list of JSON objects stops a receipt."""

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import a_container
from seatrial.backends.base import State
from seatrial.job.plan import ImagePlan, Mount
from seatrial.receipt import model
from seatrial.receipt.model import Receipt
from seatrial.receipt.outcome import NO_GPU
from seatrial.receipt.render import markdown, pages
from tables import cases

from .conftest import H200, OTHER, SCENARIOS, START, Scenario, at, ending, prologue, rows_of, running

#: Scenario → (exit cause, exit code).
ENDINGS = {
    **dict.fromkeys(("h200-success", "cpu-success", "cpu-fallback", "garbage"), ("finished", 0)),
    **dict.fromkeys(("contract-failure", "no-gpu-support"), ("gpu-contract", 3)),
    **{id: (id, 1) for id in ("cuda-oom", "host-oom", "shared-memory", "script-error", "stopped", "timeout")},
    **{id: (id, 5) for id in ("agent-lost", "engine-error")},
    "gpu-not-used": ("gpu-not-used", 3),
    "killed": ("signal", 1),
}


def test_cause_and_exit_code_of_every_scenario_survive_json(every_scenario, tmp_path):
    name, run = every_scenario
    receipt = run.judge(tmp_path)
    assert (receipt.exit_cause.id, receipt.exit_code) == ENDINGS[name]
    assert Receipt.model_validate_json(receipt.model_dump_json()) == receipt
    assert set(ENDINGS) == set(SCENARIOS)


def verdicts(receipt):
    return {criterion.id: criterion.verdict for criterion in receipt.criteria}


def changed(run, type, **keys):
    """Change all events of a type; keys of a GPU's sample are ``gpu_…``."""
    for event in run.events:
        if event["type"] == type:
            event.update({key: value for key, value in keys.items() if not key.startswith("gpu_")})
            for gpu in event.get("gpus", ()):
                gpu.update({key[4:]: value for key, value in keys.items() if key.startswith("gpu_")})
    return run


def without(run, *types):
    run.events = [event for event in run.events if event["type"] not in types and event.get("kind") not in types]
    return run


@pytest.mark.parametrize("change", ["agent lost", "counter began anew"])
def test_energy_is_integrated_from_power_if_no_counter_is_usable(scenario, tmp_path, change):
    run = scenario("agent-lost" if change == "agent lost" else "h200-success")
    measured = changed(run, "agent.finished", energy_j={H200.uuid: -5e6}).judge(tmp_path).measurements
    assert measured.energy_from == "power" and measured.energy_j > 76 * 8


@pytest.mark.parametrize("reported", ["script", "framework", "nothing"])
def test_training_window_begins_with_the_scripts_steps_else_with_the_context(scenario, tmp_path, reported):
    run = scenario("h200-success")
    steps = [event["t"] for event in run.events if event["type"] == "step"]
    if reported == "framework":
        changed(run, "step", by="keras")
    measured = (without(run, "step") if reported == "nothing" else run).judge(tmp_path).measurements
    if reported == "script":
        assert measured.window_begins == "the first to the last step line"
        assert measured.window_s == pytest.approx(steps[-1] - steps[0])
    else:
        assert (measured.window_start_s, measured.window_s) == (pytest.approx(5.1), pytest.approx(30.9))
        assert (measured.startup_s, measured.wall_s) == (pytest.approx(3), 33)
        assert bool(measured.metrics) == (reported == "framework")


def two_gpus(first, second, other=OTHER):
    events = prologue((H200, other)) + running(20, (H200, other)) + ending(24)
    for event in events:
        for gpu in event.get("gpus", ()) if event["type"] == "sample" else ():
            gpu["utilization_pct"] = first if gpu["uuid"] == H200.uuid else second
    return Scenario(events, (H200, other), "required")


def test_gpus_of_one_index_are_judged_and_shown_each(tmp_path):
    """In every pod the first GPU has the index 0; slices have that of their GPU."""
    receipt = two_gpus(45, 99, OTHER.model_copy(update={"index": H200.index})).judge(tmp_path)
    names = ["GPU 0 (GPU-de421f49)", "GPU 0 (GPU-aaaabbbb)"]
    busy = receipt.criteria["gpu-busy"]
    assert busy.verdict == "fail", "although the mean of both would pass"
    assert busy.measured == f"{names[0]} 45 %, {names[1]} 99 %"
    plots = {plot.id: plot for plot in receipt.plots}
    assert [plots[f"gpu-{n}-busy"].title for n in range(2)] == [f"{name} busy" for name in names]
    assert [line.name for line in plots["gpu-power"].lines] == names
    assert set(names) < set(rows_of(receipt, "What ran"))


ASKED = {"signal": 15, "name": "SIGTERM", "forwarded_to": []}


GONE = State("gone")
LAUNCHED = prologue()[:1]
QUOTA = at(1, "finding", "host", id="k8s-quota", severity="error", message="The quota is used up")
SEARCH = at(2, "signal", "host", origin="search", why="its time was over", **ASKED)
#: Events, the engine's state, backend → exit cause, exit code, and how its words begin.
ENDS = {
    "stopped first": ([at(0, "finding", "host", id="stopped", severity="error", message="first")], None, "docker",
        "stopped", 130, "Stopped by the user before it started"),
    "stopped while it waited": ([*LAUNCHED, QUOTA, at(2, "signal", "host", origin="user", **ASKED)], None, "docker",
        "stopped", 130, "Stopped by the user before it started, while it waited: The quota is used up"),
    "stopped by the search": ([*LAUNCHED, SEARCH], None, "docker",
        "stopped", 130, "Stopped by the search before it started: its time was over"),
    "interrupted build": ([], None, "docker",
        "engine-error", 5, "The run never started: seatrial was interrupted while its image was built"),
    "deleted before it was read": (LAUNCHED, None, "docker",
        "engine-error", 5, "docker no longer knows the run: it was deleted there before its evidence was read"),
    "removed while it ran": ([*prologue(), *running(20)], GONE, "docker",
        "agent-lost", 5, "The container was removed from docker while it ran after 20 samples, so the target's exit"),
    "agent of a process lost": ([*prologue(), *running(20)], GONE, "local",
        "agent-lost", 5, "The agent was lost after 20 samples: it was killed or the machine went down"),
    "killed before the agent's first line": (LAUNCHED, State("exited", 137), "docker",
        "agent-lost", 5, "The agent was lost (docker reports exit code 137)"),
    "out of memory before it": (LAUNCHED, State("exited", 137, oom_killed=True), "docker",
        "host-oom", 1, "Out of host memory: the kernel's OOM killer"),
    "not started by the engine": (LAUNCHED, State("exited", 127), "docker",
        "engine-error", 5, "docker could not start the run (exit code 127)"),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_end_without_the_agents_own_names_its_reason(tmp_path, name):
    events, state, backend, cause, code, words = ENDS[name]
    receipt = Scenario(events, backend=backend, state=state, model=None).judge(tmp_path)
    assert (receipt.exit_cause.id, receipt.exit_code) == (cause, code) and receipt.exit_cause.words.startswith(words)
    assert state is not GONE or (receipt.outcome.level == "bad" and receipt.measurements.wall_s)


def test_reason_why_the_agent_did_not_start_has_its_fix(tmp_path):
    note = at(1, "note", message="the run cannot start: No space left on device")
    receipt = Scenario([*prologue()[:2], note], state=State("exited", 137), model=None).judge(tmp_path)
    assert receipt.exit_cause.id == "agent-lost"
    assert [each.id for each in receipt.findings] == ["disk-full"]


@pytest.mark.parametrize(
    ("signals", "end", "state", "code"),
    [
        ([2], ending(31, exit_code=None, signal=2), State("exited", 130), 130),
        ([2], ending(31), State("exited", 0), 130),
        ([15], ending(31), State("exited", 0), 0),
        ([2, 15, 9], [], State("exited", 137), 130),
    ],
)
def test_ctrl_c_ends_with_130_and_a_stop_request_does_not(tmp_path, signals, end, state, code):
    requests = [at(30, "signal", "host", **{**ASKED, "signal": number}, origin="user") for number in signals]
    receipt = Scenario([*prologue(), *running(20), *requests, *end], state=state, model=None).judge(tmp_path)
    assert (receipt.exit_cause.id, receipt.exit_code, receipt.outcome.level) == ("stopped", code, "warning")
    assert receipt.exit_cause.words.startswith("Killed by the user after") == (9 in signals)


@pytest.mark.parametrize(
    ("source", "origin", "cause", "code"),
    [("host", "pruner", "pruned", 0), ("host", "search", "stopped", 1), ("agent", "pruner", "stopped", 1),
     ("target", "pruner", "stopped", 1)],
)  # fmt: skip
def test_trial_is_pruned_only_by_the_hosts_word(tmp_path, source, origin, cause, code):
    request = at(12, "signal", source, origin=origin, why="its time was over", **ASKED)
    by_engine = at(12.1, "signal", origin="engine", **ASKED)
    events = [*prologue(), *running(10), request, by_engine, *ending(12.5, None, signal=15)]
    receipt = Scenario(events, model=None).judge(tmp_path)
    assert (receipt.exit_cause.id, receipt.exit_code) == (cause, code)
    assert ("its time was over" in receipt.outcome.words) == (source == "host")
    assert receipt.outcome.level == ("none" if cause == "pruned" else "warning")


def test_results_that_ended_with_the_container_cast_doubt(tmp_path):
    lost = [{"path": "/tmp/big.npy", "bytes": 20 << 30}]
    outside = at(41, "files.outside", folder="container", copied=[], copied_files=0, lost=lost, lost_files=1)
    receipt = Scenario([*prologue(), *running(20), *ending(40), outside]).judge(tmp_path)
    assert (receipt.outcome.id, receipt.exit_code) == ("in-doubt", 0)
    [finding] = [finding for finding in receipt.findings if finding.id == "files-lost"]
    assert "/tmp/big.npy" in finding.evidence[0]


WHY = "/nowhere/python3 cannot be run: No such file or directory"


@pytest.mark.parametrize("case", ["agent", "target", "gpu-contract", "engine-refused"])
def test_start_that_was_given_up_names_the_reason(tmp_path, case):
    if case == "agent":
        run = Scenario([*prologue()[:2], at(1, "note", message=WHY)], state=State("exited", 137), model=None)
    elif case == "target":
        run = Scenario([*prologue(), at(1, "note", message=WHY), *ending(1, 127, seconds=0.0)], model=None)
    else:
        refusal = at(0, "finding", "host", id=case, severity="error", message=WHY, cause=None, fix=None)
        run = Scenario([refusal], (H200,), "required", state=None, model=None)
    receipt = run.judge(tmp_path)
    assert receipt.exit_cause.words.endswith(f": {WHY}")
    assert receipt.exit_code == {"agent": 5, "target": 1, "gpu-contract": 3, "engine-refused": 5}[case]


def torch_failed(run):
    kernel = next(event for event in run.events if event.get("kind") == "torch")
    kernel.update(ok=False, error="no kernel image")
    return run


def set_criteria(**criteria):
    return lambda run: run.criteria.update(criteria)


#: Scenario, what is changed, criterion → verdict.
CHANGES = [
    ("h200-success", set_criteria(mean_utilization_pct=70.0), "gpu-busy", "pass"),
    ("h200-success", set_criteria(mean_utilization_pct=95.0), "gpu-busy", "fail"),
    ("h200-success", set_criteria(mean_utilization_pct=None), "gpu-busy", "not judged"),
    ("h200-success", lambda run: changed(run, "sample", gpu_utilization_pct=None), "gpu-busy", "not judged"),
    ("h200-success", torch_failed, "ran-on-gpu", "fail"),
    ("h200-success", lambda run: run.agent.update(check="torch") or without(run, "torch"), "ran-on-gpu", "not judged"),
    ("cpu-success", set_criteria(max_image_bytes=1_000_000), "image-size", "fail"),
    ("cpu-success", lambda run: without(run, "host.launched"), "image-size", "not judged"),
    ("cpu-success", set_criteria(finished_within_s=30.0), "in-time", "fail"),
    *(
        ("cpu-success", set_criteria(metrics={name: condition}), f"metric-{name}", verdict)
        for name, condition, verdict in [
            ("accuracy", ">= 0.985", "pass"),  # of the test lines, not of the training ones
            ("train_accuracy", "> 0.99", "pass"),
            ("loss", "< 0.05", "pass"),
            ("accuracy", "<= 0.5", "fail"),
            ("f1", "> 0", "fail"),  # never reported
            ("accuracy", "about 1", "fail"),
        ]
    ),
    *(
        ("h200-success", lambda run, line=line: setattr(run, "stdout", f"{line}\n"), "clean-output", verdict)
        for line, verdict in [
            ("RuntimeError: CUDA error: an illegal memory access was encountered", "fail"),
            ("CUDA Setup failed despite GPU being available. Please run the following command", "fail"),
            ("OSError: libcudart.so.11.0: cannot open shared object file: No such file or directory", "fail"),
            ("RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x512 and 784x10)", "pass"),
        ]
    ),
]


@pytest.mark.parametrize(("name", "change", "criterion", "verdict"), CHANGES)
def test_verdict_of_a_changed_run(scenario, tmp_path, name, change, criterion, verdict):
    run = scenario(name)
    change(run)
    assert verdicts(run.judge(tmp_path))[criterion] == verdict


def test_the_fix_of_a_metric_that_was_never_reported_reports_it(scenario, tmp_path, monkeypatch):
    run = scenario("cpu-success")
    set_criteria(metrics={"f1": "> 0"})(run)
    evidence = next(each.evidence for each in run.judge(tmp_path).criteria if each.id == "metric-f1")
    monkeypatch.setenv("SEATRIAL_EVENTS", str(tmp_path / "reported.jsonl"))
    exec(evidence.partition("; fix: ")[2], {"f1": 0.5})
    assert json.loads((tmp_path / "reported.jsonl").read_text()) == {"f1": 0.5}


@pytest.mark.parametrize(
    ("stdout", "condition", "verdict", "words"),
    [
        ("acc: 0.5\nval_acc: 0.91\n", ">= 0.9", "pass", "last val_acc: 0.91, stdout line 2"),
        ("val_acc: 0.8\n", ">= 0.9", "fail", "last val_acc: 0.8"),
        ("val_acc: 98 %\n", ">= 0.9", "fail", "98 % was printed"),
        ("val_acc: 98 %\n", ">= 90", "pass", "last val_acc: 98"),
        ("val_acc: 0.95\nval_acc: nan\n", ">= 0.9", "fail", "last val_acc: nan"),
        ("val_accuracy: 0.95\n", ">= 0.9", "fail", "did you mean val_accuracy?"),
    ],
)
def test_a_printed_metric_is_judged_as_a_reported_one(tmp_path, stdout, condition, verdict, words):
    run = Scenario(prologue(()) + ending(3), (), "none")
    run.stdout = stdout
    set_criteria(metrics={"val_acc": condition})(run)
    [judged] = [each for each in run.judge(tmp_path).criteria if each.id == "metric-val_acc"]
    assert judged.verdict == verdict and words in judged.evidence


def test_two_samples_are_too_few_for_a_mean(tmp_path):
    receipt = Scenario(prologue((H200,)) + running(4, (H200,)) + ending(6.9), (H200,), "required").judge(tmp_path)
    assert receipt.measurements.samples == 2 and verdicts(receipt)["gpu-busy"] == "not judged"


@pytest.mark.parametrize("size", [31, None])
def test_image_size_is_not_judged_when_python_comes_from_a_mount(scenario, tmp_path, size):
    run = scenario("cpu-success")
    run.events[0]["image_bytes"] = size
    plan = run.plan
    image = ImagePlan(tag="hostlike", build=False, python="/opt/venv/bin/python3")
    mounts = (Mount(source=Path("/opt"), target="/opt", read_only=True),)
    run.plan = lambda project: plan(project).model_copy(
        update={"image": image, "container": a_container(mounts=mounts)}
    )
    judged = run.judge(tmp_path).criteria["image-size"]
    assert (judged.verdict, judged.evidence) == ("not judged", "Python comes from the mount /opt, not from the image")


def test_unused_gpu_is_named_with_the_fix_and_an_unobserved_one_is_not(scenario, tmp_path):
    finding = scenario("gpu-not-used").judge(tmp_path).findings[0]
    assert finding.id == "gpu-not-used" and "GPU 1" in finding.message and "GPU 0" not in finding.message
    assert finding.fix.startswith("seatrial run --gpus 1 train.py")
    unseen = Scenario(prologue((H200,)) + running(20, ()) + ending(24), (H200,), "required")
    (tmp_path / "other").mkdir()
    receipt = unseen.judge(tmp_path / "other")
    assert receipt.exit_code == 0 and verdicts(receipt)["ran-on-gpu"] == "not judged"


def test_target_stopped_for_its_framework_breaks_the_contract(scenario, tmp_path):
    run = changed(torch_failed(scenario("h200-success")), "target.exited", exit_code=None, cause="gpu-contract")
    receipt = run.judge(tmp_path)
    assert receipt.exit_code == 3 and "the target's work does not count" in receipt.exit_cause.words
    assert any(entry.words == "Target ended: the GPU contract was violated" for entry in receipt.timeline)


def test_leftover_processes_are_in_the_timeline(scenario, tmp_path):
    run = scenario("cpu-success")
    run.events.insert(-2, at(35.9, "signal", **{**ASKED, "forwarded_to": [8, 9]}, origin="end"))
    words = [entry.words for entry in run.judge(tmp_path).timeline]
    assert "SIGTERM to 2 processes that the target had started and left behind" in words


@pytest.mark.parametrize("name", ["script-error", "timeout"])
def test_failed_target_is_1_even_when_strict_or_ended_with_0(scenario, tmp_path, name):
    run = scenario(name)
    run.job["strict"] = True
    if name == "timeout":
        changed(run, "target.exited", exit_code=0, signal=None)
    assert run.judge(tmp_path).exit_code == 1


def test_rank_is_quoted_and_not_its_launcher(scenario, tmp_path):
    run = scenario("script-error")
    run.stderr = (
        "[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "train.py", line 3, in <module>\n'
        "[rank1]: KeyError: 'label'\n"
        "Traceback (most recent call last):\n"
        '  File "run.py", line 900, in main\n'
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        "train.py FAILED\n"
    )
    assert run.judge(tmp_path).exit_cause.words == "The target exited with 1: KeyError: 'label'"


def test_findings_and_warnings_of_runs_that_finished(scenario, tmp_path):
    runs = {name: scenario(name) for name in ("cpu-success", "h200-success", "cpu-fallback", "garbage")}
    runs["cpu-success"].stderr = "UserWarning: Found no NVIDIA driver on your system.\n"
    changed(runs["cpu-success"], "target.exited", oom_kills=2)
    runs["h200-success"].stdout = "RuntimeError: CUDA error: an illegal memory access was encountered\n"
    receipts = {}
    for name, run in runs.items():
        (tmp_path / name).mkdir()
        receipts[name] = run.judge(tmp_path / name)
    assert receipts["cpu-success"].findings == () and "OOM killer ended 2" in receipts["cpu-success"].warnings[0]
    assert receipts["h200-success"].findings[0].evidence[0].startswith("stdout.log line 1")
    assert receipts["cpu-fallback"].outcome.words.endswith(NO_GPU.format("ran"))
    assert model.warnings(receipts["cpu-fallback"]) == [] and receipts["cpu-fallback"].warnings
    assert receipts["garbage"].warnings[0].startswith("3 lines of events.jsonl could not be read")
    assert receipts["garbage"].measurements.metrics[-1].last > 0.99


JSON = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just([{}]) | st.just({"": [0]})
)
TYPES = """agent.started gpu.check gpu.kernel finding target.started sample gpu.context step note signal
    target.exited agent.finished host.launched host.state"""
VALUES = {
    "type": st.sampled_from(TYPES.split()),
    "t": st.floats(START, START + 100),
    "source": st.sampled_from(["agent", "host", "target"]),
    "uuid": st.just(H200.uuid),
    "cause": st.sampled_from(["exited", "timeout", "gpu-contract"]),
    "gpus": st.lists(st.fixed_dictionaries({"uuid": st.just(H200.uuid) | JSON, "utilization_pct": JSON}), max_size=2),
}
NAMES = """exit_code signal seconds oom_kills step loss phase images visible expected cgroup framework energy_j ms torch
    argv evidence severity image_bytes memory_bytes pid cuda_driver ok kind error python message name origin status
    oom_killed epoch"""
KEYS = NAMES.split()
USUAL = st.fixed_dictionaries({key: values | JSON for key, values in VALUES.items()})
EVENTS = st.lists(
    st.builds(lambda usual, more: {**usual, **more}, USUAL, st.dictionaries(st.sampled_from(KEYS), JSON, max_size=5))
    | st.dictionaries(st.text(max_size=6), JSON, max_size=4),
    max_size=6,
)


@settings(deadline=None)
@given(events=EVENTS, gpu_mode=st.sampled_from(["required", "none", "auto-cpu"]))
def test_no_list_of_objects_stops_a_receipt(events, gpu_mode):
    events = json.loads(json.dumps(events))
    with TemporaryDirectory() as folder:
        receipt = Scenario(events, (H200,), gpu_mode, criteria={"metrics": {"loss": "< 1"}}).judge(Path(folder))
    assert Receipt.model_validate_json(receipt.model_dump_json()) == receipt
    pages.render(receipt)
    markdown.render(receipt)


@cases("file", "content", "written_s", "settings", "verdict", "words")
def test_saved_model(scenario, tmp_path, file, content, written_s, settings, verdict, words):
    run = scenario("cpu-success")
    run.model = None
    for name, value in (settings or {}).items():
        setattr(run, name, value)
    if file:
        path = tmp_path / "project" / file
        path.parent.mkdir(parents=True)
        path.write_text(content)
        os.utime(path, (START + written_s, START + written_s))
    judged = run.judge(tmp_path).criteria["model-saved"]
    assert judged.verdict == verdict and words in judged.evidence
