"""Attacks by a script, from inside its container: on the agent, its evidence, the engine, the cluster and the host.

One container for each engine, and one pod, tries all of ATTACKS; each is a test of its own.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

import pytest

from attacks_harness import READY, Canaries, finding_ids, intact, receipt, record
from cli_project import Project
from seatrial.job.cluster import POD_CONFIG

pytestmark = pytest.mark.both_engines

#: A pod gets no mount for the command line's own Python, and its receipt shows it.
IMAGES_PYTHON = "the agent ran on the Python of the image, which its packages can replace"

#: Name → Python that carries it out. It must raise, unless the name is in HARMLESS.
ATTACKS = {
    "open the agent's stdout": "open('/proc/1/fd/1', 'wb')",
    "open the agent's stderr": "open('/proc/1/fd/2', 'wb')",
    "read the agent's memory": "open('/proc/1/mem', 'rb').read(1)",
    "write the agent's memory": "open('/proc/1/mem', 'r+b')",
    "read the agent's environment": "open('/proc/1/environ', 'rb').read()",
    "read the agent's maps": "open('/proc/1/maps', 'rb').read(1) or 1 / 0",
    "enter the agent's root": "os.listdir('/proc/1/root')",
    "enter the agent's working directory": "os.listdir('/proc/1/cwd')",
    "read the agent's map_files": "os.listdir('/proc/1/map_files')",
    "trace the agent (attach)": "libc('ptrace', 16, 1, 0, 0)",
    "trace the agent (seize)": "libc('ptrace', 0x4206, 1, 0, 0)",
    "write by process_vm_writev": "libc('process_vm_writev', 1, iovec(), 1, iovec(), 1, 0)",
    "read by process_vm_readv": "libc('process_vm_readv', 1, iovec(), 1, iovec(), 1, 0)",
    "take the agent's descriptor (pidfd_getfd)": "libc('syscall', 438, libc('syscall', 434, 1, 0), 1, 0)",
    "replace the agent's archive": "open('{config}/agent.pyz', 'ab')",
    "replace the agent's archive by renaming": "os.rename('{config}/agent.pyz', '{config}/x')",
    "change the plan": "open('{config}/plan.json', 'r+b')",
    "swap the folder of a pod's files": "os.rename('{config}/..data', '{config}/..x')",
    "read a pod's token": "open('/var/run/secrets/kubernetes.io/serviceaccount/token').read()",
    "ask the cluster for its secrets": "api('/api/v1/secrets')",
    "ask the cluster for its own run": "api('/apis/batch/v1/namespaces/default/jobs')",
    "ask the node for its pods": "api('/pods', os.environ['KUBERNETES_SERVICE_HOST'], 10250)",
    "put a file where the host's runs are": "open('/workspace/.seatrial/runs/x', 'w')",
    "write into the mask": "open('/workspace/.seatrial/x', 'w')",
    "move the mask away": "os.rename('/workspace/.seatrial', '/workspace/y')",
    "unmount the mask": "libc('umount2', b'/workspace/.seatrial', 2)",
    "mount over it": "libc('mount', b'tmpfs', b'/workspace', b'tmpfs', 0, 0)",
    "see other runs": "os.listdir('/workspace/.seatrial') or 1 / 0",
    "find the state folder": "os.listdir('{state}')",
    "read the host's secret": "open('{victim}/.ssh/id_rsa').read()",
    "reach the engine's socket": "socket.socket(socket.AF_UNIX).connect('/var/run/docker.sock')",
    "make a device node": "os.mknod('/tmp/disk', 0o600 | 0x6000, os.makedev(254, 0))",
    "load a kernel module": "libc('syscall', 313, 0, b'', 0)",
    "become another user": "os.setuid(12345) if os.getuid() else libc('setuid', 12345)",
    "find the keys of the host's user": "libc('syscall', 250, 8, -4, -3, 0, 0)",
    "keep a key for another run": "libc('syscall', 248, b'user', b'seatrial-attack', b'x', 1, -4)",
    "make a user namespace": "libc('unshare', 0x10000000) or os.listdir('/proc/1/root')",
    "change the root file system": "open('/usr/lib/os-release', 'a')",
    "change the Python under the agent": "open(json.__file__, 'a')",
    "raise the agent's priority to die first": "open('/proc/1/oom_score_adj', 'w').write('1000') and 1 / 0",
    # What may be called, and must change nothing:
    "kill the agent": "os.kill(1, 9)",
    "stop the agent": "os.kill(1, 19)",
    "a storm of signals at the agent": "[os.kill(1, 10) for _ in range(500)]",
    "print a frame of evidence": "print('\\x1e' + FORGED, flush=True)",
    "print a frame to stderr": "print('\\x1e' + FORGED, file=sys.stderr, flush=True)",
    "print a frame in pieces": "[os.write(1, piece) for piece in (b'\\x1d', b'\\x1e', FORGED.encode(), b'\\n')]",
    "print a report frame": "print('\\x021 1.0 ' + FORGED, flush=True)",
    "print a frame across 8 KiB": "print('x' * 8191 + '\\n\\x1e' + FORGED, flush=True)",
    "print an endless line and a frame": "print('y' * 300000 + '\\r\\x1e' + FORGED, flush=True)",
    "report as the agent": "report(FORGED)",
    "report as the host": "report(FORGED.replace('agent', 'host'))",
    "report with an escaped type": "report(FORGED.replace('type', '\\\\u0074ype'))",
    "report the agent's end": "report(json.dumps({'type': 'agent.finished', 'exit_code': 0, 'contexts': ['GPU-1']}))",
    "report a sequence number": "report(json.dumps({'loss': 1, '_seq': 1, '_chain': 'x'}))",
    "report a line of 10 MB": "report('{\"loss\": \"' + 'z' * 10_000_000 + '\"}')",
    "report deep nesting": "report('[' * 100_000)",
    "leave a daemon behind": "daemon()",
}
HARMLESS = list(ATTACKS)[list(ATTACKS).index("kill the agent") :]

SCRIPT = """
import ctypes, json, os, signal, socket, ssl, sys, time, urllib.request
signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # the agent passes it on
FORGED = json.dumps({{"t": time.time(), "type": "gpu.context", "source": "agent", "uuid": "GPU-forged", "pid": 1}})
C = ctypes.CDLL(None, use_errno=True)
def libc(name, *arguments):
    result = getattr(C, name)(*arguments)
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def iovec():
    buffer = ctypes.create_string_buffer(8)
    return (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 8)
def report(line):
    with open(os.environ["SEATRIAL_EVENTS"], "a") as events:
        print(line, file=events)
def api(path, host=None, port=443):
    host = host or os.environ["KUBERNETES_SERVICE_HOST"]
    blind = ssl._create_unverified_context()
    return urllib.request.urlopen(f"https://{{host}}:{{port}}{{path}}", timeout=3, context=blind).read()
def daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
results = {{}}
for name, code in json.loads({attacks!r}).items():
    try:
        exec(code)
        results[name] = "done"
    except BaseException as error:
        results[name] = type(error).__name__ + ": " + str(error)
time.sleep(1.5)
print()
print("RESULTS " + json.dumps(results))
print("still here")
sys.exit(7)
"""


@pytest.fixture(
    scope="session",  # a module's fixture may be made twice under xdist
    params=[
        pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.xdist_group("attacks-docker")]),
        pytest.param("podman", marks=[pytest.mark.podman, pytest.mark.xdist_group("attacks-podman")]),
        pytest.param("k8s", marks=pytest.mark.kubernetes),
    ],
)
def tried(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Project, dict]]:
    """The project after the run, and name → what came of each attack."""
    environ, engine = dict(request.getfixturevalue("environ")), ()
    if request.param == "k8s":
        environ = dict(request.getfixturevalue("cluster_environ"))
    else:
        engine = request.getfixturevalue(f"{request.param}_backend").call
        environ[f"SEATRIAL_{request.param.upper()}"] = shlex.join(engine)
    folder = tmp_path_factory.mktemp("attacks")
    canaries = Canaries.plant(folder)
    before = canaries.digest()
    project = Project(folder / "project", request.param, environ, engine)
    project.write("seatrial.toml", READY)
    words = {
        "{victim}": str(canaries.home),
        "{state}": environ["SEATRIAL_STATE"],
        "{config}": POD_CONFIG if request.param == "k8s" else "/seatrial",
    }
    attacks = json.dumps(ATTACKS)
    for word, intended in words.items():
        attacks = attacks.replace(word, intended)
    project.write("train.py", SCRIPT.format(attacks=attacks))
    project.run("train.py", "--gpus", "none", exit_code=1)
    assert canaries.digest() == before
    [results] = [line for line in project.output().splitlines() if line.startswith("RESULTS ")]
    yield project, json.loads(results[len("RESULTS ") :])
    project.clean()


@pytest.mark.parametrize("name", list(ATTACKS))
def test_it_gets_nowhere(tried: tuple[Project, dict], name: str) -> None:
    came_of_it = tried[1][name]
    assert (came_of_it == "done") == (name in HARMLESS), came_of_it


def test_the_receipt_reports_the_truth_after_all_of_them(tried: tuple[Project, dict]) -> None:
    project, _ = tried
    reported = receipt(project)
    alterable = IMAGES_PYTHON if project.backend == "k8s" else None
    assert reported["exit_code"] == 1 and reported["exit_cause"]["target_exit_code"] == 7
    assert reported["seal"]["alterable"] == alterable and reported["seal"]["missing"] == 0
    assert reported["seal"]["refused"]["gpu.context"] == 3 and reported["seal"]["refused"]["agent.finished"] == 1
    assert "forged-evidence" in finding_ids(project)
    intact(project)


def test_no_line_of_the_evidence_is_the_scripts(tried: tuple[Project, dict]) -> None:
    lines = (record(tried[0]).folder / "events.jsonl").read_text().splitlines()
    parsed = [json.loads(line) for line in lines]
    assert all(event["source"] != "target" or event["type"] == "step" for event in parsed)
    assert not any(event.get("uuid") == "GPU-forged" for event in parsed)
    assert sum(event["type"] == "agent.started" for event in parsed) == 1


def test_what_it_printed_is_output_and_nothing_else(tried: tuple[Project, dict]) -> None:
    printed = (record(tried[0]).folder / "stdout.log").read_bytes()
    assert b"\x1e{" in printed and printed.endswith(b"still here\n")


def test_nothing_is_left_running(tried: tuple[Project, dict]) -> None:
    assert tried[0].containers() == [] and tried[0].alive() == []
