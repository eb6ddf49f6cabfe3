"""explain: every string that programs print leads to its entry; logs of any size and encoding."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator

import pytest

from seatrial.diagnosis.diagnosis import MEANING
from seatrial.doctor.explain import explain_stream, explain_text
from seatrial.findings.catalogue import entries
from symptoms import shown

#: As printed, with what differs from case to case filled in → the entry.
PRINTED = {
    "│ Missing argument 'ckpt'.                    │": "arguments-missing",
    "│ No such option: --epoch (Possible options: --epochs) │": "arguments-unknown",
    "│ No such command 'fitt'. Did you mean 'fit'? │": "command-missing",
    "RuntimeError: unable to open shared memory object </torch_7_1_0> in read-write mode: No space left on dev": (
        "shared-memory-too-small"
    ),
    "RuntimeError: unable to open shared memory object </torch_7_1_0> in read-write mode: Too many open fi": (
        "too-many-open-files"
    ),
    "RuntimeError: CUDA error: misaligned addr": "illegal-memory-access",
    "exec /usr/local/bin/python: exec format err": "other-processor",
    "UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet init": (
        "fabric-manager-not-ready"
    ),
    "[2/8] RuntimeError: CUDA error: invalid device ord": "invalid-device-ordinal",
    "ValueError: Free memory on device (3.2/79.1 GiB) on startup is less than desired GPU memory utilization (0.9, 7": (
        "gpu-memory-held"
    ),
    "python3[4411]: segfault at 0 ip 00007f1e2c3d sp 00007ffd error 4 in libtorch_cuda.so": "process-crashed",
    "retrieving ncclUniqueId by key '0', but store->get('0') got error: Connection reset by pe": "peer-gone",
    "NVRM: GPU 0000:01:00.0 is already bound to nouveau.": "nouveau-bound",
    "CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=all": "cdi-unresolvable",
    'failed to stat CDI host device "/dev/nvidia-modeset": no such file or directory': "cdi-spec-stale",
    "NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch installation.": (
        "no-kernel-image"
    ),
    "Loaded runtime CuDNN library: 8.0.5 but source was compiled with: 8.1.0.": "cudnn-versions",
    "0/4 nodes are available: 4 Insufficient nvidia.com/gpu.": "k8s-insufficient-gpus",
    "[4] ib_plugin.c:1673 NCCL WARN NET/IB: Got completion from peer 10.0.1.23<34696> with status=12 opcode=0": (
        "ib-not-reached"
    ),
    "gpu46:78367:78492 [0] transport/nvls.cc:244 NCCL WARN Cuda failure 1 'invalid argument'": "nvls-failed",
    "NVRM: Xid (PCI:0000:9b:00): 94, pid=1234, name=python3, Contained ECC error": "xid-of-the-hardware",
    "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy": "slurm-refused",
    "slurmstepd: error: execve(): torchrun: No such file or directory": "slurm-no-program",
    "[c6a464409f2b:40139] Read -1, expected 131072, errno = 1": "mpi-copy-forbidden",
    "TypeError: __init__() got an unexpected keyword argument 'strategy'": "argument-of-another-release",
    "RuntimeError: Triton Error [CUDA]: invalid argument": "triton-error",
    "ImportError: cannot import name 'flash_attn_func' from 'flash_attn' (/x/__init__.py)": "name-of-another-release",
    "ImportError: cannot import name 'np_utils' from 'keras.utils' (/x/__init__.py)": "older-keras",
    "FileNotFoundError: [Errno 2] No such file or directory: 'out/checkpoint-500/trainer_state.json'": (
        "checkpoint-incomplete"
    ),
    "HTTPConnectionPool(host='a', port=55): Max retries exceeded with url: /x (Caused by NameResolutionError(\"<urllib3"
    ".connection.HTTPConnection object at 0x7f67>: Failed to resolve 'a' ([Errno -2] Name or service not known)\"))": (
        "name-not-known"
    ),
}


@pytest.mark.parametrize("text", PRINTED, ids=lambda text: text[:40])
def test_what_is_printed_leads_to_its_entry(text: str) -> None:
    assert [finding.id for finding in explain_text(text)] == [PRINTED[text]]


@pytest.mark.parametrize("entry", [entry for entry in entries() if entry.symptoms], ids=lambda entry: entry.id)
def test_every_symptom_leads_to_its_own_entry(entry: object) -> None:
    for symptom in entry.symptoms:  # type: ignore[attr-defined]
        text = shown(symptom)
        assert [finding.id for finding in explain_text(text)] == [entry.id]  # type: ignore[attr-defined]


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.id)
def test_an_id_is_explained(entry: object) -> None:
    [finding] = explain_text(f" {entry.id}\n")  # type: ignore[attr-defined]
    assert finding.cause and finding.fix


def test_a_line_that_a_terminal_broke_is_still_known() -> None:
    text = "RuntimeError: CUDA error: no kernel image is\n  available for execution on the device"
    assert "no-kernel-image" in [finding.id for finding in explain_text(text)]


OOM = "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.25 GiB."
TIMEOUT = "[rank0]:[E ProcessGroupNCCL.cpp:475] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=91"
FRAMES = "\n".join(
    f'  File "/opt/x/y{n}.py", line {n}, in call\n    return self._call(*args, **kwargs)' for n in range(120)
)


@pytest.mark.parametrize(
    ("text", "ids"),
    {
        "far from the end": (f"{OOM}\n{FRAMES}", ["cuda-out-of-memory"]),
        "the other ranks miss it": (f"{TIMEOUT}\n{OOM}", ["cuda-out-of-memory"]),
        "no rank says why": (TIMEOUT, ["nccl-timeout"]),
        "a launcher's last words": (
            "ModuleNotFoundError: No module named 'apex'\n"
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
            ["python-module-missing"],
        ),
        "a launcher's only words": (
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n  exitcode  : 1 (pid: 7)",
            ["rank-failed"],
        ),
        "a launcher tells the signal": (
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
            "  traceback : Signal 9 (SIGKILL) received by PID 2630",
            ["process-killed"],
        ),
        "another language": ("OSError: [Errno 28] 设备上没有空间: '/data/out/ckpt.pt'", ["disk-full"]),
        "below a progress bar": ("  3%|\r  4%|\r\nCUDA out of memory\r", ["cuda-out-of-memory"]),
        "MPI goes by ssh, not by git": (
            "Host key verification failed.\nORTE was unable to reliably start one or more daemons.",
            ["mpi-node-not-reached"],
        ),
        "Triton's ptxas, not XLA's": (
            "PTXASError: PTXAS error\nptxas fatal   : Value 'sm_120a' is not defined for option 'gpu-name'",
            ["triton-ptxas"],
        ),
        "what does no harm comes last": (
            "NCCL WARN Failed to open libibverbs.so[.1]\nNCCL WARN Connect to 172.18.0.1<49273> failed : refused",
            ["nccl-no-connection", "ib-library-missing"],
        ),
        "what the pull broke at, in a line of its own": (
            'Failed to pull image "r.io/a/b:1": rpc error:\n failed size validation: 62 != 17: failed precondition',
            ["image-layer-cut"],
        ),
        "a pointer of Git LFS, which is not to be loaded with less care": (
            "_pickle.UnpicklingError: Weights only load failed. In PyTorch 2.6, we changed the default value of the\n"
            "WeightsUnpickler error: \n\nUnsupported operand 118\n\nCheck the documentation of torch.load",
            ["lfs-pointer"],
        ),
        "what NCCL refused, by its name": (
            "[1,0]<stderr>:ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
            "[1,0]<stderr>:Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000",
            ["ranks-share-a-gpu"],
        ),
        "cut off behind a value": (
            "[1] ImportError: libcudart.so.11.0: cannot open shared obj",
            ["cuda-library-missing"],
        ),
        "cut off soon behind a value": ("No such file or directory: '/home/x/trai", []),
        "a number is not cut": ("The command '/bin/sh -c make' returned a non-zero code: 1", []),
        "broken at 80 columns, in the middle": (
            f"{FRAMES[:70]}\n{'x' * 70}CUDA out o\nf memory. Tried to\n{FRAMES[:70]}",
            ["cuda-out-of-memory"],
        ),
    }.values(),
)
def test_a_log_as_it_is_pasted(text: str, ids: list[str]) -> None:
    """From a file, and with what PowerShell makes of it."""
    assert [finding.id for finding in explain_stream(io.BytesIO(text.encode()))] == ids
    assert [finding.id for finding in explain_stream(io.BytesIO(text.replace("\n", "\r\n").encode()))] == ids
    assert [finding.id for finding in explain_stream(io.BytesIO(text.encode("utf-16")))] == ids


def test_a_line_behind_a_progress_bar_is_the_evidence() -> None:
    [finding] = explain_stream(io.BytesIO(b"epoch 1\n" + b" 3%|#\r" * 500 + b"CUDA out of memory\n"))
    assert finding.evidence == ["line 2: CUDA out of memory"]


@pytest.mark.parametrize(
    "text",
    [
        "ImportError: libfoo.so.11: cannot open shared object file: No such file or directory",
        "cp: cannot stat 'x': No such file or directory\n",
        "bash: ./train.sh: Permission denied",
        "FileNotFoundError: [Errno 2] No such file or directory: '/da",
        "docker: Error response from daemon: ",
    ],
)
def test_what_many_symptoms_begin_with_is_none_of_them(text: str) -> None:
    assert explain_text(text) == []


def test_a_part_of_a_message_in_a_file() -> None:
    [finding] = explain_stream(io.BytesIO(b"no kernel image is avail"))
    assert finding.id == "no-kernel-image"


@pytest.mark.parametrize(
    "line",
    [
        "best val_loss: inf",
        "CUDA error: 0",
        "CUDA error: no error",
        "Cannot reach https://huggingface.co/, falling back to the cache",
        "OutOfResources: out of resource: shared memory, Required: 147456. Ignoring this choice.",
    ],
)
def test_a_healthy_line_is_no_part_of_a_failure_either(line: str) -> None:
    assert explain_text(line) == []
    assert explain_text(f"epoch 1\n{line}\nepoch 2 loss 0.3\n") == []


def test_nothing_is_made_up() -> None:
    assert explain_text("Traceback (most recent call last):\nKeyError: 'x'") == []


class Endless(io.RawIOBase):
    """A log that is made while it is read: ``size`` bytes of one line, and a failure behind it."""

    def __init__(self, size: int, filler: bytes) -> None:
        self.parts = self._parts(size, filler)

    def _parts(self, size: int, filler: bytes) -> Iterator[bytes]:
        for _ in range(size // (1 << 20)):
            yield filler * ((1 << 20) // len(filler))
        yield b"\nRuntimeError: CUDA out of memory. Tried \xff\xfe to allocate\n"

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        self.kept = getattr(self, "kept", b"") or next(self.parts, b"")
        count = min(len(view), len(self.kept))
        view[:count], self.kept = self.kept[:count], self.kept[count:]
        return count


@pytest.mark.parametrize("filler", [b"x" * 64, b"\xff\xfe\x00" * 21 + b"\n"], ids=["one line", "no UTF-8"])
def test_memory_stays_bounded(filler: bytes) -> None:
    stream = io.BufferedReader(Endless(6 << 20, filler), 1 << 16)
    explain_stream(io.BytesIO((filler.rstrip(b"\n") + b"\n") * 25_000))  # what is compiled once does not count
    tracemalloc.start()
    found = explain_stream(stream)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [finding.id for finding in found] == ["cuda-out-of-memory"]
    assert peak < 4 << 20  # the log itself is made of 1 MiB pieces


def run(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", "seatrial", "explain", *arguments], input=stdin, capture_output=True)


def test_the_command_reads_stdin_and_prints_what_it_knows() -> None:
    done = run("--json", stdin=b"\xff\xfeepoch 1\nRuntimeError: No CUDA GPUs are available\n")
    [finding] = json.loads(done.stdout)
    assert done.returncode == 0 and finding["id"] == "no-cuda-device"
    assert finding["evidence"] == ["line 2: RuntimeError: No CUDA GPUs are available"]
    done = run(stdin=b"all is well\n")
    assert done.returncode == 1 and b"seatrial doctor" in done.stdout
    done = run("CUDA", "out of memory")
    assert done.returncode == 0 and b"id    cuda-out-of-memory" in done.stdout


@pytest.mark.parametrize("cause", MEANING)
def test_what_bounds_a_run_is_explained(cause: str) -> None:
    (found,) = explain_text(cause)
    assert found.id == cause and MEANING[cause] in found.message  # type: ignore[index]
    assert "runs show" in (found.fix or "")
