"""Lines as programs print them → the failure they show."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.findings import match
from seatrial.findings.catalogue import LAYERS, entries
from seatrial.findings.match import MAX_CHARACTERS, MAX_EVIDENCE, Matches, match_lines, match_text
from symptoms import shown

LINES = {
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has …": "cuda-out-of-memory",
    "RuntimeError: CUDA error: out of memory": "cuda-out-of-memory",
    "RuntimeError: CUDA error: no kernel image is available for execution on the device": "no-kernel-image",
    "NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch installation.": (
        "no-kernel-image"
    ),
    "RuntimeError: DataLoader worker (pid 41) is killed by signal: Bus error. It is possible that …": (
        "shared-memory-too-small"
    ),
    "RuntimeError: DataLoader worker (pid 41) is killed by signal: Killed. ": "loader-process-killed",
    "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.45 GiB for an array": "host-out-of-memory",
    "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory": (
        "host-out-of-memory"
    ),
    "RuntimeError: The NVIDIA driver on your system is too old (found version 12020).": "driver-too-old",
    "AssertionError: Torch not compiled with CUDA enabled": "torch-cpu-only",
    "RuntimeError: No CUDA GPUs are available": "no-cuda-device",
    "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.cpp": "nccl-error",
    "[rank0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE": "nccl-timeout",
    "Error while creating shared memory segment /dev/shm/nccl-Xy (size 9637888), error: No space left on device (28)": (
        "nccl-shared-memory"
    ),
    "OSError: [Errno 28] No space left on device": "disk-full",
    "OSError: [Errno 30] Read-only file system: '/opt/out'": "read-only-root",
    "docker: Error response from daemon: could not select device driver \"\" with capabilities: [[gpu]].": (
        "toolkit-missing"
    ),
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized": (
        "fabric-manager-not-ready"
    ),
    "RuntimeError: CUDA error: device-side assert triggered": "device-side-assert",
    "AttributeError: module 'numpy' has no attribute 'bool'.": "numpy-name-removed",
    "AttributeError: `np.float_` was removed in the NumPy 2.0 release. Use `np.float64` instead.": "numpy-name-removed",
    "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000": "ranks-share-a-gpu",
    "train.py: error: unrecognized arguments: --local-rank=0": "rank-option-unknown",
    "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected, but"
    " not set": "ranks-not-set",
    "ImportError: /x.so: undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationE": "extension-of-another-torch",
    "RuntimeError: expected scalar type Float but found Double": "double-precision",
    "/lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found (required by /opt/x.so)": "system-too-old",
    "RuntimeError: mat1 and mat2 must have the same dtype, but got Float and Half": "mixed-precisions",
    "slurmstepd: error: Detected 1 oom_kill event in StepId=42.0. Some of the step tasks have been OOM Killed.": (
        "host-out-of-memory"
    ),
    "RuntimeError: CUDA error: unknown thing 1234": "cuda-error",
    "RuntimeError: Failed to find C compiler. Please specify via CC environment variable.": "no-c-compiler",
    "ModuleNotFoundError: No module named 'einops'": "python-module-missing",
    "ModuleNotFoundError: No module named 'sklearn.externals.six'": "python-part-missing",
    "ModuleNotFoundError: No module named 'keras.layers.advanced_activations'": "older-keras",
    "ImportError: cannot import name 'np_utils' from 'keras.utils' (/usr/lib/keras/utils/__init__.py)": "older-keras",
    "AttributeError: 'Sequential' object has no attribute 'predict_classes'. Did you mean: 'predict_step'?": (
        "older-keras"
    ),
    "AttributeError: `BasicLSTMCell` is not available with Keras 3.": "older-keras",
    "AttributeError: module 'torch._C' has no attribute '_cuda_setDevice'": "torch-cpu-only",
    "ValueError: Argument(s) not recognized: {'lr': 0.1}": "older-keras",
    "TypeError: AveragePooling2D.__init__() missing 1 required positional argument: 'pool_size'": "older-keras",
    "Exception: URL fetch failure on https://e.org/mnist.npz: None -- [Errno -2] Name or service not known": (
        "download-failed"
    ),
    "urllib.error.URLError: <urlopen error [Errno -2] Name or service not known>": "download-failed",
    "Failed to initialize NVML: Driver/library version mismatch": "driver-library-mismatch",
    "Failed to initialize NVML: Unknown Error": "device-access-lost",
    "2026-11-20 I tensorflow/tsl/cuda_stub.cc:31] Could not find cuda drivers on your machine, GPU will not be used.": (
        "tensorflow-no-gpu"
    ),
    "KeyError: 'getpwuid(): uid not found: 1234'": "user-unknown",
    "RuntimeError: DataLoader worker (pid 109552) exited unexpectedly with exit code 1. Details are lost": (
        "loader-process-ended"
    ),
    "RuntimeError: unable to write to file </torch_1_2_3>: No space left on device (28)": "shared-memory-too-small",
    "\x1b[31mRuntimeError:\x1b[0m \x1b[31mCUDA\x1b[0m out of memory": "cuda-out-of-memory",
    "OSError: [Errno 24] Zu viele offene Dateien: '/data/1.png'": "too-many-open-files",
    "RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x512 and 784x10)": "linear-features",
    "_pickle.UnpicklingError: invalid load key, 'v'.": "lfs-pointer",
    "_pickle.UnpicklingError: invalid load key, '<'.": "file-damaged",
    "node5:240 [6] NCCL WARN socketPollConnect: Connect to 10.0.0.4<56849> returned 113(No route to host)": (
        "nccl-no-connection"
    ),
    "train loss: nan": "loss-not-finite",
    "{'loss': nan, 'epoch': 0.2}": "loss-not-finite",
    "Epoch 3 train_loss: 0.31 val_loss: inf": "loss-not-finite",
    "epoch 4 best_loss: inf val_loss: nan": "loss-not-finite",
    "best accuracy 0.31, loss: inf": "loss-not-finite",
    "the best so far, train loss=inf": "loss-not-finite",
    "took 3 min loss: inf": "loss-not-finite",
    "CUDA error: 700": "cuda-error",
    "CUDA error: 70, no error before": "cuda-error",
    "CUDA error: 0x2bc": "cuda-error",
    "RuntimeError: CUDA error: no error": "cuda-error",
    "CUDA error: 0 in sync, CUDA error: 719 in copy": "cuda-error",
    "cuDNN error: CUDNN_STATUS_SUCCESS": "cuda-error",
    "CUBLAS_STATUS_SUCCESS, then CUBLAS_STATUS_NOT_INITIALIZED": "cuda-error",
    "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached "
    "files.": "hub-unreachable",
    "LocalEntryNotFoundError: An error happened while trying to locate the file on the Hub and we cannot find the "
    "requested files in the local cache. Please check your connection": "hub-unreachable",
    "'HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /bert/resolve/main/c.json' "
    "thrown while requesting HEAD https://huggingface.co/bert/resolve/main/c.json": "hub-unreachable",
}  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_lines_as_printed(line: str) -> None:
    assert [finding.id for finding in match_text(line)] == [LINES[line]]


@pytest.mark.parametrize(
    "line",
    [
        "Epoch 3, loss 0.21, accuracy 0.985, 12000 images/s, GPU memory 512 MB",
        "CUDA is available: NVIDIA H200",
        # Where the search for the lowest loss begins.
        "best val_loss: inf",
        "Best loss: inf",
        "epoch 1:  10%|# | 1/10 [00:01<00:09, loss=0.3, best_loss=inf]",
        "EarlyStopping(patience=5, min_val_loss=inf)",
        "epoch 0 model_best_loss: inf, previous validation loss: inf",
        "lowest train loss: inf -> 0.41",
        # What each call of CUDA's libraries gives when all is well.
        "CUDA error: 0",
        "[sync] cuda error: 0 (no error)",
        "CUDA error: no error",
        "max CUDA error: 0.0003 against the CPU",
        "matmul: CUBLAS_STATUS_SUCCESS, conv: CUDNN_STATUS_SUCCESS",
        "kernels.cu(12): cudaError_t err = cudaGetLastError();",
        # The hub is not there, and not needed.
        "Returning existing local_dir `/data/m` as remote repo cannot be accessed in `snapshot_download` "
        "(HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /api/models/m).",
        "Cannot reach https://huggingface.co/api/models/m: offline mode is enabled. Falling back to the cache",
        "We couldn't connect to 'https://huggingface.co' to load this file, using the cached one",
        "fell back to the cache: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url",
        "UserWarning: Unable to fetch remote file due to the following error "
        "HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /m "
        "- silently ignoring the lookup for the file config.json in m.",
        "Using the latest cached version of the dataset since m couldn't be found on the Hugging Face Hub",
        "out of memory of mine",
        # Harmless: torchvision without its picture files, mmcv's fine-tuning, scikit-learn.
        "UserWarning: Failed to load image Python extension: '/x/image.so: undefined symbol: _ZN3c106ivalue'",
        "WARNING - size mismatch for bbox_head.weight: copying a param with shape torch.Size([80]) from checkpoint",
        "AttributeError: 'LinearSVC' object has no attribute 'predict_proba'",
        "Function add returned 3",
        "mean loss: nanometres, val_loss: infinity norm",
        "cudaError checks disabled, CUDA_ERROR_ checks: 0",
        "epoch 3 train error: 0.012, 12 nan values replaced, worker killed",
        "No checkpoint found: [Errno 2] No such file or directory: 'ckpt/last.pt' - starting from scratch",
        "Namespace(device='cuda', pin_memory=True)",
    ],
)
def test_ordinary_lines_show_nothing(line: str) -> None:
    assert match_text(line) == []


@pytest.mark.parametrize("entry", [entry for entry in entries() if entry.healthy], ids=lambda entry: entry.id)
def test_what_is_healthy_takes_no_time_to_leave_out_of_a_long_line(entry) -> None:
    healthy = "best val_loss: inf CUDA error: 0 falling back to using the cached min_ "
    symptom = shown(entry.symptoms[0])
    for line in (healthy * 1000, f"{symptom} " * 1000, "best val_" * 7000 + symptom, f"{symptom} {healthy}" * 500):
        began_s = time.perf_counter()
        match_text(line)
        assert time.perf_counter() - began_s < 1


@pytest.mark.parametrize(
    "line",
    [
        "12 entries Evicted from the LRU cache, slow samples Preempted",
        "Unauthorized: 0, forbidden moves: 3",
        "WARNING:urllib3.connectionpool:Retrying after connection broken by 'ReadTimeoutError(\"read timed out\")': /x",
        "loading nan.py, killed: 0, error: 0.012",
        # Counters of a cache and of vLLM, a switch.
        "kv cache: hits: 10, evicted: 12, preempted: 0",
        "Suspended: false",
        "faiss: not compiled with GPU support, the CPU's index is used",
        "[W socket.cpp:697] [c10d] The client socket cannot be initialized to connect to [localhost.lan]:29500 (errno: "
        "97 - Address family not supported by protocol).",
        "Could not import apex: cannot import name 'amp' from 'apex'; using torch.amp",
        # A controller that tries again, NCCL without failures, Slurm, Ray, conda and Triton at work.
        'Operation cannot be fulfilled on pytorchjobs.kubeflow.org "job": the object has been modified; please apply',
        "n1:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_2:1/RoCE [RO]; OOB ib0:172.41.212.8<0>",
        "n1:1:9 [0] NCCL INFO transport/nvls.cc:120 NVLS multicast support is available on dev 0",
        "Submitted batch job 4711, gres/gpu:8, constraint h100, account a, partition p",
        "wandb: Network error (ReadTimeout), entering retry loop.",
        "Building extension module cpu_adam... Loading extension module cpu_adam... ninja: no work to do.",
        "AUTOTUNE mm(4096x4096): OutOfResources in triton_mm_3, Ignoring this choice.",
        "Solving environment: failed with initial frozen solve. Retrying with flexible solve.",
        "slots in use: 8, ranks: 8, bound to sockets; running as root is fine here",
    ],
)
def test_ordinary_lines_show_nothing_of_any_layer(line: str) -> None:
    assert match_text(line, LAYERS) == []


def test_every_symptom_is_found_and_belongs_to_its_entry() -> None:
    found = {}
    for entry in entries():
        for symptom in entry.symptoms:
            ids = [finding.id for finding in match_text("prefix " + shown(symptom) + " suffix", LAYERS)]
            if ids != [entry.id]:
                found[symptom] = ids
    assert found == {}


def test_evidence_is_the_line_with_its_number_and_is_bounded() -> None:
    lines = [b"fine\n", b"  CUDA out of memory " + b"x" * 1000 + b"\n"] * 10
    [finding] = match_lines(lines)
    assert len(finding.evidence) == MAX_EVIDENCE
    assert finding.evidence[0].startswith("line 2: CUDA out of memory xxx")
    assert len(finding.evidence[0]) == len("line 2: ") + MAX_CHARACTERS


def test_findings_come_in_order_of_appearance() -> None:
    text = "No CUDA GPUs are available\nToo many open files\nNo CUDA GPUs are available"
    assert [finding.id for finding in match_text(text)] == ["no-cuda-device", "too-many-open-files"]


@given(st.lists(st.binary()))
def test_any_bytes_can_be_read(lines: list[bytes]) -> None:
    assert isinstance(match_lines(lines), list)


@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    assert isinstance(match_text(text), list)


def test_symptom_is_found_wherever_a_line_was_broken() -> None:
    for symptom in (symptom for entry in entries() for symptom in entry.symptoms):
        text = shown(symptom).encode()
        whole = Matches(LAYERS)
        whole.add(1, text + b" and so on")
        for at in range(1, len(text), 5):
            end, begin = text[:at].rstrip(), text[at:].lstrip() + b" and so on"
            if text + b" and so on" not in (end + begin, end + b" " + begin):
                continue  # two spaces are lost where a line is broken
            first, broken = Matches(LAYERS), Matches(LAYERS)
            broken.add_broken(2, b"x" * 60 + b" " + end, begin, begun=first.add(1, end))
            assert {one.id for one in whole.findings} <= {one.id for one in broken.findings}, (symptom, at)


def test_lines_that_only_stand_below_each_other_are_not_looked_at_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    matches, looked_at = Matches(LAYERS), []
    monkeypatch.setattr(matches, "add", lambda number, line: looked_at.append(line))
    for number in range(100):
        matches.add_broken(number, b"INFO step 17 loss=0.1234 lr=0.001 1234.5", b"INFO step 18 loss=0.1233", False)
    assert looked_at == []


def test_a_line_that_repeats_the_first_half_of_a_symptom_costs_little() -> None:
    line = b"Timed out waiting 1 ms for " * 2400
    began = time.process_time()
    assert match_text(line.decode()) == []
    assert time.process_time() - began < 5.0  # 3 minutes where a gap has no end


def test_a_long_list_of_versions_is_read_to_its_end() -> None:
    versions = ", ".join(f"1.{minor}.{patch}" for minor in range(20) for patch in range(100))
    printed = f"ERROR: Could not find a version that satisfies the requirement botocore==99 (from versions: {versions})"
    [found] = match_text(printed, LAYERS)
    assert found.id == "package-version-missing" and "1.19.99" in (found.cause or "")


def test_long_log_and_short_one_show_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Past the first lines one regex looks for what is looked up letter by letter before."""
    assert min(len(start) for start in match._beginnings(LAYERS)) >= match._HEAD
    lines = [line.encode() for line in LINES]
    short = _shown(lines)
    monkeypatch.setattr(match, "_FEW", 0)
    assert _shown(lines) == short and len(short) > 10


def _shown(lines: list[bytes]) -> list[tuple[str, list[str]]]:
    return [(finding.id, finding.evidence) for finding in match_lines(lines)]
