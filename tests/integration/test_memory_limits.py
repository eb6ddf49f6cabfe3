"""--gpu-memory with the real TensorFlow and JAX, on the CPU: what the options are with which their GPUs would start.

A driver made for tests reports two GPUs of 1 GiB; TensorFlow gets two physical GPUs, and what Python
hands to the C++ side is caught there. How that side keeps to these options only a GPU shows.
"""

import json
import os
import shutil
import subprocess
import sys

import pytest

from here import absent
from seatrial.agent.hook import install

GPUS = "de421f490f0c00000000000000000001,de421f490f0c00000000000000000002"
LIMIT_MB = 256
QUARTER = LIMIT_MB / 1024

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here"),
]

#: Scripts as people write them → what has to come out. Growth is the script's; the limit never is.
TENSORFLOW_SCRIPTS = {
    "nothing": ("tf.constant(1.0) + 1", {"fraction": QUARTER}),
    "growth": (
        "for gpu in tf.config.list_physical_devices('GPU'): tf.config.experimental.set_memory_growth(gpu, True)\n"
        "tf.constant(1.0) + 1",
        {"fraction": QUARTER, "growth": True},
    ),
    "a smaller limit of its own": (
        "gpu = tf.config.list_physical_devices('GPU')[0]\n"
        "tf.config.set_visible_devices(gpu, 'GPU')\n"
        "tf.config.set_logical_device_configuration(gpu, [tf.config.LogicalDeviceConfiguration(memory_limit=100)])\n"
        "tf.constant(1.0) + 1",
        {"parts": [[100]], "visible": "0"},
    ),
    "a larger limit of its own": (
        "gpu = tf.config.list_physical_devices('GPU')[0]\n"
        "tf.config.set_visible_devices(gpu, 'GPU')\n"
        "tf.config.experimental.set_virtual_device_configuration(gpu, "
        "[tf.config.experimental.VirtualDeviceConfiguration(memory_limit=6144)])\n"
        "tf.constant(1.0) + 1",
        {"parts": [[LIMIT_MB]], "visible": "0"},
    ),
    "two parts on one GPU and none on the other": (
        "gpu = tf.config.list_physical_devices('GPU')[0]\n"
        "tf.config.set_logical_device_configuration(gpu, [tf.config.LogicalDeviceConfiguration(memory_limit=3000),\n"
        "                                                 tf.config.LogicalDeviceConfiguration(memory_limit=1000)])\n"
        "tf.constant(1.0) + 1",
        {"parts": [[192, 64], [LIMIT_MB]]},
    ),
    "a limit, then growth, as it fails without us": (
        "gpu = tf.config.list_physical_devices('GPU')[0]\n"
        "tf.config.set_logical_device_configuration(gpu, [tf.config.LogicalDeviceConfiguration(memory_limit=100)])\n"
        "try: tf.config.experimental.set_memory_growth(gpu, True)\n"
        "except ValueError as error: assert 'virtual devices configured' in str(error)\n"
        "tf.constant(1.0) + 1",
        {"parts": [[100], [LIMIT_MB]]},
    ),
    "growth, then a limit": (
        "gpus = tf.config.list_physical_devices('GPU')\n"
        "for gpu in gpus: tf.config.experimental.set_memory_growth(gpu, True)\n"
        "part = tf.config.LogicalDeviceConfiguration(memory_limit=900)\n"
        "tf.config.set_logical_device_configuration(gpus[0], [part])\n"
        "tf.constant(1.0) + 1",
        {"parts": [[LIMIT_MB], [LIMIT_MB]]},
    ),
    "after the first operation, as it fails without us": (
        "tf.constant(1.0) + 1\n"
        "gpu = tf.config.list_physical_devices('GPU')[0]\n"
        "try: tf.config.experimental.set_memory_growth(gpu, True)\n"
        "except RuntimeError as error: assert 'after being initialized' in str(error)",
        {"fraction": QUARTER},
    ),
    "a session": ("tf.compat.v1.disable_v2_behavior(); tf.compat.v1.Session().close()", {"fraction": QUARTER}),
    "a session with growth": (
        "tf.compat.v1.disable_v2_behavior()\n"
        "config = tf.compat.v1.ConfigProto(); config.gpu_options.allow_growth = True\n"
        "tf.compat.v1.Session(config=config).close(); assert not config.gpu_options.per_process_gpu_memory_fraction",
        {"fraction": QUARTER, "growth": True},
    ),
    "a session with nearly all": (
        "tf.compat.v1.disable_v2_behavior()\n"
        "options = tf.compat.v1.GPUOptions(per_process_gpu_memory_fraction=0.9, allow_growth=True)\n"
        "tf.compat.v1.InteractiveSession('', None, tf.compat.v1.ConfigProto(gpu_options=options)).close()",
        {"fraction": QUARTER, "growth": True},
    ),
    "a session with a little": (
        "tf.compat.v1.disable_v2_behavior()\n"
        "options = tf.compat.v1.GPUOptions(per_process_gpu_memory_fraction=0.1)\n"
        "tf.compat.v1.Session(config=tf.compat.v1.ConfigProto(gpu_options=options)).close()",
        {"fraction": 0.1},
    ),
    "eager execution with a configuration, and the host's memory": (
        "options = tf.compat.v1.GPUOptions(per_process_gpu_memory_fraction=3.0, allow_growth=True)\n"
        "tf.compat.v1.enable_eager_execution(config=tf.compat.v1.ConfigProto(gpu_options=options))\n"
        "tf.constant(1.0) + 1",
        {"fraction": QUARTER},
    ),
    "a list of devices first": (
        "from tensorflow.python.client import device_lib\ndevice_lib.list_local_devices()",
        {"fraction": QUARTER},
    ),
    "an allocator that knows no limit": (
        "os.environ['TF_GPU_ALLOCATOR'] = 'cuda_malloc_async'\n"
        "tf.constant(1.0) + 1\nassert 'TF_GPU_ALLOCATOR' not in os.environ",
        {"fraction": QUARTER},
    ),
    "a Keras model": (
        "import numpy\n"
        "model = tf.keras.Sequential([tf.keras.layers.Dense(2)]); model.compile('sgd', 'mse')\n"
        "with tf.device('CPU'): model.fit(numpy.ones((8, 3)), numpy.ones((8, 2)), verbose=0)",
        {"fraction": QUARTER},
    ),
    "several logical CPUs": (
        "cpu = tf.config.list_physical_devices('CPU')[0]\n"
        "tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)\n"
        "tf.constant(1.0) + 1",
        {"parts": [[LIMIT_MB], [LIMIT_MB]]},
    ),
    "two GPUs mirrored": (
        "tf.constant(1.0) + 1\nassert len(tf.config.list_physical_devices('GPU')) == 2",
        {"fraction": QUARTER, "visible": "0,1"},
    ),
}

#: Runs each script in a fork of one interpreter that has imported TensorFlow.
HARNESS = """
import json, os, sys
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.python import pywrap_tfe
from tensorflow.python.client import _pywrap_device_lib, pywrap_tf_session
from tensorflow.python.client import session

names = [b"/physical_device:CPU:0", b"/physical_device:GPU:0", b"/physical_device:GPU:1"]
pywrap_tfe.TF_ListPhysicalDevices = lambda: names
caught = []
def catching(owner, name, position):
    original = getattr(owner, name)
    def call(*arguments, **named):
        data = arguments[position] if len(arguments) > position else named.get("config")
        if not isinstance(data, bytes):
            data = data.SerializeToString() if data is not None else b""
        caught.append(data)
        return original(*arguments, **named)
    setattr(owner, name, call)
catching(pywrap_tfe, "TFE_ContextOptionsSetConfig", 1)
catching(_pywrap_device_lib, "list_devices", 0)
catching(session.tf_session, "TF_NewSessionOptions", 1)
for name, script in json.loads(sys.stdin.read()).items():
    sys.stdout.flush()
    if os.fork():
        os.wait()
        continue
    try:
        exec(script, {"tf": tf, "os": os})
        options = [config_pb2.ConfigProto.FromString(data).gpu_options for data in caught]
        found = [
            {
                "fraction": each.per_process_gpu_memory_fraction,
                "growth": each.allow_growth,
                "visible": each.visible_device_list,
                "parts": [list(part.memory_limit_mb) for part in each.experimental.virtual_devices],
            }
            for each in options
        ]
    except BaseException as error:
        found = repr(error)
    print(json.dumps([name, found]), flush=True)
    os._exit(0)
"""


def python(tmp_path, driver, program, text="", **variables):
    env = {**os.environ, "LD_LIBRARY_PATH": str(driver), "FAKE_CUDA_GPUS": GPUS, **variables}
    env["SEATRIAL_EVENTS"] = str(tmp_path / "events.jsonl")
    install.install(str(tmp_path / "hooks"), env, LIMIT_MB * 2**20, measure_steps=False)
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@absent("tensorflow")
def test_any_way_a_tensorflow_script_sets_it_is_held_to_the_limit(tmp_path, driver):
    scripts = {name: script for name, (script, _) in TENSORFLOW_SCRIPTS.items()}
    printed = python(tmp_path, driver, HARNESS, json.dumps(scripts))
    found = dict(json.loads(line) for line in printed.splitlines() if line.startswith("["))
    for name, (_, expected) in TENSORFLOW_SCRIPTS.items():
        assert isinstance(found[name], list) and found[name], (name, found[name])
        for options in found[name]:
            wanted = {"fraction": 0.0 if "parts" in expected else QUARTER, "parts": [], "growth": False, **expected}
            assert {key: options[key] for key in wanted} == wanted, name
    reported = [json.loads(line)["gpu_memory"] for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert all(each["framework"] == "tensorflow" and each["limit_bytes"] == LIMIT_MB * 2**20 for each in reported)


JAX_SCRIPTS = {
    "nothing": ("", {"memory_fraction": QUARTER}),
    "its own variable": ("os.environ['XLA_PYTHON_CLIENT_MEM_FRACTION'] = '.9'", {"memory_fraction": QUARTER}),
    "the newer one": ("os.environ['XLA_CLIENT_MEM_FRACTION'] = '.95'", {"memory_fraction": QUARTER}),
    "less": ("os.environ['XLA_PYTHON_CLIENT_MEM_FRACTION'] = '.10'", {"memory_fraction": 0.1}),
    "growth": (
        "os.environ['XLA_PYTHON_CLIENT_PREALLOCATE'] = 'false'",
        {"memory_fraction": QUARTER, "preallocate": False},
    ),
    "no pool": (
        "os.environ['XLA_PYTHON_CLIENT_ALLOCATOR'] = 'platform'",
        {"memory_fraction": QUARTER, "allocator": "default"},
    ),
    "the driver's pool": (
        "os.environ['XLA_PYTHON_CLIENT_ALLOCATOR'] = 'cuda_async'",
        {"memory_fraction": QUARTER, "allocator": "default"},
    ),
    "jax.config": (
        "import jax; jax.config.update('jax_pjrt_client_create_options', 'memory_fraction:0.8')",
        {"memory_fraction": QUARTER},
    ),
}

JAX_HARNESS = """
import json, os, sys
script = sys.stdin.read()
exec(script)
import jax
from jax._src import xla_bridge
import jaxlib.xla_client as xla_client
caught = []
xla_client._xla.get_c_api_client = lambda name, options, *more: caught.append(dict(options))
options = {**xla_client.generate_pjrt_gpu_plugin_options(), **xla_bridge._options_from_jax_configs("cuda")}
xla_client.make_c_api_client("cuda", options, None)
print(json.dumps(caught[0]))
"""


@absent("jax")
@pytest.mark.parametrize("name", list(JAX_SCRIPTS))
def test_any_way_a_jax_script_sets_it_is_held_to_the_limit(tmp_path, driver, name):
    script, expected = JAX_SCRIPTS[name]
    found = json.loads(python(tmp_path, driver, JAX_HARNESS, script).splitlines()[-1])
    assert {key: found[key] for key in expected} == expected


@absent("jax")
def test_jax_on_the_cpu_is_left_alone(tmp_path, driver):
    program = "import jax; print(jax.numpy.ones(3).sum())"
    assert python(tmp_path, driver, program, FAKE_CUDA_GPUS="") == "3.0\n"
    assert not (tmp_path / "events.jsonl").exists()


@absent("tensorflow")
def test_tensorflow_on_the_cpu_is_left_alone(tmp_path, driver):
    program = "import tensorflow as tf; print(float(tf.reduce_sum(tf.ones(3))))"
    assert python(tmp_path, driver, program, FAKE_CUDA_GPUS="") == "3.0\n"
    assert not (tmp_path / "events.jsonl").exists()
