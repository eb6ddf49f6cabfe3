"""Commands in other people's shell scripts and Makefiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.errors import TargetError
from seatrial.job.reading.shell_commands import training_command
from seatrial.job.target import resolve_target

FILES = {"train.py", "tools/train_net.py", "main_finetune.py", "code/run.py"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("python train.py --lr 0.1 'a b'", "seatrial run train.py -- --lr 0.1 'a b'"),
        ("CUDA_VISIBLE_DEVICES=0,1 python3.10 -u train.py", "seatrial run train.py"),
        ("torchrun --standalone --nproc_per_node=8 train.py cfg.py", "seatrial run --gpus 8 train.py -- cfg.py"),
        ("horovodrun -np 4 -H localhost:4 python train.py --lr 1", "seatrial run --gpus 4 train.py -- --lr 1"),
        ("torchrun --nproc-per-node gpu train.py", "seatrial run --gpus all train.py"),
        (
            "python -m torch.distributed.launch --nproc_per_node 2 --use_env main_finetune.py \\\n  --batch 64",
            "seatrial run --gpus 2 main_finetune.py -- --batch 64",
        ),
        ("accelerate launch --multi_gpu --num_processes 4 train.py", "seatrial run --gpus 4 train.py"),
        (
            "deepspeed --num_gpus=2 train.py --deepspeed ds.json",
            "seatrial run --gpus 2 train.py -- --deepspeed ds.json",
        ),
        ("srun --gres=gpu:2 --ntasks=1 python tools/train_net.py", "seatrial run tools/train_net.py"),
        ("set -e\ncd code && python ./run.py > log.txt 2>&1 &", "seatrial run code/run.py"),
        ("python -m package.train --x", "seatrial run -m package.train -- --x"),
        ("for s in 1 2; do python train.py --seed $s; done", "seatrial run train.py -- …"),
        ("# python other.py\nif true; then exec python train.py; fi", "seatrial run train.py"),
        ("torchrun -m package.train", "seatrial run -m package.train"),
        ("python /root/elsewhere.py\npython train.py", "seatrial run train.py"),
    ],
)
def test_what_it_starts(text: str, expected: str) -> None:
    found = training_command(text, FILES.__contains__)
    assert found is not None
    assert found.seatrial.partition("    #")[0] == expected


@pytest.mark.parametrize(
    "text", ["", "make train", "python -c 'print(1)'", "echo 'unclosed", "pip install torch", "torchrun", "python \\"]
)
def test_nothing_to_start(text: str) -> None:
    assert training_command(text, FILES.__contains__) is None


def test_a_makefile_in_which_each_line_has_a_shell_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "Makefile").write_text("PY = python\nall:\n\tcd sub\n\t@$(PYTHON) train.py --x $$HOME\n")
    with pytest.raises(TargetError, match="Makefile is a Makefile, not Python") as caught:
        resolve_target(["Makefile"], None, None, tmp_path, ())
    assert caught.value.run is not None and caught.value.run.startswith("seatrial run train.py -- …")


def test_a_script_of_another_kind_runs_in_an_image(tmp_path: Path) -> None:
    (tmp_path / "get data.sh").write_bytes(b"\xff\xfecurl x\n")
    with pytest.raises(TargetError) as caught:
        resolve_target(["get data.sh"], None, None, tmp_path, ())
    assert caught.value.run == "seatrial run --image python:3.11-slim-bookworm -- bash 'get data.sh'"
