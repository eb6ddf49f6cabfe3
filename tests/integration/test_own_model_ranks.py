"""Own models and packed texts on two ranks over Gloo: as alone with twice the batch; resumed to the bit."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(300)]


def trained(out: Path, world: int, *arguments: object, script: str = "own_model_ranks.py") -> list[dict[str, Any]]:
    out.mkdir(exist_ok=True)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)] if world > 1 else []
    command = [sys.executable, *torchrun, str(Path(__file__).with_name(script)), str(out), *map(str, arguments)]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=240)
    return [torch.load(out / f"rank-{rank}.pt") for rank in range(world)]


def test_two_ranks_train_packed_texts_as_one_with_all_texts_in_a_step(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    (alone,) = trained(tmp_path / "alone", 1, 26, script="packed_rank.py")
    both = trained(tmp_path / "both", 2, 13, script="packed_rank.py")
    assert both[0]["losses"] == both[1]["losses"] == pytest.approx(alone["losses"], rel=1e-4)
    assert alone["losses"][-1] < alone["losses"][0]
    for name, tensor in both[0]["model"].items():
        assert torch.equal(tensor, both[1]["model"][name]), name


def test_two_ranks_train_as_one_and_resume_to_the_bit(tmp_path: Path) -> None:
    (alone,) = trained(tmp_path / "alone", 1, 32)
    both = trained(tmp_path / "both", 2, 16)
    assert both[0]["losses"] == both[1]["losses"] == pytest.approx(alone["losses"], rel=1e-4)
    assert both[0]["metrics"] == both[1]["metrics"] == pytest.approx(alone["metrics"], rel=1e-4)
    middle = tmp_path / "both" / "checkpoints" / "checkpoint-0000000010.pt"
    again = trained(tmp_path / "again", 2, 16, middle)
    assert again[0]["losses"] == both[0]["losses"][10:]
    for kind in ("model", "average"):
        for name, tensor in both[0][kind].items():
            assert torch.equal(tensor, again[1][kind][name]), name


LEFT_OVER = """
import sys
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset
from seatrial.train import Step, batches, fit

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Linear(6, 3)
parallel = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
source = batches(TensorDataset(torch.randn(32, 6), torch.arange(32) % 3), 4)

def loss(model, inputs, labels):
    return cross_entropy(model(inputs), labels)

try:
    Step(parallel, loss, optimizer, source)
except Exception as error:
    print(error)
print("trained", fit(Step(parallel.module, loss, optimizer, source, epochs=2)).losses[-1])

epochs = iter(range(1, 9))
def test():  # on one rank it gets better, on the other worse
    epoch = next(epochs)
    return {"test_loss": 2.0 * epoch if dist.get_rank() else -1.0 * epoch}

step = Step(parallel.module, loss, optimizer, source, epochs=8)
met = []
fit(step, test=lambda: met.append(found := test()) or found, patience=3, save_every=3, checkpoints=sys.argv[1])
print("tested", [0.5 * (number + 1) for number in range(len(met))])
dist.destroy_process_group()
"""


def test_a_script_that_opened_its_process_group_itself(tmp_path: Path) -> None:
    script = tmp_path / "left_over.py"
    script.write_text(LEFT_OVER)
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    argv.append(str(tmp_path / "checkpoints"))
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("fix: Step(model.module, ...)") == 2
    assert done.stdout.count("tested [0.5, 1.0, 1.5, 2.0]") == 2
    trained = [line for line in done.stdout.splitlines() if line.startswith("trained")]
    assert len(trained) == 2 and len(set(trained)) == 1
