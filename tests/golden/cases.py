"""The command lines of the golden corpus, the projects that they are typed in, and the programs that answer them."""

from __future__ import annotations

from typing import Any

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

#: The recorded `info` of each engine, in tests/recorded.
INFO = {"docker": "docker-info-20.10.24.json", "podman": "podman-info-4.3.1.json"}

#: A stand-in for an engine: it answers `info`, has no image, and starts nothing.
ENGINE = """#!{python}
import sys
if "info" in sys.argv:
    print(" ".join(open('{info}').read().split("\\n")))
elif "context" in sys.argv:
    print('{{"Name": "default", "Endpoints": {{"docker": {{"Host": "unix:///var/run/docker.sock"}}}}}}')
elif "version" in sys.argv:
    print("20.10.24")
else:
    sys.exit("Error: No such image: " + sys.argv[-1])
"""

FILES = {
    "train.py": "import torch\n\nmodel = torch.nn.Linear(8, 2).cuda()\nprint(model)\n",
    "hello.py": "print('hello')\n",
    "ddp.py": "import torch.distributed as dist\n\ndist.init_process_group('nccl')\nprint(dist.get_rank())\n",
    "keras_train.py": "import tensorflow as tf\n\nprint(tf.config.list_physical_devices('GPU'))\n",
    "jax_train.py": "import jax\n\nprint(jax.devices())\n",
    "lightning_train.py": "import lightning\n\nlightning.Trainer(devices=2)\n",
    "hvd.py": "import horovod.torch as hvd\n\nhvd.init()\n",
    "arguments.py": "import argparse\n\nparser = argparse.ArgumentParser()\nparser.add_argument('--lr', type=float)\n"
    "print(parser.parse_args())\n",
    "package/__init__.py": "",
    "package/train.py": "print('module')\n",
    "sub/train.py": "import sys\n\nprint(sys.path)\n",
    "requirements.txt": "numpy\n",
    "data/x.csv": "1,2\n",
    "models/.keep": "",
    "env.list": "A=1\nB=two\n",
    "Dockerfile": "FROM python:3.11\nRUN pip install torch\nCOPY . /app\nCMD python train.py\n",
    "compose.yaml": "services:\n  train:\n    image: python:3.11\n    command: python train.py\n    deploy:\n      resources:\n"
    "        reservations:\n          devices:\n            - {driver: nvidia, count: 1, capabilities: [gpu]}\n"
    "  after:\n    image: python:3.11\n    command: python after.py\n    depends_on: [train]\n",
}

H100 = "--target h100"

#: Typed behind `seatrial plan --json`. No GPU is in the machine: GPU plans are for another one.
PLANS = [
    *(f"train.py --on docker {H100} {flags}".strip() for flags in (
        "", "--gpus 2", "--gpus all", "--gpus device=0", "--gpus '\"device=0,2\"'", "--gpus 0.5", "--gpus MIG-1234", "--gpus 0:1",
        "--gpus all,capabilities=compute", "--slim none", "--slim files", "--slim unused", "--slim arch", "--gpu-memory 4GB",
    )),
    *(f"train.py --on {place} --gpus none" for place in ("docker", "podman", "local")),
    *(f"{script} --on docker {H100}" for script in (
        "hello.py", "ddp.py", "keras_train.py", "jax_train.py", "lightning_train.py", "hvd.py", "-m package.train", "sub/train.py",
        "digits", "mnist", "mnist-deep", "cifar10", "spam", "matmul", "--image pytorch/pytorch:2.7.0-cuda12.8-cudnn9-runtime",
    )),
    *(f"ddp.py --on docker {H100} {flags}" for flags in (
        "--gpus 2", "--gpus 2 --launcher none", "--gpus 2 --restarts 3", "--gpus 8", "--nodes 2 --gpus 2",
    )),
    *(f"hello.py --on {place} --gpus none {flags}" for place in ("docker", "podman") for flags in (
        "--data data", "--data data:rw", "--models models", "-v ./data:/input:ro", "-e A=1 -e B=2", "--env-file env.list",
        "-p 8000:80", "--network none", "-w /tmp", "--device /dev/null", "--ulimit nofile=1024:2048", "--cpus 1.5", "--memory 1GB",
        "--shm-size 64MB", "--writable", "--timeout 10m --grace 5s", "--no-hook", "--strict", "--with-names", "--name mine",
        "-- --lr 0.1 'a b'",
    )),
    *(f"ddp.py --on k8s {flags}" for flags in (
        "--gpus 2", "--gpus 2 --nodes 2", "--gpus 1 --kind job", "--gpus 2 --nodes 2 --kind jobset", "--gpus 2 --nodes 2 --kind pytorchjob",
        "--gpus 2 --nodes 2 --kind trainjob", "--gpus 1 --queue research", "--gpus none", "--gpus 1 --image registry.test/team/train:1",
    )),
]  # fmt: skip

#: Typed behind `seatrial plan`; the engine's command, another form, or manifests.
COMMANDS = [
    *(f"train.py --on {place} --verbose {flags}" for place in ("docker", "podman") for flags in (
        "--gpus none", H100, f"{H100} --gpus 2", f"{H100} --gpus device=0", "--gpus none --memory 1GB --cpus 2 -e A=1 -p 8000:80 --ulimit nofile=1024",
    )),
    f"train.py --on docker {H100} --as docker",
    f"train.py --on docker {H100} --as compose",
    *(f"ddp.py --on k8s --manifests --image registry.test/team/train:1 {flags}" for flags in (
        "--gpus 2", "--gpus 2 --nodes 2 --kind job", "--gpus 2 --nodes 2 --kind jobset", "--gpus 2 --nodes 2 --kind pytorchjob",
        "--gpus 2 --nodes 2 --kind trainjob", "--gpus 1 --queue research --timeout 1h --memory 8GB --cpus 4",
    )),
]  # fmt: skip

#: Command lines that are refused before anything starts, or that only report.
REFUSED = [
    "run trian.py", "run train.py --epochs 5", "run train.py --gpus 1 --on docker", "run train.py --gpus 9 --on local",
    "run train.py --on nowhere", "run train.py --memory lots", "run train.py --timeout soon", "run train.py --data nowhere",
    "run train.py -e =x", "run train.py -v data", "run -m nowhere.train", "plan train.py --gpus -1", "plan train.py --gpus 1.5",
    "plan train.py --target potato", "plan train.py --slim all", "runs show nothing", "runs logs nothing", "explain something-unknown",
    "frobnicate", "ps", "gpus", "build --check nowhere", "build --check Dockerfile", "up -f nowhere.yaml", "up -f compose.yaml --plan",
    "export nowhere onnx", "serve nowhere", "sweep train.py", "doctor --only nothing", "tune nowhere.py", "init",
]  # fmt: skip

_SERVED = ("jobsets", "jobsets/status")

#: What the cluster's API answers: a modern cluster with JobSet, Kubeflow's operators, Kueue and two GPU nodes.
CLUSTER: dict[str, Any] = {
    "/version": {"major": "1", "minor": "33", "gitVersion": "v1.33.4"},
    "/api/v1/nodes": {
        "items": [
            {
                "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}},
                "spec": {},
                "status": {
                    "capacity": {"nvidia.com/gpu": "8", "cpu": "96", "memory": "1Ti"},
                    "allocatable": {"nvidia.com/gpu": "8", "cpu": "95", "memory": "1000Gi"},
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            }
            for name in ("gpu-1", "gpu-2")
        ]
    },
    "/apis/jobset.x-k8s.io/v1alpha2": {"resources": [{"name": name} for name in _SERVED]},
    "/apis/kubeflow.org/v1": {"resources": [{"name": "pytorchjobs"}, {"name": "pytorchjobs/status"}]},
    "/apis/trainer.kubeflow.org/v1alpha1": {"resources": [{"name": "trainjobs"}, {"name": "trainjobs/status"}]},
    "/apis/apps/v1/deployments": {"items": [{"metadata": {"name": "controller"}}]},
    "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews": {"status": {"allowed": True}},
}


def toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text."""
    return tomllib.loads(text)
