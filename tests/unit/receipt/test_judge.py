"""How runs end: cause, exit code, findings; and that no list of JSON objects can stop a receipt."""

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import a_container
from seatrial.backends.base import State
from seatrial.job.plan import ImagePlan, Mount
from seatrial.receipt.model import Receipt
from seatrial.receipt.render import html, markdown

from .conftest import H200, OTHER, SCENARIOS, START, Scenario, at, ending, prologue, rows_of, running

#: Scenario → (exit cause, what the command line returns).
ENDINGS = {
    "h200-success": ("finished", 0),
    "cpu-success": ("finished", 0),
    "cpu-fallback": ("finished", 0),
    "contract-failure": ("gpu-contract", 3),
    "gpu-not-used": ("gpu-not-used", 3),
    "cuda-oom": ("cuda-oom", 1),
    "host-oom": ("host-oom", 1),
    "shared-memory": ("shared-memory", 1),
    "script-error": ("script-error", 1),
    "killed": ("signal", 1),
    "stopped": ("stopped", 1),
    "timeout": ("timeout", 1),
    "agent-lost": ("agent-lost", 5),
    "engine-error": ("engine-error", 5),
    "no-gpu-support": ("gpu-contract", 3),
    "garbage": ("finished", 0),
}


def test_cause_and_exit_code(every_scenario, tmp_path):
    name, run = every_scenario
    receipt = run.judge(tmp_path)
    assert (receipt.exit_cause.id, receipt.exit_code) == ENDINGS[name]


def test_a_receipt_survives_json(every_scenario, tmp_path):
    receipt = every_scenario[1].judge(tmp_path)
    assert Receipt.model_validate_json(receipt.model_dump_json()) == receipt


def verdicts(receipt):
    return {criterion.id: criterion.verdict for criterion in receipt.criteria}


def test_everything_holds_on_the_h200(scenario, tmp_path):
    receipt = scenario("h200-success").judge(tmp_path)
    assert verdicts(receipt) == {
        "gpus-visible": "pass",
        "ran-on-gpu": "pass",
        "gpu-busy": "pass",
        "in-time": "not judged",
        "model-saved": "pass",
        "clean-output": "pass",
        "image-size": "pass",
        "metric-accuracy": "pass",
    }
    assert receipt.outcome.id == "passed"
    assert receipt.header.gpus[0].uuid == H200.uuid
    assert receipt.header.framework_cuda == "13.0"
    assert receipt.header.cuda == "13.0"


def test_energy_is_the_agents_own_and_only_of_the_gpus_asked_for(scenario, tmp_path):
    measured = scenario("h200-success").judge(tmp_path).measurements
    assert (measured.energy_j, measured.energy_from) == (7400.5, "counter")


def test_energy_comes_from_power_when_the_agent_was_lost(scenario, tmp_path):
    measured = scenario("agent-lost").judge(tmp_path).measurements
    assert measured.energy_from == "power"
    assert 76 * 8 < measured.energy_j < 270 * 8


def test_an_agent_that_could_not_start_says_why(scenario, tmp_path):
    run = scenario("agent-lost")
    why = "the run cannot start: /seatrial/run/x: Permission denied"
    types = [event["type"] for event in run.events]
    run.events = [*run.events[: types.index("agent.started") + 1], at(1, "note", message=why)]
    said = run.judge(tmp_path).exit_cause.words
    assert said == f"The agent ended before the target was started: {why}"


def test_an_energy_counter_that_began_anew_is_not_believed(scenario, tmp_path):
    run = scenario("h200-success")
    [finished] = [event for event in run.events if event["type"] == "agent.finished"]
    finished["energy_j"] = {H200.uuid: -5_000_000.0}
    measured = run.judge(tmp_path).measurements
    assert measured.energy_from == "power" and measured.energy_j > 0


def test_the_window_is_from_the_first_step_line_to_the_last(scenario, tmp_path):
    run = scenario("h200-success")
    measured = run.judge(tmp_path).measurements
    assert measured.window_begins == "the first to the last step line"
    steps = [event["t"] for event in run.events if event["type"] == "step"]
    assert measured.window_s == pytest.approx(steps[-1] - steps[0])


def test_without_steps_the_window_begins_with_the_first_context(scenario, tmp_path):
    run = scenario("h200-success")
    run.events = [event for event in run.events if event["type"] != "step"]
    measured = run.judge(tmp_path).measurements
    assert measured.window_start_s == pytest.approx(5.1)
    assert measured.window_s == pytest.approx(30.9)
    assert measured.startup_s == pytest.approx(3)
    assert measured.wall_s == 33


def test_what_a_framework_tells_of_its_epochs_is_a_metric_and_no_bound_of_the_window(scenario, tmp_path):
    run = scenario("h200-success")
    for event in run.events:
        if event["type"] == "step":
            event["by"] = "keras"
    measured = run.judge(tmp_path).measurements
    assert measured.window_start_s == pytest.approx(5.1)
    assert measured.metrics


def test_idle_samples_before_the_context_do_not_count(scenario, tmp_path):
    use = scenario("h200-success").judge(tmp_path).measurements.gpus[0]
    assert use.utilization_mean_pct > 80


def test_throughput_is_images_over_time(scenario, tmp_path):
    measured = scenario("h200-success").judge(tmp_path).measurements
    assert measured.images == 29 * 12800
    assert measured.images_per_s == pytest.approx(12800)


@pytest.mark.parametrize(("threshold", "verdict"), [(70.0, "pass"), (95.0, "fail"), (None, "not judged")])
def test_the_utilisation_threshold(scenario, tmp_path, threshold, verdict):
    run = scenario("h200-success")
    run.criteria["mean_utilization_pct"] = threshold
    assert verdicts(run.judge(tmp_path))["gpu-busy"] == verdict


def test_one_idle_gpu_of_two_fails_although_the_mean_of_both_would_pass(tmp_path):
    events = prologue((H200, OTHER)) + running(20, (H200, OTHER)) + ending(24)
    for event in events:
        for gpu in event.get("gpus", ()) if event["type"] == "sample" else ():
            gpu["utilization_pct"] = 99 if gpu["uuid"] == H200.uuid else 45
    receipt = Scenario(events, (H200, OTHER), "required").judge(tmp_path)
    assert verdicts(receipt)["gpu-busy"] == "fail"


def test_gpus_of_one_index_are_judged_and_shown_each_on_its_own(tmp_path):
    """In every pod the first GPU has the index 0; slices have that of their GPU."""
    twin = OTHER.model_copy(update={"index": H200.index})
    events = prologue((H200, twin)) + running(20, (H200, twin)) + ending(24)
    for event in events:
        for gpu in event.get("gpus", ()) if event["type"] == "sample" else ():
            gpu["utilization_pct"] = 1 if gpu["uuid"] == H200.uuid else 99
    receipt = Scenario(events, (H200, twin), "required").judge(tmp_path)
    busy = next(criterion for criterion in receipt.criteria if criterion.id == "gpu-busy")
    names = ["GPU 0 (GPU-de421f49)", "GPU 0 (GPU-aaaabbbb)"]
    assert busy.verdict == "fail" and busy.measured == f"{names[0]} 1.0 %, {names[1]} 99 %"
    plots = {plot.id: plot for plot in receipt.plots}
    assert [plots[f"gpu-{n}-busy"].title for n in range(2)] == [f"{name} busy" for name in names]
    assert [line.name for line in plots["gpu-power"].lines] == names
    assert {f"{name} power" for name in names} < set(rows_of(receipt, "Measured"))
    assert set(names) < set(rows_of(receipt, "What ran"))


def test_a_run_that_never_started_tells_who_interrupted_it(tmp_path):
    finding = at(0, "finding", "host", id="stopped", severity="error", message="the user stopped it first")
    held = at(1, "finding", "host", id="k8s-quota", severity="error", message="The quota is used up")
    asked = at(2, "signal", "host", signal=15, name="SIGTERM", origin="user", forwarded_to=[])
    waiting = [*prologue()[:1], held, asked]
    over = at(2, "signal", "host", signal=15, name="SIGTERM", origin="search", forwarded_to=[], why="its time was over")
    told = {}
    for name, events in (
        ("by its user", [finding]),
        ("while it waited", waiting),
        ("by its search", [*prologue()[:1], over]),
        ("killed", []),
        ("forgotten", prologue()[:1]),
    ):
        (tmp_path / name).mkdir()
        receipt = Scenario(events, state=None, model=None).judge(tmp_path / name)
        told[name] = (receipt.exit_cause.id, receipt.exit_code, receipt.exit_cause.words)
    assert told == {
        "by its user": ("stopped", 130, "Stopped by the user before it started"),
        "while it waited": (
            "stopped",
            130,
            "Stopped by the user before it started, while it waited: The quota is used up",
        ),
        "by its search": ("stopped", 130, "Stopped by the search before it started: its time was over"),
        "killed": ("engine-error", 5, "The run never started: seatrial was interrupted while its image was built"),
        "forgotten": ("engine-error", 5, "The run never started, and docker no longer knows it"),
    }


def test_ctrl_c_ends_with_130_and_a_stop_request_does_not(tmp_path):
    def asked(number, name):
        return at(30, "signal", "host", signal=number, name=name, origin="user", forwarded_to=[])

    told = {}
    for name, events, state in (
        ("interrupted", [asked(2, "SIGINT"), *ending(31, exit_code=None, signal=2)], State("exited", 130)),
        ("saved and left", [asked(2, "SIGINT"), *ending(31)], State("exited", 0)),
        ("runs stop", [asked(15, "SIGTERM"), *ending(31)], State("exited", 0)),
        ("killed", [asked(2, "SIGINT"), asked(15, "SIGTERM"), asked(9, "SIGKILL")], State("exited", 137)),
    ):
        (tmp_path / name).mkdir()
        receipt = Scenario([*prologue(), *running(20), *events], state=state, model=None).judge(tmp_path / name)
        told[name] = (receipt.exit_cause.id, receipt.exit_code, receipt.outcome.level)
    assert told == {
        "interrupted": ("stopped", 130, "warning"),
        "saved and left": ("stopped", 130, "warning"),
        "runs stop": ("stopped", 0, "warning"),
        "killed": ("stopped", 130, "warning"),
    }
    assert receipt.exit_cause.words.startswith("Killed by the user after")


def test_results_that_ended_with_the_container_withhold_the_check_mark(tmp_path):
    lost = [{"path": "/tmp/big.npy", "bytes": 20 << 30}]
    outside = at(41, "files.outside", folder="container", copied=[], copied_files=0, lost=lost, lost_files=1)
    receipt = Scenario([*prologue(), *running(20), *ending(40), outside]).judge(tmp_path)
    assert (receipt.outcome.id, receipt.exit_code) == ("in-doubt", 0)
    [finding] = [finding for finding in receipt.findings if finding.id == "files-lost"]
    assert "/tmp/big.npy" in finding.evidence[0]


def test_a_container_killed_before_the_agents_first_line_had_been_started(tmp_path):
    """The engine did its part; whether a signal or the kernel's OOM killer ended it, the engine says."""
    told = {}
    for name, state in (
        ("killed", State("exited", 137)),
        ("out of memory", State("exited", 137, oom_killed=True)),
        ("not started", State("exited", 127)),
    ):
        (tmp_path / name).mkdir()
        receipt = Scenario(prologue()[:1], state=state, model=None).judge(tmp_path / name)
        told[name] = (receipt.exit_cause.id, receipt.exit_cause.words)
    lost = "it was killed or the machine went down, so the target's exit is unknown"
    assert told == {
        "killed": ("agent-lost", f"The agent was lost (docker reports exit code 137): {lost}"),
        "out of memory": ("host-oom", "Out of host memory: the kernel's OOM killer ended the target"),
        "not started": ("engine-error", "docker could not start the run (exit code 127)"),
    }


def test_a_peak_and_a_curve_say_over_what_they_are(scenario, tmp_path):
    """The kernel's peak is of every moment of the run; a curve, and a GPU's peak, of the moments that were sampled."""
    receipt = scenario("h200-success").judge(tmp_path)
    rows = rows_of(receipt, "Measured")
    assert rows["memory"].startswith("peak of the whole run ")
    assert rows["GPU 0 memory"].startswith("peak of the window's samples ")
    assert {"Host memory, sampled", "GPU memory, sampled"} < {plot.title for plot in receipt.plots}


def test_two_samples_are_too_few_for_a_mean(tmp_path):
    events = prologue((H200,)) + running(4, (H200,)) + ending(6.9)
    receipt = Scenario(events, (H200,), "required").judge(tmp_path)
    assert receipt.measurements.samples == 2
    assert verdicts(receipt)["gpu-busy"] == "not judged"


def test_a_gpu_without_a_utilisation_counter_is_not_judged(scenario, tmp_path):
    run = scenario("h200-success")
    for event in run.events:
        for gpu in event.get("gpus", ()) if event["type"] == "sample" else ():
            gpu["utilization_pct"] = None
    receipt = run.judge(tmp_path)
    assert verdicts(receipt)["gpu-busy"] == "not judged"
    assert receipt.measurements.gpus[0].utilization_mean_pct is None


def test_asked_for_and_not_used_names_the_gpu_and_the_fix(scenario, tmp_path):
    finding = scenario("gpu-not-used").judge(tmp_path).findings[0]
    assert finding.id == "gpu-not-used"
    assert "GPU 1" in finding.message and "GPU 0" not in finding.message
    assert finding.fix.startswith("seatrial run --gpus 1 train.py")


def test_a_gpu_nobody_could_look_at_is_not_called_unused(tmp_path):
    events = prologue((H200,)) + running(20, ()) + ending(24)
    receipt = Scenario(events, (H200,), "required").judge(tmp_path)
    assert receipt.exit_code == 0
    assert verdicts(receipt)["ran-on-gpu"] == "not judged"


def test_a_failed_kernel_fails_the_run_on_the_gpu(scenario, tmp_path):
    run = scenario("h200-success")
    next(e for e in run.events if e.get("kind") == "torch").update(ok=False, error="no kernel image")
    assert verdicts(run.judge(tmp_path))["ran-on-gpu"] == "fail"


def test_a_torch_that_was_never_tried_proves_nothing(scenario, tmp_path):
    """The target had taken the memory before torch's trial could."""
    run = scenario("h200-success")
    run.agent["check"] = "torch"
    run.events = [event for event in run.events if event.get("kind") != "torch"]
    assert verdicts(run.judge(tmp_path))["ran-on-gpu"] == "not judged"


def test_a_target_that_was_stopped_for_its_torch_is_not_called_never_started(scenario, tmp_path):
    run = scenario("h200-success")
    next(e for e in run.events if e.get("kind") == "torch").update(ok=False, error="no kernel image")
    next(e for e in run.events if e["type"] == "target.exited").update(exit_code=None, cause="gpu-contract")
    receipt = run.judge(tmp_path)
    assert receipt.exit_code == 3 and "the target's work does not count" in receipt.exit_cause.words
    assert any(entry.words == "Target ended: the GPU contract was violated" for entry in receipt.timeline)


def test_what_the_target_left_behind_is_told_apart_from_the_target(scenario, tmp_path):
    run = scenario("cpu-success")
    at = next(number for number, event in enumerate(run.events) if event["type"] == "target.exited")
    told = {"type": "signal", "source": "agent", "signal": 15, "name": "SIGTERM", "t": run.events[at]["t"]}
    run.events.insert(at, {**told, "origin": "end", "forwarded_to": [8, 9]})
    words = [entry.words for entry in run.judge(tmp_path).timeline]
    assert "SIGTERM to 2 processes that the target had started and left behind" in words


def test_strict_turns_an_unmet_criterion_into_exit_4(scenario, tmp_path):
    run = scenario("cpu-success")
    run.criteria["metrics"] = {"accuracy": ">= 0.999"}
    run.job["strict"] = True
    assert run.judge(tmp_path).exit_code == 4


def test_without_strict_an_unmet_criterion_shows_but_does_not_fail_the_command(scenario, tmp_path):
    run = scenario("cpu-success")
    run.criteria["metrics"] = {"accuracy": ">= 0.999"}
    receipt = run.judge(tmp_path)
    assert receipt.exit_code == 0 and receipt.outcome.level == "bad"


def test_a_target_that_failed_is_1_even_when_strict(scenario, tmp_path):
    run = scenario("script-error")
    run.job["strict"] = True
    assert run.judge(tmp_path).exit_code == 1


def test_a_timeout_is_a_failure_though_the_target_ended_with_0(scenario, tmp_path):
    run = scenario("timeout")
    next(e for e in run.events if e["type"] == "target.exited").update(exit_code=0, signal=None)
    assert run.judge(tmp_path).exit_code == 1


@pytest.mark.parametrize(
    ("name", "condition", "verdict"),
    [
        ("accuracy", ">= 0.985", "pass"),  # of the test lines, not of the training ones
        ("train_accuracy", "> 0.99", "pass"),
        ("loss", "< 0.05", "pass"),
        ("test_loss", "== 0.03", "pass"),
        ("accuracy", "<= 0.5", "fail"),
        ("f1", "> 0", "fail"),  # never reported
        ("accuracy", "about 1", "fail"),
    ],
)
def test_metrics(scenario, tmp_path, name, condition, verdict):
    run = scenario("cpu-success")
    run.criteria["metrics"] = {name: condition}
    assert verdicts(run.judge(tmp_path))[f"metric-{name}"] == verdict


def test_the_image_size(scenario, tmp_path):
    run = scenario("cpu-success")
    run.criteria["max_image_bytes"] = 1_000_000
    assert verdicts(run.judge(tmp_path))["image-size"] == "fail"


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
    judged = next(each for each in run.judge(tmp_path).criteria if each.id == "image-size")
    assert (judged.verdict, judged.evidence) == ("not judged", "Python comes from the mount /opt, not from the image")


def test_image_size_is_not_judged_when_the_container_was_not_started(scenario, tmp_path):
    run = scenario("cpu-success")
    del run.events[0]
    judged = next(each for each in run.judge(tmp_path).criteria if each.id == "image-size")
    assert (judged.verdict, judged.evidence) == ("not judged", "the container was not started")


def test_the_time_limit(scenario, tmp_path):
    run = scenario("cpu-success")
    run.criteria["finished_within_s"] = 30.0
    assert verdicts(run.judge(tmp_path))["in-time"] == "fail"


def test_the_exception_is_quoted(scenario, tmp_path):
    assert "ValueError: expected 10 classes" in scenario("script-error").judge(tmp_path).exit_cause.words


def test_a_rank_is_quoted_and_not_its_launcher(scenario, tmp_path):
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


def test_a_cpu_run_that_finished_is_not_told_that_it_had_no_gpu(scenario, tmp_path):
    run = scenario("cpu-success")
    run.stderr = "UserWarning: Found no NVIDIA driver on your system.\n"
    assert run.judge(tmp_path).findings == ()


def test_cuda_trouble_in_the_output_of_a_run_that_finished(scenario, tmp_path):
    run = scenario("h200-success")
    run.stdout = "RuntimeError: CUDA error: an illegal memory access was encountered\n"
    receipt = run.judge(tmp_path)
    assert verdicts(receipt)["clean-output"] == "fail"
    assert receipt.findings[0].evidence[0].startswith("stdout.log line 1")


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        ("CUDA Setup failed despite GPU being available. Please run the following command", "fail"),
        ("ImportError: libcusparse.so.12: undefined symbol: __nvJitLinkComplete_12_4", "fail"),
        ("OSError: libcudart.so.11.0: cannot open shared object file: No such file or directory", "fail"),
        ("RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x512 and 784x10)", "pass"),
    ],
)
def test_of_failures_of_training_only_those_of_cuda_are_held_against_it(scenario, tmp_path, line, verdict):
    run = scenario("h200-success")
    run.stdout = line + "\n"
    assert verdicts(run.judge(tmp_path))["clean-output"] == verdict


def test_an_oom_kill_of_a_worker_in_a_run_that_finished_is_a_warning(scenario, tmp_path):
    run = scenario("cpu-success")
    next(e for e in run.events if e["type"] == "target.exited")["oom_kills"] = 2
    receipt = run.judge(tmp_path)
    assert receipt.exit_cause.id == "finished"
    assert "OOM killer ended 2" in receipt.warnings[0]


def test_the_cpu_fallback_is_announced(scenario, tmp_path):
    assert scenario("cpu-fallback").judge(tmp_path).warnings[0].startswith("This ran on the CPU")


def test_garbage_is_counted_and_the_rest_judged(scenario, tmp_path):
    receipt = scenario("garbage").judge(tmp_path)
    assert receipt.warnings[0].startswith("3 lines of events.jsonl could not be read")
    assert receipt.measurements.metrics[-1].last > 0.99
    assert all(entry.at_s <= 60 for entry in receipt.timeline)


def test_a_target_that_could_not_be_run_says_why(tmp_path):
    note = at(1, "note", message="/nowhere/python3 cannot be run: No such file or directory")
    receipt = Scenario([*prologue(), note, *ending(1, 127, seconds=0.0)], model=None).judge(tmp_path)
    assert receipt.exit_cause.words == (
        "The target could not be run: /nowhere/python3 cannot be run: No such file or directory"
    )


@pytest.mark.parametrize(
    ("id", "cause", "code"), [("gpu-contract", "gpu-contract", 3), ("engine-refused", "engine-error", 5)]
)
def test_a_start_that_the_host_gave_up_says_why(tmp_path, id, cause, code):
    refusal = at(0, "finding", "host", id=id, severity="error", message="no room for the image", cause=None, fix=None)
    receipt = Scenario([refusal], (H200,), "required", state=None, model=None).judge(tmp_path)
    assert (receipt.exit_cause.id, receipt.exit_code) == (cause, code)
    assert receipt.exit_cause.words.endswith("no room for the image")


def test_a_run_still_going_on_is_provisional(tmp_path):
    receipt = Scenario(prologue() + running(5), state=State("running")).judge(tmp_path)
    assert (receipt.exit_cause.id, receipt.exit_code) == ("running", 0)


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
KEYS = (
    *(
        "exit_code",
        "signal",
        "seconds",
        "oom_kills",
        "step",
        "loss",
        "phase",
        "images",
        "visible",
        "expected",
        "cgroup",
    ),
    *("framework", "energy_j", "ms", "torch", "argv", "evidence", "severity", "image_bytes", "memory_bytes", "pid"),
    *("cuda_driver", "ok", "kind", "error", "python", "message", "name", "origin", "status", "oom_killed", "epoch"),
)
USUAL = st.fixed_dictionaries({key: values | JSON for key, values in VALUES.items()})
EVENTS = st.lists(
    st.builds(lambda usual, more: {**usual, **more}, USUAL, st.dictionaries(st.sampled_from(KEYS), JSON, max_size=5))
    | st.dictionaries(st.text(max_size=6), JSON, max_size=4),
    max_size=6,
)


@given(events=EVENTS, gpu_mode=st.sampled_from(["required", "none", "auto-cpu"]))
def test_no_list_of_objects_stops_a_receipt(events, gpu_mode):
    events = json.loads(json.dumps(events))
    with TemporaryDirectory() as folder:
        receipt = Scenario(events, (H200,), gpu_mode, criteria={"metrics": {"loss": "< 1"}}).judge(Path(folder))
    assert Receipt.model_validate_json(receipt.model_dump_json()) == receipt
    html.render(receipt)
    markdown.render(receipt)


def test_the_scenarios_are_all_judged_here():
    assert set(ENDINGS) == set(SCENARIOS)


class TestModelSaved:
    def judged(self, run, tmp_path):
        return next(c for c in run.judge(tmp_path).criteria if c.id == "model-saved")

    def test_an_empty_file_is_no_model(self, scenario, tmp_path):
        run = scenario("cpu-success")
        run.model = None
        (tmp_path / "project" / "models").mkdir(parents=True)
        (tmp_path / "project" / "models" / "mnist.pth").touch()
        os.utime(tmp_path / "project" / "models" / "mnist.pth", (START + 30, START + 30))
        judged = self.judged(run, tmp_path)
        assert (judged.verdict, "is empty" in judged.evidence) == ("fail", True)

    def test_an_old_file_is_not_of_this_run(self, scenario, tmp_path):
        run = scenario("cpu-success")
        run.model = None
        (tmp_path / "project" / "models").mkdir(parents=True)
        (tmp_path / "project" / "models" / "mnist.pth").write_bytes(b"old")
        os.utime(tmp_path / "project" / "models" / "mnist.pth", (START - 100, START - 100))
        judged = self.judged(run, tmp_path)
        assert (judged.verdict, "older" in judged.evidence) == ("fail", True)

    def test_a_file_of_a_run_just_before_is_not_of_this_run(self, scenario, tmp_path):
        run = scenario("cpu-success")
        run.model = None
        (tmp_path / "project" / "models").mkdir(parents=True)
        (tmp_path / "project" / "models" / "mnist.pth").write_bytes(b"old")
        os.utime(tmp_path / "project" / "models" / "mnist.pth", (START + 0.5, START + 0.5))  # the agent starts at 0.6
        assert self.judged(run, tmp_path).verdict == "fail"

    def test_nothing_promised_nothing_judged(self, scenario, tmp_path):
        run = scenario("cpu-success")
        run.model = None
        run.models_folder = False
        assert self.judged(run, tmp_path).verdict == "not judged"

    def test_a_pattern_is_a_promise(self, scenario, tmp_path):
        run = scenario("cpu-success")
        run.criteria["model"] = ("out/*.bin",)
        run.models_folder = False
        assert self.judged(run, tmp_path).verdict == "fail"

    def test_a_pattern_in_the_project(self, scenario, tmp_path):
        run = scenario("cpu-success")
        run.criteria["model"] = ("**/*.pth",)
        assert "models/mnist.pth" in self.judged(run, tmp_path).evidence

    def test_environments_are_not_searched(self, scenario, tmp_path):
        run = scenario("cpu-success")
        run.model = ".venv/weights.pt"
        run.models_folder = False
        (tmp_path / "project" / ".venv").mkdir(parents=True)
        assert self.judged(run, tmp_path).verdict == "not judged"
