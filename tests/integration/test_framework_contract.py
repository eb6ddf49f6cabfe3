"""The GPU contract of TensorFlow and JAX scripts: with the real frameworks on the CPU, and with small packages in their
place that fail as the real ones were seen to fail on GPUs (sources: findings/catalog/xla.toml)."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from agent_process import Agent
from here import absent
from seatrial.findings.catalogue import by_id
from seatrial.findings.match import match_text
from seatrial.probe import nvml
from seatrial.probe.programs import read_program

GPU = "de421f490f0c00000000000000000001"
UUID = "GPU-de421f49-0f0c-0000-0000-000000000001"

needs_a_fake_driver = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here"),
    pytest.mark.skipif(nvml.present(), reason="this machine has a real driver"),
]

#: What each check asks of its framework, on NumPy. FAKE_LOG goes to stderr at the import, as the C++ side logs; GRAPH,
#: CONVOLUTION and COMPILED are what those fail with; DIE ends the process where XLA compiles, as LLVM does.
TENSORFLOW = """
import contextlib, os, sys, types
import numpy
sys.stderr.write(os.environ.get("FAKE_LOG", "") + "\\n")
__version__ = "2.21.0"
cuda = os.environ.get("FAKE_CUDA_BUILD", "1") == "1"
details = {"is_cuda_build": cuda, "cuda_version": "12.5.1", "cuda_compute_capabilities": ["sm_80", "compute_90"]}
sysconfig = types.SimpleNamespace(get_build_info=lambda: details if cuda else {"is_cuda_build": False})
config = types.SimpleNamespace(
    list_physical_devices=lambda kind: ["GPU:0"] * int(os.environ.get("FAKE_SEEN", "1")),
    set_soft_device_placement=lambda on: None,
)
class Tensor(numpy.ndarray):
    device = "/job:localhost/replica:0/task:0/device:GPU:0"
    def numpy(self): return numpy.asarray(self)
def constant(values): return numpy.asarray(values, "float32").view(Tensor)
def fail(name):
    if name in os.environ: raise RuntimeError(os.environ[name])
def ones(shape): return constant(numpy.ones(shape))
def matmul(a, b): return a @ b
def conv2d(*_): fail("CONVOLUTION"); return ones((1,))
def tanh(x):
    if "DIE" in os.environ:
        sys.stderr.write(os.environ["DIE"] + "\\n"); sys.stderr.flush(); os.abort()
    fail("COMPILED"); return x
nn = types.SimpleNamespace(relu=lambda x: numpy.maximum(x, 0), conv2d=conv2d)
def device(name): return contextlib.nullcontext()
def function(call, jit_compile=False):
    def graph(*arguments):
        if arguments: fail("GRAPH")
        return call(*arguments)
    return graph
assert os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] == "true" and "TF_CONFIG" not in os.environ
"""

JAX = """
import os, sys, types
import numpy
__version__ = "0.10.2"
class Array(numpy.ndarray):
    def block_until_ready(self): return self
sys.stderr.write(os.environ.get("FAKE_LOG", "") + "\\n")
def fail(name):
    if name in os.environ: raise RuntimeError(os.environ[name])
def devices(kind): fail("DEVICES"); return ["cuda:0"]
def jit(call): return lambda *arguments: (fail("GRAPH"), call(*arguments))[1]
def device_put(values, device): return array(values)
def conv(*_): fail("CONVOLUTION"); return array([1])
lax = types.SimpleNamespace(conv=conv)
real, numpy = numpy, types.SimpleNamespace(ones=numpy.ones, maximum=lambda a, b: array(real.maximum(a, b)))
def array(values): return real.asarray(values, "float32").view(Array)
assert os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false" and "XLA_PYTHON_CLIENT_MEM_FRACTION" not in os.environ
"""

PLUGIN = "Metadata-Version: 2.1\nName: jax-cuda12-plugin\nVersion: 0.10.2\n"


def run(tmp_path, driver, check, *, fake=True, plugin=True, **variables):
    """The agent with a target that has ended long before its framework has been tried."""
    variables = {**variables, "TF_CONFIG": "{}", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.9"} if fake else variables
    if fake:
        site = tmp_path / "site"
        site.mkdir(exist_ok=True)
        (site / f"{check}.py").write_text({"tensorflow": TENSORFLOW, "jax": JAX}[check])
        if plugin:
            (site / "jax_cuda12_plugin-0.10.2.dist-info").mkdir()
            (site / "jax_cuda12_plugin-0.10.2.dist-info" / "METADATA").write_text(PLUGIN)
        variables["PYTHONPATH"] = str(site)
    entry = {"index": 0, "uuid": UUID, "name": "NVIDIA Fake", "memory_bytes": 1, "minor": 0}
    entry["compute_capability"] = "9.0"
    agent = Agent(tmp_path, "print('done')", gpu_mode="required", check=check, gpus=[entry], env=variables)
    done = agent.run(env={**os.environ, "LD_LIBRARY_PATH": str(driver), "FAKE_CUDA_GPUS": GPU})
    return agent, done


@pytest.mark.parametrize(("check", "version"), [("tensorflow", "2.21.0"), ("jax", "0.10.2")])
class TestBesideTheTarget:
    pytestmark = needs_a_fake_driver

    def test_its_kernel_counts(self, tmp_path, driver, check, version):
        agent, done = run(tmp_path, driver, check)
        assert done.returncode == 0, agent.events("gpu.kernel")
        [_, kernel] = agent.events("gpu.kernel")
        assert kernel["kind"] == check and kernel["ok"] and kernel["torch"] is None
        assert kernel["framework"]["name"] == check and kernel["framework"]["version"] == version
        assert kernel["framework"]["cuda"] and agent.events("finding") == []

    def test_a_graph_that_fails_stops_the_target(self, tmp_path, driver, check, version):
        agent, done = run(tmp_path, driver, check, GRAPH="CUDA_ERROR_NO_BINARY_FOR_GPU")
        assert done.returncode == 3 and agent.exited()["cause"] == "gpu-contract"
        [finding] = agent.events("finding")
        assert finding["id"] == ("gpu-too-new-for-tensorflow" if check == "tensorflow" else "no-kernel-image")
        assert finding["fix"].startswith("seatrial" if check == "tensorflow" else "pip install --upgrade 'jax[cuda")

    @pytest.mark.parametrize("printed", ["CUDA_ERROR_OUT_OF_MEMORY: out of memory", "CUBLAS_STATUS_NOT_INITIALIZED"])
    def test_memory_that_the_target_has_taken_is_no_failure(self, tmp_path, driver, check, version, printed):
        agent, done = run(tmp_path, driver, check, GRAPH="INTERNAL: failed: " + printed)
        assert done.returncode == 0 and len(agent.events("gpu.kernel")) == 1
        named = {"tensorflow": "TensorFlow", "jax": "JAX"}[check]
        assert agent.events("note")[0]["message"].startswith(f"{named}'s own kernel was not tested")

    def test_what_only_some_scripts_need_is_a_warning(self, tmp_path, driver, check, version):
        agent, done = run(tmp_path, driver, check, CONVOLUTION="UNIMPLEMENTED: DNN library is not found.")
        assert done.returncode == 0
        [finding] = agent.events("finding")
        assert (finding["id"], finding["severity"]) == ("cudnn-not-found", "warning")


def unseen(log):
    """Return the variables that make TensorFlow find no GPU and log this text."""
    return {"FAKE_SEEN": "0", "FAKE_LOG": log}


#: TensorFlow 2.21 without [and-cuda], in a container whose driver works.
STUB = "I0000 cudart_stub.cc:31] Could not find cuda drivers on your machine, GPU will not be used."
OLD = (
    "I gpu_device.cc:1721] Ignoring visible gpu device (device: 0, name: Tesla K80, compute capability: 3.7) with Cuda "
)
OLD += "compute capability 3.7. The minimum required Cuda capability is 6.0."
PTX = "W tf_gpu_runtime_wrappers.cc:40] 'cuModuleLoadData(&module, data)' failed with 'CUDA_ERROR_INVALID_PTX'"
CUDNN = "E cuda_dnn.cc:417] Loaded runtime CuDNN library: 8.0.5 but source was compiled with: 8.6.0."

#: (variables, what the finding is). The texts are those of the issues that the catalogue names.
TENSORFLOW_BREAKS = [
    ({"FAKE_CUDA_BUILD": "0"}, "tensorflow-cpu-only"),
    (unseen("W0000 gpu_device.cc:2431] Cannot dlopen some GPU libraries. Please make sure"), "tensorflow-without-cuda"),
    (unseen("W gpu_device.cc:1956] the missing libraries\nSkipping registering GPU..."), "tensorflow-without-cuda"),
    (unseen(STUB), "tensorflow-without-cuda"),
    (unseen(OLD), "gpu-too-old-for-framework"),
    ({"GRAPH": "{{function_node Mul}}\n'cuLaunchKernel(function, gridX)' failed with 'CUDA_ERROR_INVALID_H"},
     "gpu-too-new-for-tensorflow"),
    ({"GRAPH": "Graph execution error", "FAKE_LOG": PTX}, "gpu-too-new-for-tensorflow"),
    ({"GRAPH": "DNN library is not found.", "FAKE_LOG": CUDNN}, "cudnn-versions"),
]  # fmt: skip
CUDA_JAX = (
    "Unable to initialize backend 'cuda': Unable to use CUDA because of the following issues with CUDA components:\n"
)
JAX_BREAKS = [
    ({"JAX_PLATFORMS": "cpu"}, "jax-kept-off-gpu"),
    ({"DEVICES": "Unknown backend: 'gpu' requested, but no platforms that are instances of gpu are"}, "jax-no-gpu"),
    ({"GRAPH": "NOT_FOUND: Couldn't find a suitable version of ptxas. The following"}, "xla-no-ptxas"),
    ({"GRAPH": "FAILED_PRECONDITION: DNN library initialization failed. Look at the"}, "cudnn-not-started"),
    ({"DEVICES": f"{CUDA_JAX}Unable to load cuPTI. Is it installed?"}, "jax-plugin-broken"),
    ({"DEVICES": f"{CUDA_JAX}Outdated cuDNN installation found.\nVersion JAX was built"}, "cudnn-versions"),
]
BREAKS = [("tensorflow", *each) for each in TENSORFLOW_BREAKS] + [("jax", *each) for each in JAX_BREAKS]


class TestFrameworks:
    pytestmark = needs_a_fake_driver

    @pytest.mark.parametrize(("check", "fake", "id"), BREAKS)
    def test_it_names_what_is_wrong(self, tmp_path, driver, check, fake, id):
        agent, done = run(tmp_path, driver, check, **fake)
        assert done.returncode == 3, done.stderr
        [finding] = agent.events("finding")
        assert (finding["id"], finding["severity"]) == (id, "error"), agent.events("gpu.kernel")

    @pytest.mark.parametrize(
        ("fake", "id"),
        [
            ({"COMPILED": "INTERNAL: libdevice not found at ./libdevice.10.bc"}, "xla-no-libdevice"),
            ({"COMPILED": "No PTX compilation provider is available. Neither ptxas/nvlink nor"}, "xla-no-ptxas"),
            (
                {"DIE": "LLVM ERROR: PTX version 8.5 does not support target 'sm_120' (or 'sm_120a')"},
                "gpu-too-new-for-xla",
            ),
        ],
    )
    def test_an_xla_that_fails_stops_no_script_that_does_without(self, tmp_path, driver, fake, id):
        agent, done = run(tmp_path, driver, "tensorflow", **fake)
        assert done.returncode == 0 and agent.events("gpu.kernel")[1]["ok"]
        assert [(each["id"], each["severity"]) for each in agent.events("finding")] == [(id, "warning")]

    def test_cudnn_alone_that_is_missing_is_named(self, tmp_path, driver):
        for name in ("cudart", "cublas", "cufft", "cusolver", "cusparse"):
            library = tmp_path / "site" / "nvidia" / name / "lib" / f"lib{name}.so.12"
            library.parent.mkdir(parents=True)
            library.touch()
        agent, done = run(tmp_path, driver, "tensorflow", FAKE_SEEN="0")
        assert done.returncode == 3 and [each["id"] for each in agent.events("finding")] == ["cudnn-not-found"]

    def test_without_its_plug_in(self, tmp_path, driver):
        agent, done = run(tmp_path, driver, "jax", plugin=False, DEVICES="Unknown backend: 'gpu' requested")
        assert done.returncode == 3 and agent.events("finding")[0]["id"] == "jax-no-gpu"
        assert "jax[cuda12]" in agent.events("finding")[0]["fix"]


@pytest.mark.slow
class TestRealFrameworks:
    """On the CPU: that the programs' graphs are right, and that a build without CUDA is named."""

    @pytest.mark.parametrize(
        ("check", "id"),
        [
            pytest.param("tensorflow", "tensorflow-cpu-only", marks=absent("tensorflow")),
            pytest.param("jax", "jax-no-gpu", marks=absent("jax")),
        ],
    )
    @pytest.mark.skipif(shutil.which("cc") is None or nvml.present(), reason="no C compiler, or a real driver")
    def test_a_build_without_cuda_is_named(self, tmp_path, driver, check, id):
        agent, done = run(tmp_path, driver, check, fake=False)
        assert done.returncode == 3 and agent.events("finding")[0]["id"] == id, agent.events("gpu.kernel")
        assert agent.events("gpu.kernel")[1]["framework"]["name"] == check

    @absent("tensorflow")
    def test_tensorflows_graph_computes_what_numpy_does(self):
        behind = "\nimport tensorflow as tf\nprint(json.dumps([try_graph(tf, 0, 'CPU'), lacking(tf, 'CPU')]))"
        kernel, lacks = alone("tensorflow", behind)
        assert kernel["ok"] and lacks == []

    @absent("jax")
    def test_jaxs_function_computes_what_numpy_does(self):
        behind = "\nimport jax\ncpu = jax.devices('cpu')[0]\n"
        behind += "print(json.dumps([try_jit(jax, 0, cpu), lacking(jax, cpu)]))"
        kernel, lacks = alone("jax", behind)
        assert kernel["ok"] and lacks == []

    @absent("jax")
    def test_what_jax_reports_without_its_plug_in_is_known(self):
        program = "import jax; jax.devices('gpu')"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert "jax-no-gpu" in [finding.id for finding in match_text(done.stderr)], done.stderr


def alone(check, behind):
    program = read_program(f"{check}_check.py").replace('if __name__ == "__main__":', "if False:") + behind
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


LINES = {
    "2024-05-05 10:00:00.1: W gpu_device.cc:2251] Cannot dlopen some GPU libr": None,
    "2024-05-05 10:00:00.1: W gpu_device.cc:2251] Cannot dlopen some GPU libraries. Please make":
        "tensorflow-without-cuda",
    "sure the missing libraries\nPlease make sure the missing libraries mentioned above are installed properly":
        "tensorflow-without-cuda",
    "CUDA-enabled jaxlib is not installed. Falling back to cpu.": "jax-no-gpu",
    "it is not compatible with the installed jaxlib version 0.7.1, so it will not be used.": "jax-plugin-mismatch",
    "Neither ptxas/nvlink nor nvjtlink is available. As a fallback": "xla-no-ptxas",
    "CuDNN library needs to have matching major version and equal or higher minor version.": "cudnn-versions",
    "Reason: PTX version 8.8 does not support target 'sm_107a'.": "gpu-too-new-for-xla",
    "ptxas fatal   : Value 'sm_120' is not defined for option 'gpu-name'": "gpu-too-new-for-xla",
    "ptxas : Unsupported .version 8.4; current version is '8.2'": "gpu-too-new-for-xla",
    "failed with 'CUDA_ERROR_INVALID_HANDLE'": "gpu-too-new-for-tensorflow",
    "ValueError: Cannot set memory growth on device when virtual devices configured": "tensorflow-growth-and-limit",
    "RuntimeError: Physical devices cannot be modified after being initialized": "tensorflow-set-too-late",
    "W asm_compiler.cc:85] Couldn't get ptxas version string: INTERNAL: Couldn't invoke ptxas --version":
        "xla-driver-compiles",
    "Could not load dynamic library 'libcusolver.so.11'; dlerror: libnvJitLink.so.12: cannot":
        "tensorflow-without-cuda",
    "Could not load dynamic library 'libcudnn.so.8'; dlerror: libcudnn.so.8: cannot open": "cudnn-not-found",
    "RESOURCE_EXHAUSTED: Out of memory while trying to": "cuda-out-of-memory",
    "Allocator (GPU_0_bfc) ran out of memory trying to allocate 1.02GiB. The caller indicates that this is not": None,
}  # fmt: skip


@pytest.mark.parametrize(("line", "id"), LINES.items())
def test_messages_whole_and_cut_in_half(line, id):
    """Wrap lines as terminals and logs do."""
    assert [finding.id for finding in match_text(line)] == ([id] if id else [])
    assert id is None or by_id(id).sources
