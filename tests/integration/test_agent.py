"""The built agent, run as a real process on scripts that behave and that do not."""

import os
import signal
import subprocess
import sys
import time

import pytest

from agent_process import FLOOR, Agent
from pace import slowness, until
from seatrial import events, frames
from seatrial.agent import __main__ as agent_main
from seatrial.agent import isolation
from seatrial.backends.log_sink import Sink
from seatrial.probe import processes
from terminal import Terminal

both = pytest.mark.parametrize(
    "python",
    [
        pytest.param(sys.executable, id="this-python"),
        pytest.param(FLOOR, id="python3.8", marks=pytest.mark.skipif(FLOOR is None, reason="no Python 3.8 here")),
    ],
)


def gone(pid):
    process = processes.read(pid)
    return process is None or process.state == "Z"


@both
@pytest.mark.parametrize("code", [0, 1, 77])
def test_exit_codes_pass_through(tmp_path, python, code):
    agent = Agent(tmp_path, f"import sys; print('out'); print('err', file=sys.stderr); sys.exit({code})", python)
    done = agent.run()
    assert (done.returncode, done.stdout, done.stderr) == (code, b"out\n", b"err\n")
    assert agent.log("stdout.log") == b"out\n" and agent.log("stderr.log") == b"err\n"
    assert agent.exited()["exit_code"] == code and agent.exited()["cause"] == "exited"
    assert agent.exited()["max_rss_bytes"] > 1_000_000
    assert agent.events("agent.finished")[0]["exit_code"] == code


def test_words_behind_the_plan_are_the_targets(tmp_path):
    agent = Agent(tmp_path, "import sys; print(sys.argv[1:])")
    done = subprocess.run([*agent.command, "--", sys.executable, "target.py", "$(X)", "--"], capture_output=True)
    assert (done.returncode, done.stdout) == (0, b"['$(X)', '--']\n"), done.stderr


@both
def test_killed_by_a_signal(tmp_path, python):
    agent = Agent(tmp_path, "import os; os.kill(os.getpid(), 11)", python)
    assert agent.run().returncode == 128 + 11
    exited = agent.exited()
    assert (exited["exit_code"], exited["signal"], exited["cause"]) == (None, 11, "signal")


@both
def test_ten_megabytes_on_each_stream_are_complete_apart_and_in_order(tmp_path, python):
    script = """
import os
for number in range(160):
    os.write(1, b"%06d" % number + b"o" * 65530)
    os.write(2, b"%06d" % number + b"e" * 65530)
"""
    agent = Agent(tmp_path, script, python)
    done = agent.run()
    expected = {
        "stdout.log": b"".join(b"%06d" % number + b"o" * 65530 for number in range(160)),
        "stderr.log": b"".join(b"%06d" % number + b"e" * 65530 for number in range(160)),
    }
    assert {name: agent.log(name) for name in expected} == expected
    assert (done.stdout, done.stderr) == (expected["stdout.log"], expected["stderr.log"])
    counts = {"1": 0, "2": 0}
    for line in agent.log("output.idx").decode().splitlines():
        _, stream, count = line.split(" ")
        counts[stream] += int(count)
    assert counts == {"1": 160 * 65536, "2": 160 * 65536}


@both
def test_nobody_reading_the_agents_output_changes_nothing(tmp_path, python):
    agent = Agent(tmp_path, "import sys\nfor _ in range(5000): print('x' * 1000)", python)
    process = subprocess.Popen(agent.command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    process.stdout.close()
    assert process.wait(120) == 0 and len(agent.log("stdout.log")) == 5000 * 1001


@both
def test_secrets_reach_the_target_and_no_log(tmp_path, python):
    secret = "hf_0123456789"
    (tmp_path / "HF_TOKEN").write_text(secret)
    script = """
import os, sys, time
token = os.environ["HF_TOKEN"]
assert len(token) == 13
for part in (token[:4], token[4:9], token[9:]):
    os.write(1, part.encode()); os.write(2, part.encode()); time.sleep(0.1)
print(" and", token, flush=True)
"""
    agent = Agent(tmp_path, script, python, secrets=["HF_TOKEN"], secrets_dir=str(tmp_path))
    done = agent.run()
    assert done.returncode == 0 and done.stdout == b"[redacted] and [redacted]\n" and done.stderr == b"[redacted]"
    assert not (tmp_path / "HF_TOKEN").exists()
    for path in (*agent.run_dir.iterdir(), *agent.record.iterdir()):
        assert secret.encode() not in path.read_bytes(), path


@both
def test_a_handled_sigterm_ends_in_peace(tmp_path, python):
    script = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("saved", flush=True), sys.exit(0)))
print("ready", flush=True)
time.sleep(60)
"""
    agent = Agent(tmp_path, script, python)
    process = agent.start()
    agent.wait_for_output("ready")
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 0 and b"saved" in agent.log("stdout.log")
    [event] = agent.events("signal")
    assert (event["name"], event["origin"]) == ("SIGTERM", "engine")
    assert event["forwarded_to"] == [agent.events("target.started")[0]["pid"]]
    process.communicate()


IGNORES = """
import signal, time
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: print("no", flush=True))
print("ready", flush=True)
while True: time.sleep(1)
"""


#: Requests and their grace → the signals that follow, and the least delay. A second SIGTERM does not shorten the grace.
#: A SIGTERM follows a SIGINT when its grace ends, and a third request kills at once.
GRACES = {
    "sigterm-twice": (["SIGTERM"] * 2, 2.0, ["SIGTERM", "SIGTERM", "SIGKILL"], 1.9),
    "sigint": (["SIGINT"], 1.0, ["SIGINT", "SIGTERM", "SIGKILL"], 1.9),
    "sigint-thrice": (["SIGINT"] * 3, 900.0, None, 0.0),
}


@both
@pytest.mark.parametrize(("requests", "grace_s", "signals", "least_s"), GRACES.values(), ids=GRACES)
def test_a_target_that_ignores_requests_is_killed_at_last(tmp_path, python, requests, grace_s, signals, least_s):
    agent = Agent(tmp_path, IGNORES, python, grace_s=grace_s)
    process = agent.start()
    agent.wait_for_output("ready")
    started = time.monotonic()
    for number, name in enumerate(requests):
        process.send_signal(signal.Signals[name])
        agent.wait_for(lambda number=number: len(agent.events("signal")) > number)  # two at once would be one
    assert process.wait(120) == 128 + 9 and time.monotonic() - started > least_s
    assert signals in (None, [event["name"] for event in agent.events("signal")])
    process.communicate()


@both
def test_a_time_out(tmp_path, python):
    agent = Agent(tmp_path, "import time; time.sleep(60)", python, timeout_s=0.7)
    assert agent.run().returncode == 124
    assert agent.exited()["cause"] == "timeout" and agent.exited()["signal"] == signal.SIGTERM
    assert agent.events("signal")[0]["origin"] == "timeout"


@both
def test_orphans_and_daemons_end_with_the_target(tmp_path, python):
    script = """
import os, sys, time
read_end, write_end = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        os.write(write_end, b"x")
        time.sleep(60)
    os._exit(0)
os.read(read_end, 1)
"""
    agent = Agent(tmp_path, script, python)
    assert agent.run().returncode == 0
    assert gone(int(agent.log("stdout.log")))
    [event] = agent.events("signal")
    assert (event["origin"], event["forwarded_to"]) == ("end", [int(agent.log("stdout.log"))])


@both
def test_a_helper_that_ends_by_itself_was_not_left_behind(tmp_path, python):
    """Python's own resource_tracker ends a moment after the process whose spawn started it."""
    script = """
import multiprocessing
process = multiprocessing.get_context("spawn").Process(target=print, args=(1,))
process.start()
process.join()
"""
    agent = Agent(tmp_path, script, python)
    assert agent.run().returncode == 0
    assert not agent.events("signal")


@both
def test_events_of_the_target_and_samples(tmp_path, python):
    script = """
import json, os, time
with open(os.environ["SEATRIAL_EVENTS"], "a") as file:
    file.write(json.dumps({"step": 1, "loss": 0.5}) + "\\n")
time.sleep(0.8)
"""
    agent = Agent(tmp_path, script, python)
    assert agent.run().returncode == 0
    assert agent.events("step")[0]["loss"] == 0.5
    assert len(agent.events("sample")) >= 2 and agent.events("sample")[0]["processes"] >= 1


@both
def test_kill_9_of_the_agent_leaves_nothing(tmp_path, python):
    script = """
import os, subprocess, sys, time
children = [subprocess.Popen(["sleep", "61"]), subprocess.Popen(["sleep", "62"], start_new_session=True)]
print(os.getpid(), *[child.pid for child in children], flush=True)
time.sleep(60)
"""
    agent = Agent(tmp_path, script, python)
    process = agent.start()
    agent.wait_for_output("\n")
    pids = [int(word) for word in agent.log("stdout.log").split()]
    process.kill()
    process.communicate()
    agent.wait_for(lambda: all(gone(pid) for pid in pids))
    agent.wait_for(lambda: not isolation.find_run(agent.plan["run_id"]))


def test_kill_9_of_the_target_is_reported(tmp_path):
    agent = Agent(tmp_path, "import os, time; print('ready', flush=True); time.sleep(60)")
    process = agent.start()
    agent.wait_for_output("ready")
    os.kill(agent.events("target.started")[0]["pid"], signal.SIGKILL)
    assert process.wait(120) == 137 and agent.exited()["signal"] == 9
    process.communicate()


def test_a_program_that_is_not_there(tmp_path):
    agent = Agent(tmp_path, "", argv=["/no/such/python", "target.py"])
    done = agent.run()
    assert done.returncode == 127 and b"/no/such/python cannot be run: No such file or directory" in done.stderr
    assert agent.exited()["exit_code"] == 127


def test_a_shell_entrypoint_does_not_swallow_sigterm(tmp_path):
    script = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), print("saved", flush=True), sys.exit(0)))
print("ready", flush=True)
time.sleep(60)
"""
    agent = Agent(tmp_path, script, argv=["/bin/sh", "-c", f"{sys.executable} target.py; echo behind"])
    process = agent.start()
    agent.wait_for_output("ready")
    process.terminate()
    process.communicate(timeout=300)
    assert agent.log("stdout.log") == b"ready\nsaved\n"


FORGES = """
import json, os, time
with open(os.environ["SEATRIAL_EVENTS"], "a") as file:
    for line in (
        {"type": "gpu.context", "source": "agent", "uuid": "GPU-0", "pid": 1, "evidence": "nvml-process"},
        {"type": "target.exited", "source": "agent", "exit_code": 0, "cause": "exited"},
        {"step": 1, "_seq": 1, "_chain": "0" * 32},
    ):
        file.write(json.dumps(line) + "\\n")
raise SystemExit(7)
"""


@both
def test_reports_are_steps_and_forgeries_are_reported(tmp_path, python):
    agent = Agent(tmp_path, FORGES, python)
    assert agent.run().returncode == 7
    assert agent.exited()["exit_code"] == 7 and agent.events("gpu.context") == []
    assert [event["claims"] for event in agent.events("report.refused")] == [{"gpu.context": 1}, {"target.exited": 1}]
    [step] = agent.events("step")
    assert step["source"] == "target" and step["step"] == 1
    chain = events.follow_chain(str(agent.record / "events.jsonl"))
    assert chain.broken_at is None
    numbers = [event["_seq"] for event in events.read(str(agent.record / "events.jsonl"))[0]]
    assert numbers == list(range(1, chain.lines + 1))
    assert agent.events("agent.started")[0]["alterable"] == "agent and target are processes of one user"


class Framed(Agent):
    """Start the agent as in a container: frames on stdout, no file, isolated from its target."""

    def __init__(self, folder, script, python=sys.executable, **plan):
        super().__init__(folder, script, python, evidence_dir=None, **plan)

    def run(self, **options):
        """Parse the log as the host does for a container."""
        done = super().run(**options)
        self.parse(done.stdout)
        return done

    def parse(self, log):
        """Write the target's output and the evidence that are in a container's log."""
        sink, decoder = Sink(self.record), frames.FrameDecoder()
        for line in log.splitlines(keepends=True):
            sink.take(decoder, line)
        sink.close()
        numbers = [event["_seq"] for event in events.read(str(self.record / "events.jsonl"))[0]]
        assert numbers == list(range(1, len(numbers) + 1))


@both
def test_in_a_container_all_goes_through_one_stream(tmp_path, python):
    script = """
import os
for number in range(200):
    os.write(1, b"%03d" % number + b"o" * 20_000 + b"\\n")
    os.write(2, b"%03d" % number + b"e" * 20_000 + b"\\n")
os.write(1, b"\\x1e{\\"type\\":\\"gpu.context\\",\\"source\\":\\"agent\\"}\\n\\x02" + b"9 1 {}\\nno line end")
open(os.environ["SEATRIAL_EVENTS"], "a").write('{"loss": 0.5}')
"""
    agent = Framed(tmp_path, script, python)
    done = agent.run()
    assert done.returncode == 0 and done.stderr == b""
    expected = b"".join(b"%03d" % number + b"o" * 20_000 + b"\n" for number in range(200))
    forged = b'\x1e{"type":"gpu.context","source":"agent"}\n\x029 1 {}\nno line end'
    assert agent.log("stdout.log") == expected + forged
    assert agent.log("stderr.log") == expected.replace(b"o", b"e")
    assert agent.events("gpu.context") == [] and [step["loss"] for step in agent.events("step")] == [0.5]
    assert sorted(path.name for path in agent.run_dir.iterdir()) == ["events.jsonl"]
    assert agent.events("agent.finished")[0]["exit_code"] == 0


def test_in_a_container_a_reader_that_stalls_loses_output_and_no_evidence(tmp_path):
    """``docker logs`` is not read, or its disk is full for a while."""
    agent = Framed(tmp_path, "import sys\nfor _ in range(5000): print('x' * 1000)")
    process = subprocess.Popen(agent.command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    log = b""
    while b"xxx" not in log:  # the target has begun to print
        log += os.read(process.stdout.fileno(), 4096)
    children = [child.pid for child in processes.descendants(process.pid)]
    [target] = [pid for pid in children if b"target.py" in processes.command_line(pid)]
    until(lambda: gone(target), "the target's end, which needs an agent that drops its output")
    log += process.communicate(timeout=300)[0]
    assert process.returncode == 0
    agent.parse(log)
    assert agent.events("agent.finished")
    [note] = agent.events("note")
    assert "output is missing from the logs" in note["message"]
    assert all(line == b"x" * 1000 for line in agent.log("stdout.log").splitlines())


GPU = {"index": 0, "uuid": "GPU-de421f49-0f0c-0000-0000-000000000000", "name": "NVIDIA H200", "memory_bytes": 1}


@both
@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="this machine has a GPU")  # noqa: PTH110
def test_no_gpu_here_is_exit_3_with_a_finding_and_no_target(tmp_path, python):
    agent = Agent(tmp_path, "print('never')", python, gpu_mode="required", check="driver", gpus=[GPU])
    done = agent.run()
    assert done.returncode == 3 and b"No GPU device node" in done.stderr and done.stdout == b""
    assert agent.events("gpu.check")[0]["ok"] is False and agent.events("finding")[0]["id"] == "device-nodes-missing"
    assert agent.exited()["cause"] == "gpu-contract" and agent.events("target.started") == []


def test_interactive_inherits_our_streams(tmp_path):
    agent = Agent(tmp_path, "print(input())", interactive=True)
    done = agent.run(input=b"typed\n")
    assert done.returncode == 0 and done.stdout == b"typed\n" and agent.log("stdout.log") == b""


def test_a_shell_on_a_terminal_has_job_control_and_ctrl_c_ends_only_its_command(tmp_path):
    agent = Agent(tmp_path, "", argv=["bash", "--norc", "-i"], interactive=True)
    terminal = Terminal(agent.command)
    # What is awaited is printed by the command and not by the terminal's echo of it: a Ctrl-C typed before bash has
    # read the line would drop it.
    for typed, awaited in ((b"echo $((6*7))\n", b"42"), (b"echo $((7*7)); sleep 60\n", b"49"), (b"\x03", b"^C")):
        terminal.type(typed)
        terminal.expect(awaited)
        time.sleep(0.5)  # until the sleep runs
    terminal.type(b"exit 5\n")
    assert terminal.end() == 5 and b"no job control" not in terminal.shown


@pytest.mark.torch
def test_dataloader_workers_do_not_die_of_a_sigterm_that_the_script_handles(tmp_path):
    torch = pytest.importorskip("torch")
    script = """
import signal, sys, time
import torch
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
class Data(torch.utils.data.Dataset):
    def __len__(self): return 100000
    def __getitem__(self, index): time.sleep(0.002); return index
for step, batch in enumerate(torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=2)):
    if step == 3: print("ready", flush=True)
    if stop:
        time.sleep(0.5)
        print("saved", flush=True)
        sys.exit(0)
"""
    agent = Agent(tmp_path, script)
    process = agent.start()
    agent.wait_for(lambda: b"ready" in agent.log("stdout.log"))
    process.terminate()
    process.communicate(timeout=300)
    assert process.returncode == 0, (torch.__version__, agent.log("stderr.log"))
    assert b"saved" in agent.log("stdout.log")


@pytest.mark.torch
def test_torchrun_starts_every_rank_and_each_gets_the_signal(tmp_path):
    pytest.importorskip("torch")
    script = """
import os, signal, sys, time
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
signal.signal(signal.SIGUSR1, lambda *_: (print("rank " + os.environ["RANK"], flush=True), os._exit(0)))
print("ready" + os.environ["RANK"], flush=True)
time.sleep(60)
"""
    agent = Agent(tmp_path, script, launcher="torchrun", processes=2)
    process = agent.start()
    agent.wait_for(lambda: all(b"ready%d" % rank in agent.log("stdout.log") for rank in (0, 1)))
    process.send_signal(signal.SIGUSR1)
    process.communicate(timeout=300)
    assert process.returncode == 0, agent.log("stderr.log")
    assert b"rank 0" in agent.log("stdout.log") and b"rank 1" in agent.log("stdout.log")


def test_the_agent_is_light(tmp_path):
    """Under 1 % of a core and 30 MB (0.3 % and 17 MB measured); twice the time, and more on a busy machine."""
    agent = Agent(tmp_path, "import time; time.sleep(60)", sample_interval_s=1.0)
    process = agent.start()
    agent.wait_for(lambda: len(agent.events("sample")) >= 2)  # by then all is imported
    before = processes.read(process.pid)
    time.sleep(4)
    after = processes.read(process.pid)
    process.terminate()
    process.communicate(timeout=300)
    assert after.cpu_seconds - before.cpu_seconds <= 4 * 0.02 * slowness()
    assert after.rss_bytes < 30_000_000


def test_a_record_that_cannot_be_written_is_one_sentence(tmp_path):
    agent = Agent(tmp_path, "print('never')", evidence_dir=str(tmp_path / "none"))
    done = agent.run()
    assert done.returncode == 125 and done.stdout == b""
    printed = f"seatrial: the run cannot start: {tmp_path}/none/events.jsonl: No such file or directory\n"
    assert done.stderr.decode() == printed


def test_an_error_of_no_file_names_none(tmp_path, monkeypatch, capsys):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "argv", ["agent", str(Agent(tmp_path, "print('never')").record / "agent.json")])
    monkeypatch.setattr(agent_main, "Journal", full)
    assert agent_main.main() == 125
    assert capsys.readouterr().err == "seatrial: the run cannot start: No space left on device\n"


def test_a_secret_that_is_not_there_is_one_sentence(tmp_path):
    agent = Agent(tmp_path, "print('never')", secrets=["HF_TOKEN"], secrets_dir=str(tmp_path))
    done = agent.run()
    assert done.returncode == 125 and b"HF_TOKEN: No such file or directory" in done.stderr and done.stdout == b""
    assert "HF_TOKEN: No such file or directory" in agent.events("note")[-1]["message"]  # the receipt has no stderr
