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
    "2026-11-23T10:00:00.000Z stderr F torch.OutOfMemoryError: CUDA out of mem": "cuda-out-of-memory",
    "RuntimeError: unable to open shared memory object </torch_7_1_0> in read-write mode: No space left on dev": (
        "shared-memory-too-small"
    ),
    "RuntimeError: unable to open shared memory object </torch_7_1_0> in read-write mode: Too many open fi": (
        "too-many-open-files"
    ),
    "RuntimeError: CUDA error: misaligned addr": "illegal-memory-access",
    'Normal   BackOff    10s (x2 over 40s)  kubelet  Back-off pulling image "ghcr.io/me/x:latest"': "k8s-image-pull",
    "exec /usr/local/bin/python: exec format err": "other-processor",
    "UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet init": (
        "fabric-manager-not-ready"
    ),
    "t-0:88:301 [2] include/shmutils.h:74 NCCL WARN Error: failed to extend /dev/shm/nccl-Fh3zT1 to 9637892 bytes": (
        "nccl-shared-memory"
    ),
    "RuntimeError: cuDNN version incompatibility: PyTorch was compiled  against (9, 1, 0) but found (8, 9, 7).": (
        "cudnn-versions"
    ),
    "[2/8] RuntimeError: CUDA error: invalid device ord": "invalid-device-ordinal",
    "[rank0]: Cuda failure 2 'out of memory'": "cuda-out-of-memory",
    "x-1 | ggml_backend_cuda_buffer_type_alloc_buffer: on device 0: cudaMalloc failed: out of memory": (
        "cuda-out-of-memory"
    ),
    "ValueError: Free memory on device (3.2/79.1 GiB) on startup is less than desired GPU memory utilization (0.9, 7": (
        "gpu-memory-held"
    ),
    "python3[4411]: segfault at 0 ip 00007f1e2c3d sp 00007ffd error 4 in libtorch_cuda.so": "process-crashed",
    "ImportError: libtorch_cuda.so: cannot open shared object file: No such fi": "torch-library-missing",
    "MissingCUDAException: CUDA_HOME does not exist, unable to compile CUDA op(s)": "cuda-toolkit-missing",
    "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your": (
        "bf16-not-on-this-gpu"
    ),
    "retrieving ncclUniqueId by key '0', but store->get('0') got error: Connection reset by pe": "peer-gone",
    "[12.3] NVRM: The NVIDIA probe routine was not called for 1 device(s).": "gpu-held-by-another-driver",
    'unable to start container process: exec: "nvidia-smi": executable file not found in $PATH': "nvidia-smi-not-there",
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.": "driver-not-loaded",
    "nvidia-container-cli: initialization error: nvml error: driver not loaded": "driver-not-loaded",
    "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service": "driver-not-signed",
    "modprobe: ERROR: could not insert 'nvidia': Required key not available": "driver-not-signed",
    "NVRM: GPU 0000:01:00.0 is already bound to nouveau.": "nouveau-bound",
    "No devices were found": "adapter-init-failed",
    "NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x22:0x56:894)": "adapter-init-failed",
    "Failed to initialize NVML: Driver/library version mismatch": "driver-library-mismatch",
    "nvidia-container-cli: nvml error: driver/library version mismatch": "driver-library-mismatch",
    "NVRM: API mismatch: the client has the version 590.48, but this kernel module has": "driver-library-mismatch",
    "Unable to determine the device handle for GPU 0000:17:00.0: GPU is lost.": "gpu-lost",
    "NVRM: Xid (PCI:0000:17:00): 79, pid=1, GPU has fallen off the bus.": "gpu-lost",
    "Error 802: system not yet initialized": "fabric-manager-not-ready",
    "UserWarning: CUDA initialization: CUDA unknown error - this may be due to an incorrectly set up environment, e.g."
    " changing env variable CUDA_VISIBLE_DEVICES after program start.": "cuda-unknown-error",
    "failed call to cuInit: UNKNOWN ERROR (303)": "cuda-unknown-error",
    "cuInit(0) failed -> CUDA_ERROR_UNKNOWN": "cuda-unknown-error",
    'Error response from daemon: could not select device driver "" with capabilities: [[gpu]]': "toolkit-missing",
    'could not select device driver "nvidia" with capabilities: [[gpu]]': "toolkit-missing",
    "Error response from daemon: unknown or invalid runtime name: nvidia.": "runtime-unknown",
    "docker: Error response from daemon: Unknown runtime specified nvidia.": "runtime-unknown",
    "failed to discover GPU vendor from CDI: no known GPU vendor found": "cdi-no-vendor",
    "AMD CDI spec not found": "cdi-no-vendor",
    "CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=all": "cdi-unresolvable",
    'could not select device driver "cdi" with capabilities: []': "cdi-off",
    'failed to stat CDI host device "/dev/nvidia-modeset": no such file or directory': "cdi-spec-stale",
    "Failed to initialize NVML: Unknown Error": "device-access-lost",
    "nvidia-container-cli: mount error: failed to add device rules: unable to find any existing device filters attached"
    " to the cgroup: bpf_prog_query(BPF_CGROUP_DEVICE) failed: operation not permitted": "no-cgroups-rootless",
    "Failed to initialize NVML: Insufficient Permissions": "device-permission",
    "nvidia-container-cli: initialization error: load library failed: libnvidia-ml.so.1: cannot open shared object"
    " file: no such file or directory": "nvml-library-missing",
    "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please update your driver to a newer"
    " version, or use an earlier cuda container": "image-requires-newer-driver",
    "nvidia-container-cli: mount error: file creation failed: /var/lib/docker/overlay2/x/usr/lib/x86_64-linux-gnu"
    "/libnvidia-ml.so.1: file exists": "driver-libraries-in-image",
    "nvidia-container-cli: mount error: stat failed: /usr/lib/wsl/lib/libcuda.so.1: no such file": "wsl-libcuda",
    "E: Conflicting values set for option Signed-By regarding source https://nvidia.github.io/libnvidia-container/stable"
    "/deb/amd64/ /: /usr/share/keyrings/x.gpg != ": "toolkit-apt-sources",
    "The following signatures couldn't be verified: NO_PUBKEY DDCAE044F796ECB0": "toolkit-apt-sources",
    "RuntimeError: No CUDA GPUs are available": "no-cuda-device",
    "CUDA error: no CUDA-capable device is detected": "no-cuda-device",
    "RuntimeError: Found no NVIDIA driver on your system. Please check": "no-cuda-device",
    "AssertionError: Torch not compiled with CUDA enabled": "torch-cpu-only",
    "The NVIDIA driver on your system is too old (found version 12020). Please update": "driver-too-old",
    "RuntimeError: CUDA error: no kernel image is available for execution on the device": "no-kernel-image",
    "NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch installation.": (
        "no-kernel-image"
    ),
    "Error 804: forward compatibility was attempted on non supported HW": "forward-compatibility",
    "cuDNN error: CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH": "cudnn-versions",
    "Could not load library libcudnn_cnn_infer.so.8. Error: libcuda.so: cannot open": "cudnn-versions",
    "Loaded runtime CuDNN library: 8.0.5 but source was compiled with: 8.1.0.": "cudnn-versions",
    "Could not find cuda drivers on your machine, GPU will not be used.": "tensorflow-no-gpu",
    "Cannot dlopen some GPU libraries. Please make sure the missing libraries": "tensorflow-without-cuda",
    "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).": (
        "shared-memory-too-small"
    ),
    "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error.": "shared-memory-too-small",
    "NCCL WARN Call to posix_fallocate failed : No space left on device": "nccl-shared-memory",
    "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-zX1 (size 9637888), error: No space left on"
    " device (28)": "nccl-shared-memory",
    "[rank0]: ncclSystemError: System call (e.g. socket, malloc) or external library call failed": "nccl-system-error",
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE": "nccl-timeout",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.": "cuda-out-of-memory",
    "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable": "compute-mode-exclusive",
    "0/4 nodes are available: 4 Insufficient nvidia.com/gpu.": "k8s-insufficient-gpus",
    "Incompatible strategy detected auto": "k8s-plugin-sees-no-gpu",
    "No devices found. Waiting indefinitely.": "k8s-plugin-sees-no-gpu",
    "error starting plugins: invalid device discovery strategy": "k8s-plugin-sees-no-gpu",
    'Failed to create pod sandbox: failed to get sandbox runtime: no runtime for "nvidia" is configured': (
        "k8s-runtime-missing"
    ),
    "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu": (
        "k8s-gpu-unhealthy"
    ),
    "Warning  Failed  Error: ImagePullBackOff": "k8s-image-pull",
    "NCCL WARN Failed to open libibverbs.so[.1]": "ib-library-missing",
    "n1:80744:80744 [1] transport/net_ib.cc:149 NCCL WARN NET/IB : Unable to open device mlx5_9": "ib-device-closed",
    "[4] ib_plugin.c:1673 NCCL WARN NET/IB: Got completion from peer 10.0.1.23<34696> with status=12 opcode=0": (
        "ib-not-reached"
    ),
    "[0] ib_plugin.c:1075 NCCL WARN NET/IB : Got completion from peer 172.21.17.89<38536> with error 5, opcode 48": (
        "peer-gone"
    ),
    "n1:31337:31502 [0] NCCL WARN NET/IB : Got async event : port error": "ib-link-down",
    "[0] misc/ibvwrap.cc:182 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Invalid argument": "locked-memory",
    "UCX  ERROR mlx5_0: ibv_create_cq() failed: Cannot allocate memory": "locked-memory",
    "gpu46:78367:78492 [0] transport/nvls.cc:244 NCCL WARN Cuda failure 1 'invalid argument'": "nvls-failed",
    "NVRM: Xid (PCI:0000:dc:00): 45, pid=18, name=python3, Ch 00000001 caused by previous Xid 149": "nvlink-xid",
    "NVRM: Xid (PCI:0000:9b:00): 94, pid=1234, name=python3, Contained ECC error": "xid-of-the-hardware",
    "NVRM: Xid (PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2)": "gpu-xid",
    "CUDA_ERROR_CONTAINED: Invalid access of peer GPU memory over nvlink or a hardware error": "gpu-lost",
    "nvidia-container-cli: initialization error: change root failed: no such file or directory": "toolkit-root",
    "nvidia-container-cli: mount error: write error: /sys/fs/cgroup/devices/docker/fc84/devices.allow: operation not"
    " permitted: unknown.": "no-cgroups-rootless",
    "fork/exec /usr/bin/nvidia-container-runtime: no such file or directory: unknown": "toolkit-missing",
    "panic: More than one MIG device type present on node": "k8s-mig-mixed",
    "  Warning  BackOff  9s (x7 over 7s)  kubelet  Back-off restarting failed container main in pod train-0_ml(e5d)": (
        "k8s-container-ends"
    ),
    "sbatch: error: Batch job submission failed: Invalid generic resource (gres) specification": "slurm-gres",
    "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy": "slurm-refused",
    "slurmstepd: error: execve(): torchrun: No such file or directory": "slurm-no-program",
    "mpirun has detected an attempt to run as root.": "mpi-as-root",
    "[c6a464409f2b:40139] Read -1, expected 131072, errno = 1": "mpi-copy-forbidden",
    "59.81   - nothing provides __cuda needed by pytorch-2.1": "conda-wants-a-gpu",
    "E: Unable to correct problems, you have held broken packages.": "debian-conflict",
    "huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co/api/m"
    " (Request ID: Root=1-68)": "hub-rate-limit",
    "requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://huggingface.co/m/resolve/main/c"
    " (Request ID: Root=1-68)": "gated-download",
    "pip: 429 Client Error: Too Many Requests for url: https://pypi.org/simple/x": "index-rate-limit",
    "TypeError: TrainingArguments.__init__() got an unexpected keyword argument 'evaluation_strategy'": (
        "trainer-argument-renamed"
    ),
    "TypeError: __init__() got an unexpected keyword argument 'strategy'": "argument-of-another-release",
    "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -7) local_rank: 0 (pid: 3)": (
        "shared-memory-too-small"
    ),
    "RuntimeError: Triton Error [CUDA]: device kernel image is invalid": "driver-too-old",
    "RuntimeError: Triton Error [CUDA]: out of memory": "cuda-out-of-memory",
    "RuntimeError: Triton Error [CUDA]: invalid argument": "triton-error",
    "NCCL operation ncclCommInitRank(&comm, nranks, id, rank) failed: unhandled cuda error": "nccl-error",
    "*** An error occurred in MPI_Init_thread": "mpi-not-launched",
    "/.singularity.d/actions/exec: 9: exec: --nv: not found": "apptainer-options",
    "The node was low on resource: ephemeral-storage. Threshold quantity: 10120387530": "k8s-evicted",
    "m-2gkd  0/2     ContainerStatusUnknown   1          10m": "k8s-evicted",
    "RuntimeError: Not compiled with GPU support (nms at ./x/csrc/nms.h:22)": "extension-without-cuda",
    "RuntimeError: CUDA error: unknown error": "cuda-unknown-error",
    "ImportError: cannot import name 'flash_attn_func' from 'flash_attn' (/x/__init__.py)": "name-of-another-release",
    "ImportError: cannot import name 'np_utils' from 'keras.utils' (/x/__init__.py)": "older-keras",
    "botocore.exceptions.NoCredentialsError: Unable to locate credentials": "cloud-credentials",
    "RuntimeError: NCCL error in: ../ProcessGroupNCCL.cpp:957, invalid usage, NCCL version 21.0.3": (
        "nccl-invalid-usage"
    ),
    "FileNotFoundError: [Errno 2] No such file or directory: 'out/checkpoint-500/trainer_state.json'": (
        "checkpoint-incomplete"
    ),
    "HTTPConnectionPool(host='a', port=55): Max retries exceeded with url: /x (Caused by NameResolutionError(\"<urllib3"
    ".connection.HTTPConnection object at 0x7f67>: Failed to resolve 'a' ([Errno -2] Name or service not known)\"))": (
        "name-not-known"
    ),
    "Error! Bad return status for module build on kernel: 5.15.14-surface (x86_64)": "driver-not-built",
    "WatchTasksAsync failed for task 3: UNAVAILABLE: failed to connect to all addresses": "store-gone",
    "4.984  on `torch`, but doesn't declare it as a build dependency. If": "torch-not-there-yet",
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


def test_the_command_reads_stdin_and_says_what_it_knows() -> None:
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
