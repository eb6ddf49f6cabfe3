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
        ("torchrun -m package.train -- --depth=24 -- x", "seatrial run -m package.train -- --depth=24 -- x"),
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
        ("srun --gres=gpu:2 --ntasks=1 python tools/train_net.py", "seatrial run --gpus 2 tools/train_net.py"),
        ("srun --gres=gpu:4 --ntasks=8 python train.py", "seatrial run --gpus 4 train.py"),
        ("srun -n 32 -c 2 python train.py", "seatrial run train.py"),
        ("srun -N2 -n 8 --gpu-bind=closest python train.py", "seatrial run --gpus 4 train.py"),
        ("srun -p gpu --nodes=1-4 -n 8 python train.py", "seatrial run train.py"),
        ("srun -p gpu -n $N python train.py", 'seatrial run --gpus "$N" train.py'),
        ("srun -G 1 -n 1 torchrun --nproc_per_node 2 train.py", "seatrial run --gpus 2 train.py"),
        (
            "#SBATCH --nodes=2\n#SBATCH --gres=gpu:4\nsrun --ntasks=8 python train.py --n 1",
            "seatrial run --gpus 4 train.py -- --n 1",
        ),
        ("#SBATCH -N 2 --gpus=a100:8\nsrun -n 8 python train.py", "seatrial run --gpus 4 train.py"),
        (
            "#SBATCH --nodes=2 --ntasks=8\n#SBATCH --gpus-per-task=1\nsrun python train.py",
            "seatrial run --gpus 4 train.py",
        ),
        ("#SBATCH -N 2 --partition=gpu\nsrun -n 8 python train.py", "seatrial run --gpus 4 train.py"),
        ("#SBATCH -n 8 --partition=gpu\npython train.py", "seatrial run train.py"),
        ("#SBATCH --gres=gpu:1g.10gb:1,nvme:2\npython train.py", "seatrial run --gpus 1 train.py"),
        ("#SBATCH -N 2 --gres=gpu:4\nmpirun -np 8 python train.py", "seatrial run --gpus 4 train.py"),
        ("set -e\ncd code && python ./run.py > log.txt 2>&1 &", "seatrial run code/run.py"),
        ("python -m package.train --x", "seatrial run -m package.train -- --x"),
        ("for s in 1 2; do python train.py --seed $s; done", 'seatrial run train.py -- --seed "$s"'),
        ("# python other.py\nif true; then exec python train.py; fi", "seatrial run train.py"),
        ("torchrun -m package.train", "seatrial run -m package.train"),
        ("python /root/elsewhere.py\npython train.py", "seatrial run train.py"),
        (
            "WIDTH=${WIDTH:-64}\nexport DEPTH='3'\nMORE=\"--w $WIDTH \\\n  --d ${DEPTH}\"\npython train.py $MORE '$x'",
            'seatrial run train.py -- --w 64 --d 3 "$x"',
        ),
        (
            'N=2\nS=tools/train_net.py\nL="torchrun --nproc_per_node $N"\nsrun $L $S',
            "seatrial run --gpus 2 tools/train_net.py",
        ),
        ('N=$1\nshift\ntorchrun --nproc-per-node=$N train.py "$@"', 'seatrial run --gpus "$N" train.py'),
        ("python train.py --data $(pwd) ${2:-x}", 'seatrial run train.py -- --data "$(pwd)" x'),
        ('A=$(nproc)\npython train.py --workers $A "${@:2}"', 'seatrial run train.py -- --workers "$A"'),
        (
            'if [ -n "$D" ]; then\n  python train.py --debug\nelse\n  torchrun --nproc_per_node 2 train.py\nfi',
            "seatrial run --gpus 2 train.py",
        ),
        ("#!/bin/sh\n#SBATCH -N 1 --gres=gpu:a100:4  # four\nsrun python train.py", "seatrial run --gpus 4 train.py"),
        ("cd $SLURM_SUBMIT_DIR\npython train.py", "seatrial run train.py"),
        (
            "R=/home/me/lab\naccelerate launch $R/tools/train_net.py --out $R/o",
            "seatrial run tools/train_net.py -- --out /home/me/lab/o",
        ),
        ("#SBATCH --gpus-per-node=2\npython train.py", "seatrial run --gpus 2 train.py"),
    ],
)
def test_what_it_starts(text: str, expected: str) -> None:
    found = training_command(text, FILES.__contains__)
    assert found is not None
    assert found.seatrial.partition("    #")[0] == expected


@pytest.mark.parametrize(
    "text",
    [
        'PYTHONPATH="$(dirname $0)/..":$PYTHONPATH \\\npython -m torch.distributed.launch --nproc_per_node=2 \\\n'
        '    $(dirname "$0")/train_net.py',
        'DIR="$( cd "$( dirname "${BASH_SOURCE[0]}" )" >/dev/null 2>&1 && pwd )"\n'
        "torchrun --nproc_per_node 2 $DIR/train_net.py",
        'cd "$(dirname "$0")"/..\ntorchrun --nproc-per-node=2 tools/train_net.py',
        "cd `dirname $0`\ntorchrun --nproc-per-node=2 train_net.py",
    ],
)
def test_the_folder_of_the_shell_script_itself(text: str) -> None:
    found = training_command(text, FILES.__contains__, own="tools")
    assert found is not None and found.seatrial == "seatrial run --gpus 2 tools/train_net.py"


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
    assert (
        caught.value.run is not None and caught.value.run == 'seatrial run train.py -- --x "$HOME"    # fill in $HOME'
    )


def test_a_makefiles_variables_have_the_values_that_it_gives_them(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "Makefile").write_text("PY := python3\nLR ?= 0.1\nARGS = --lr $(LR)\nfit:\n\t$(PY) train.py ${ARGS}\n")
    with pytest.raises(TargetError) as caught:
        resolve_target(["Makefile"], None, None, tmp_path, ())
    assert caught.value.run == "seatrial run train.py -- --lr 0.1"
    assert caught.value.cause == "its line 5 runs: python3 train.py --lr 0.1"


@pytest.mark.parametrize(
    ("name", "text"),
    [("job.slurm", "torchrun --nproc_per_node 2 train.py\n"), ("submit", "#!/usr/bin/env bash\npython train.py\n")],
)
def test_a_batch_script_of_any_name_is_a_shell_script(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / name).write_text(text)
    with pytest.raises(TargetError, match=f"{name} is a shell script, not Python") as caught:
        resolve_target([name], None, None, tmp_path, ())
    assert caught.value.run is not None and caught.value.run.endswith("train.py")


def test_a_script_for_sbatch_alone_is_answered_with_the_script(tmp_path: Path) -> None:
    (tmp_path / "fit.py").touch()
    (tmp_path / "conftest.py").touch()
    (tmp_path / "go.sh").write_text("#!/bin/bash\n#SBATCH --gres=gpu:1\nsource activate x\n$RUNNER\n")
    with pytest.raises(TargetError, match="shell script") as caught:
        resolve_target(["go.sh"], None, None, tmp_path, ())
    assert caught.value.run == "seatrial run fit.py"
    assert caught.value.cause is not None and "sbatch" in caught.value.cause


def test_what_is_to_be_filled_in_is_named() -> None:
    found = training_command('N=$1\ntorchrun --nproc_per_node $N train.py "$@" $LR', FILES.__contains__)
    assert found is not None
    assert found.typed == 'torchrun --nproc_per_node $N train.py "$@" $LR'
    assert found.seatrial.partition("    # ")[2] == "fill in $N, $LR; append what $@ stands for"


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("mpirun -np 8 --hostfile my.hosts python train.py", ""),
        ("mpirun -np 8 -machinefile my.hosts python train.py", ""),
        ("mpiexec -n 8 --machinefile=my.hosts python train.py", ""),
        ("horovodrun -np 8 -hostfile my.hosts python train.py", ""),
        ("#SBATCH --gres=gpu:4\nmpirun -np 8 --hostfile my.hosts python train.py", "--gpus 4 "),
    ],
)
def test_machines_that_a_file_lists_are_for_the_user_to_name(text: str, gpus: str) -> None:
    found = training_command(text, FILES.__contains__)
    note = "add --nodes with the machines that my.hosts lists" + ("" if gpus else " and --gpus with the GPUs of each")
    assert found is not None and found.seatrial == f"seatrial run {gpus}train.py    # {note}"


def test_a_script_of_another_kind_runs_in_an_image(tmp_path: Path) -> None:
    (tmp_path / "get data.sh").write_bytes(b"\xff\xfecurl x\n")
    with pytest.raises(TargetError) as caught:
        resolve_target(["get data.sh"], None, None, tmp_path, ())
    assert caught.value.run == "seatrial run --image python:3.11-slim-bookworm -- bash 'get data.sh'"
