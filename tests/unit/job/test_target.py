from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from collections.abc import Collection
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from seatrial.errors import TargetError
from seatrial.job.model import Target
from seatrial.job.reading.parsed_modules import notebook_error
from seatrial.job.shell_scripts import read_shell
from seatrial.job.target import python_command, resolve_target
from tables import cases

RECIPES = ("digits", "mnist")


def in_our_words(words: list[str], here: Path, recipes: Collection[str] = ()) -> list[str] | None:
    command = python_command(words, here, recipes)
    return command.words() if command else None


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    scripts = ("train.py", "src/pkg/net.py", "src/pkg/__init__.py", "tools/eval.py", ".venv/x.py")
    for name in (*scripts, "run.sh", "lab.ipynb"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / "mnist").mkdir()
    (folder / "pyproject.toml").write_text('[project.scripts]\nlearn = "pkg.net:main"\nother = "elsewhere:main"\n')
    (tmp_path / "elsewhere.py").touch()
    (folder / "link.py").symlink_to(tmp_path / "elsewhere.py")
    return folder


@pytest.mark.parametrize(
    ("words", "module", "image", "target"),
    [
        (["train.py", "--epochs", "5"], None, None, Target(kind="script", value="train.py", args=("--epochs", "5"))),
        (["./tools/../tools/eval.py"], None, None, Target(kind="script", value="tools/eval.py")),
        (["./-train.py"], None, None, Target(kind="script", value="./-train.py")),  # to Python, no option
        (["mnist"], None, None, Target(kind="recipe", value="mnist")),  # though a folder is called so
        (["--lr", "1"], "pkg.net", None, Target(kind="module", value="pkg.net", args=("--lr", "1"))),
        ([], "pre-train.train", None, Target(kind="module", value="pre-train.train")),
        ([], "torch.distributed.run", None, Target(kind="module", value="torch.distributed.run")),
        ([], None, "trainer:1", Target(kind="image", value="")),
        (["bash", "-c", "ls"], None, "trainer:1", Target(kind="image", value="", args=("bash", "-c", "ls"))),
        (["train.py"], None, "trainer:1", Target(kind="script", value="train.py")),
        (["/opt/app/train.py"], None, "trainer:1", Target(kind="image", value="", args=("/opt/app/train.py",))),
    ],
)
def test_targets(project: Path, words: list[str], module: str | None, image: str | None, target: Target) -> None:
    (project / "-train.py").touch()
    assert resolve_target(words, module, image, project, RECIPES) == target


REFUSED = {
    "nothing": ([], None, None),
    "misspelled script": (["traim.py"], None, None),
    "misspelled recipe": (["mnits"], None, None),
    "elsewhere in the project": (["eval.py"], None, None),
    "without its suffix": (["train"], None, None),
    "nothing like it": (["zzzzzz.py"], None, None),
    "folder": (["tools"], None, None),
    "command of another project": (["other"], None, None),
    "folder without scripts": (["mnist/"], None, None),
    "notebook": (["lab.ipynb"], None, None),
    "shell script": (["run.sh"], None, None),
    "outside": (["../elsewhere.py"], None, None),
    "link to outside": (["link.py"], None, None),
    "module of the project": ([], "pkg.nett", None),
    "no module name": ([], "src/train.py", None),
    "script missing with an image": (["traim.py"], None, "trainer:1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_targets(project: Path, name: str, snapshot: SnapshotAssertion) -> None:
    words, module, image = REFUSED[name]
    with pytest.raises(TargetError) as caught:
        resolve_target(words, module, image, project, RECIPES)
    text = f"{caught.value.message} | {caught.value.cause} | {caught.value.run}"
    assert text.replace(str(project), "PROJECT").replace(str(project.parent), "PARENT") == snapshot


@cases("name", "text", "kind", "run")
def test_a_file_of_another_kind_is_called_by_its_name(project: Path, name: str, text: str, kind: str, run: str) -> None:
    (project / name).write_text(text)
    with pytest.raises(TargetError, match=f"is {kind}") as caught:
        resolve_target([name], None, None, project, RECIPES)
    assert caught.value.run == run


@cases("files", "here", "run")
def test_nothing_to_run_reports_what_is_here(tmp_path: Path, files: list[str], here: str, run: str) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(TargetError) as caught:
        resolve_target([], None, None, tmp_path, ("mnist", "digits"))
    assert caught.value.message == f"nothing to run: name a script, a recipe or -m module; {here}"
    assert caught.value.run == run


@cases("words", "text", "message", "cause", "run")
def test_a_command_that_has_no_words_of_ours_is_refused(
    tmp_path: Path, words: str, text: str, message: str, cause: str, run: str
) -> None:
    for name in ("train.py", "other.py"):
        (tmp_path / name).touch()
    (tmp_path / "job.sh").write_text(text)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/train.py").touch()
    with pytest.raises(TargetError) as refusal:
        in_our_words(words.split(), tmp_path)
    assert message in refusal.value.message and cause in str(refusal.value.cause)
    assert (refusal.value.run or "") == run


@cases("file", "text", "typed", "cause")
def test_a_task_that_is_not_read_is_refused_with_its_reason(
    tmp_path: Path, file: str, text: str, typed: str, cause: str
) -> None:
    (tmp_path / file).write_text(text)
    with pytest.raises(TargetError, match="does not read what") as refusal:
        in_our_words(typed.split(), tmp_path)
    assert cause in str(refusal.value.cause)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("dvc repro fit", "train.py -- --lr 0.1"),
        ("dvc exp run fit", "train.py -- --lr 0.1"),
        ("mlflow run . -P lr=2", "train.py -- --lr 2 --n 3"),
        ("mlflow run -e main .", "train.py -- --lr 1 --n 3"),
        ("mlflow run . -Plr='2 3' --param-list=more='$(x)'", "train.py -- --lr '2 3' --n 3 --more '$(x)'"),
    ],
)
def test_a_stage_of_dvc_and_an_entry_point_of_mlflow_have_their_values(tmp_path: Path, typed: str, words: str) -> None:
    stages = (
        "stages:\n  fit:\n    cmd: python train.py --lr ${fit.lr}\n    deps: [train.py]\n  test:\n    cmd: pytest\n"
    )
    (tmp_path / "dvc.yaml").write_text(stages)
    (tmp_path / "params.yaml").write_text("fit:\n  lr: 0.1\n")
    values = "{lr: {type: float, default: 1}, n: {default: 3}}"
    main = f"{{parameters: {values}, command: 'python train.py --lr {{lr}} --n {{n}}'}}"
    (tmp_path / "MLproject").write_text(f"name: x\nentry_points:\n  main: {main}\n")
    assert shlex.join(in_our_words(shlex.split(typed), tmp_path) or ()) == words
    refused = {"dvc exp run -S lr=2": "params.yaml", "dvc exp run --set-param=lr=2 fit": "params.yaml"}
    refused |= {"dvc repro fat": "no stage of the name fat", "mlflow run . -e fit": "no command of an entry point fit"}
    for other, cause in {**refused, "mlflow run fit -e X": "no folder here that has a file MLproject"}.items():
        with pytest.raises(TargetError, match="does not read") as refusal:
            in_our_words(other.split(), tmp_path)
        assert cause in str(refusal.value.cause)
    assert in_our_words(["dvc", "exp", "show"], tmp_path) is None


def test_a_stage_of_dvc_comes_behind_those_that_make_its_inputs(tmp_path: Path) -> None:
    fit = "  fit:\n    cmd: python train.py ${all} # x\n    deps: [data/x/a.csv]\n    outs: [model.pt]\n"
    others = "  test:\n    cmd: python test.py\n    deps: [model.pt]\n    outs:\n"
    others += "  load:\n    cmd: python load.py\n    outs:\n    - data/x:\n        cache: false\n"
    (tmp_path / "dvc.yaml").write_text(f"stages:\n{fit}{others}")
    (tmp_path / "params.yaml").write_text("all: true\n")
    for name in ("train.py", "test.py", "load.py"):
        (tmp_path / name).touch()
    with pytest.raises(TargetError, match="starts Python 2 times") as refusal:
        in_our_words(["dvc", "repro", "fit"], tmp_path)
    assert refusal.value.run == "seatrial run load.py\nseatrial run train.py -- true"
    assert in_our_words(["dvc", "repro", "-s", "fit"], tmp_path) == ["train.py", "--", "true"]


def test_no_value_of_a_secret_in_a_script_is_shown(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    start = "python train.py --key $MY_TOKEN"
    text = f"export WANDB_API_KEY=abcdef1 TOKENIZER=gpt2-medium\nMY_TOKEN='qwertz+2'\n{start}\n"
    (tmp_path / "j.sh").write_text(f"{text}wandb login --relogin abcdef1\npython train.py\n")
    with pytest.raises(TargetError, match="does more") as refusal:
        in_our_words(["bash", "j.sh"], tmp_path)
    shown = f"{refusal.value.cause}\n{refusal.value.run}"
    assert "abcdef1" not in shown and "qwertz" not in shown
    assert "--env WANDB_API_KEY=$WANDB_API_KEY --env TOKENIZER=gpt2-medium train.py" in shown
    (tmp_path / "j.sh").write_text(text)
    command = python_command(["bash", "j.sh"], tmp_path)
    assert command and command.arguments == ("--key", "qwertz+2") and "qwertz" not in command.typed()
    with pytest.raises(TargetError, match="mpirun") as refusal:
        in_our_words(["A=1", "API_KEY=topsecret", "mpirun", "-np", "2", "python", "train.py"], tmp_path)
    assert refusal.value.run == "seatrial run --env A=1 --env API_KEY=$API_KEY --gpus 2 train.py"


@pytest.mark.parametrize(
    ("typed", "message", "run"),
    [
        ("composer -n 2 train.py --lr 1", "does not read what composer starts", "--gpus 2 train.py -- --lr 1"),
        ("foo --gpus 2 train.py --lr 1", "does not read what foo starts", "--gpus 2 train.py -- --lr 1"),
        ("papermill lab.ipynb out.ipynb", "runs the notebook lab.ipynb", "lab.py"),
        ("dvc repro", "recipe dvc not found", "train.py"),
    ],
)
def test_an_unknown_program_is_refused_with_what_it_would_start(
    project: Path, typed: str, message: str, run: str
) -> None:
    with pytest.raises(TargetError, match=message) as refusal:
        resolve_target(typed.split(), None, None, project, RECIPES)
    assert str(refusal.value.run).endswith(f"seatrial run {run}") and (refusal.value.instead is None)


def test_an_unknown_program_with_a_launchers_unknown_option_is_refused(project: Path) -> None:
    typed = "foo python -u -m torch.distributed.run --bogus 1 train.py"
    with pytest.raises(TargetError, match="is a launcher") as refusal:
        resolve_target(typed.split(), None, None, project, RECIPES)
    assert "--bogus" in str(refusal.value.cause)


def test_an_invoke_task_gets_its_values_and_a_taskfile_gets_the_typed_words(tmp_path: Path) -> None:
    run = 'ctx.run(f"python src/{NAME}/train.py --lr {lr} --seed {seed}", pty=True)'
    (tmp_path / "tasks.py").write_text(f'NAME = "net"\n@task\ndef fit_all(ctx, seed, lr=0.1):\n    {run}\n')
    typed = ["invoke", "fit-all", "--seed=7"]
    assert in_our_words(typed, tmp_path) == ["src/net/train.py", "--", "--lr", "0.1", "--seed", "7"]
    with pytest.raises(TargetError, match="needs values for seed"):
        in_our_words(typed[:2], tmp_path)
    with pytest.raises(TargetError) as refusal:
        in_our_words(["inv", "test"], tmp_path)
    assert refusal.value.cause == "the tasks of tasks.py are fit_all"
    (tmp_path / "Taskfile.yml").write_text("tasks: {fit: {cmds: ['python train.py {{.CLI_ARGS}}'], desc: x}}\n")
    assert in_our_words(["task", "fit", "--", "--lr", "3"], tmp_path) == ["train.py", "--", "--lr", "3"]


def test_a_task_has_its_folder_its_variables_and_what_it_depends_on(tmp_path: Path) -> None:
    text = '[tasks]\na = "export B=2"\nt = {cmd = "python t.py $A", env = {A = "1"}, depends-on = ["a"]}\n'
    (tmp_path / "pixi.toml").write_text(f'{text}u = {{cmd = "python t.py", cwd = "sub", depends-on = "none"}}')
    assert in_our_words(["pixi", "run", "t"], tmp_path) == ["--env", "B=2", "--env", "A=1", "t.py", "--", "1"]
    twice = "".join(f't{at} = {{cmd = "ls", depends-on = ["t{at + 1}", "t{at + 1}"]}}\n' for at in range(18))
    (tmp_path / "pyproject.toml").write_text(
        f'[tool.pixi.activation.env]\n"(" = "1"\n[tool.pixi.tasks]\n{twice}t18 = "python t.py"'
    )
    assert in_our_words(["pixi", "run", "t0"], tmp_path) == ["t.py"]
    with pytest.raises(TargetError) as refusal:
        in_our_words(["pixi", "run", "u"], tmp_path)
    assert "depends on none" in str(refusal.value.cause)


@pytest.mark.parametrize(
    "typed",
    [
        "sbatch -p gpu --gres=gpu:1 job.sh 1",
        "sbatch --wrap='module load x; python sub/train.py --lr 1'",
        "bsub -q gpu -n 1 bash -c 'python sub/train.py --lr 1'",
        "qsub -l nodes=1 job.sh 1",
        "bash -c 'python sub/train.py --lr 1'",
        "nohup bash job.sh 1",
        "srun --gres=gpu:1 bash job.sh 1",
        "time ./job.sh 1",
    ],
)
def test_what_a_batch_system_would_start_is_started(tmp_path: Path, typed: str) -> None:
    (tmp_path / "job.sh").write_text("#PBS -q gpu\ncd $PBS_O_WORKDIR\npython sub/train.py --lr $1\n")
    gpus = ["--gpus", "1"] if "--gres" in typed else []
    assert in_our_words(shlex.split(typed), tmp_path) == [*gpus, "sub/train.py", "--", "--lr", "1"]


@pytest.mark.parametrize(
    ("typed", "lines", "words"),
    [
        ("sbatch j.sh", "#SBATCH --gres=gpu:a100:2,tmpfs:9\n#SBATCH -t 90", "--gpus 2 --timeout 90m"),
        ("sbatch --gpus=1 j.sh", "#SBATCH --gpus-per-node=4\n#SBATCH --time=1-12", "--gpus 1 --timeout 1d12h"),
        ("bash j.sh", "#SBATCH --gpus-per-task=v100:2 # two\n#SBATCH --ntasks=2\n", "--gpus 4"),
        ("j.sh", "##SBATCH --gres=gpu:3\n#SBATCH --gres=gpu\n#SBATCH --time 02:30:00", "--gpus 1 --timeout 2h30m"),
        ("j.sh", "#PBS -l select=1:ncpus=8:ngpus=2 -l walltime=24:00:00", "--gpus 2 --timeout 24h"),
        ("j.sh", "#PBS -l select=1:ngpus=1 -l walltime=3600", "--gpus 1 --timeout 3600s"),
        ("j.sh", '#BSUB -q gpu -gpu "num=2:mode=shared"', "--gpus 2"),
        ("j.sh", "#SBATCH --gres=gpu:0\n#SBATCH --time=0", "--gpus none"),
        ("j.sh", "#SBATCH --gres=gpu:4\nexport CUDA_VISIBLE_DEVICES=2,3", "--gpus device=2,3"),
        ("srun -n1 --gres=gpu:2 -t 5:30 python train.py", "", "--gpus 2 --timeout 5m30s"),
        ("CUDA_VISIBLE_DEVICES=1,3 torchrun --nproc_per_node=2 train.py", "", "--gpus device=1,3 --launcher torchrun"),
        ("accelerate launch --gpu_ids 1,3 train.py", "", "--gpus device=1,3 --launcher torchrun"),
        ("CUDA_VISIBLE_DEVICES=GPU-8f2a python train.py", "", "--gpus device=GPU-8f2a"),
    ],
)
def test_a_request_for_gpus_and_time_becomes_ours(tmp_path: Path, typed: str, lines: str, words: str) -> None:
    (tmp_path / "j.sh").write_text(f"#!/bin/bash\n{lines}\nmodule load cuda\nsource activate e\nsrun python train.py\n")
    assert sorted(in_our_words(typed.split(), tmp_path) or ()) == sorted([*words.split(), "train.py"])


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("#SBATCH --gres=gpu:a100:3", "--gpus 3 --launcher torchrun train.py -- --job"),
        ("#SBATCH -N 1 --gpus-per-node=2", "--gpus 2 --launcher torchrun train.py -- --job"),
        ("", "other.py"),
    ],
)
def test_a_batch_job_sees_the_nodes_and_gpus_that_it_requests(tmp_path: Path, lines: str, words: str) -> None:
    start = "torchrun --nnodes=$SLURM_NNODES --nproc_per_node=$SLURM_GPUS_ON_NODE train.py --job"
    text = f'{lines}\nif [[ $SLURM_JOB_ID != "" ]]; then {start}; else python other.py; fi\n'
    (tmp_path / "j.sh").write_text(text)
    assert in_our_words(["bash", "j.sh"], tmp_path) == words.split()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("for i in 1 2; do for j in 3 4; do ((j > 3)) && continue 2; break 2; done; done; python train.py $i$j", "13"),
        ("for i in 1 2; do for j in 3 4; do ((j > 3)) && continue 2; done; break; done; python train.py $i$j", "24"),
        ("command -v uv || curl -Ls https://x.org/install.sh | sh\npython train.py 3", "3"),
    ],
)
def test_a_script_goes_on_behind_ended_loops_and_an_installer(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "j.sh").write_text(text)
    assert in_our_words(["bash", "j.sh"], tmp_path) == ["train.py", "--", words]


def test_a_launcher_takes_the_dashes_behind_its_script_away_and_python_does_not(tmp_path: Path) -> None:
    (tmp_path / "j.sh").write_text("#SBATCH -N 2\ntorchrun --nnodes=$SLURM_JOB_NUM_NODES -m train -- --lr 1\n")
    words = ["--nodes", "2", "--launcher", "torchrun", "-m", "train", "--", "--lr", "1"]
    assert in_our_words(["sbatch", "j.sh"], tmp_path) == words
    (tmp_path / "j.sh").write_text("python -m train -- --lr 1\n")
    assert in_our_words(["bash", "j.sh"], tmp_path) == ["-m", "train", "--", "--", "--lr", "1"]


def test_commands_of_known_packages_start_their_modules_or_name_their_functions(tmp_path: Path) -> None:
    words = ["-m", "fairseq_cli.hydra_train", "--", "task.data=x"]
    assert in_our_words(["fairseq-hydra-train", "task.data=x"], tmp_path) == words
    (tmp_path / "j.sh").write_text("fairseq-train data --arch x\n")
    assert in_our_words(["bash", "j.sh"], tmp_path) == ["-m", "fairseq_cli.train", "--", "data", "--arch", "x"]
    with pytest.raises(TargetError, match=r"yolo calls entrypoint\(\) of ultralytics.cfg, which -m") as refusal:
        in_our_words(["yolo", "train"], tmp_path)
    assert refusal.value.run == "seatrial run yolo.py"


@pytest.mark.parametrize("lines", ["-N 1 -J tune", '--job-name="tune" -N 3dnet'])
def test_a_batch_job_has_an_id_and_a_name_and_asks_for_its_place_in_an_array(tmp_path: Path, lines: str) -> None:
    (tmp_path / "train.py").touch()
    text = f"#SBATCH {lines}\n#SBATCH --cpus-per-task=8\nrates=(1 2)\n"
    start = "python train.py --run $SLURM_JOB_NAME-$SLURM_JOB_ID --workers $SLURM_CPUS_PER_TASK"
    (tmp_path / "j.sh").write_text(f"{text}{start}\n")
    words = in_our_words(["bash", "j.sh"], tmp_path)
    assert re.fullmatch(r"train.py -- --run tune-\d+ --workers 8", " ".join(words or ()))
    (tmp_path / "j.sh").write_text(f"{text}python train.py --lr ${{rates[SLURM_ARRAY_TASK_ID]}}\n")
    with pytest.raises(TargetError, match="needs values for SLURM_ARRAY_TASK_ID") as refusal:
        in_our_words(["bash", "j.sh"], tmp_path)
    assert refusal.value.run == "seatrial run -e SLURM_ARRAY_TASK_ID=VALUE j.sh"
    command = python_command(["bash", "j.sh"], tmp_path, (), ["SLURM_ARRAY_TASK_ID=1"])
    assert command and command.arguments == ("--lr", "2")


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("srun python train.py", "--nodes 2 --gpus 4 train.py"),
        ("srun -N1 python train.py", "--gpus 4 train.py"),
        ("python train.py --nodes 2", "--gpus 4 train.py -- --nodes 2"),
    ],
)
def test_srun_starts_a_program_on_each_node(tmp_path: Path, typed: str, words: str) -> None:
    (tmp_path / "j.sh").write_text(f"#SBATCH --nodes=2\n#SBATCH --gres=gpu:4\n{typed}\n")
    assert " ".join(in_our_words(["sbatch", "j.sh"], tmp_path) or ()) == words


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("-l 2 -v -n a b", "--lr 2 --name a --verbose b"),
        ("-l2 -- -n b", "--lr 2 --name x -n b"),
        ("-v -l 3 -n -v", "--lr 3 --name -v --verbose"),
        ("-vl3 -vn b -- -vl", "--lr 3 --name b --verbose -vl"),
        ("", "--lr 1 --name x"),
    ],
)
def test_a_script_takes_its_options_as_getopts_does(tmp_path: Path, typed: str, words: str) -> None:
    cases = "l) LR=$OPTARG ;;\n n) NAME=$OPTARG ;;\n v) V=--verbose ;;\n *) exit 1 ;;\n"
    loop = f'while getopts ":l:n:v" opt; do\n case "$opt" in\n {cases} esac\ndone\nshift $((OPTIND - 1))\n'
    (tmp_path / "j.sh").write_text(f"LR=1 NAME=x V=\n{loop}python train.py --lr $LR --name $NAME $V $@\n")
    assert in_our_words(["bash", "j.sh", *typed.split()], tmp_path) == ["train.py", "--", *words.split()]
    for wrong in ("-z", "-l"):  # unknown, and without its value
        with pytest.raises(TargetError, match="ends before it starts Python"):
            in_our_words(["bash", "j.sh", wrong], tmp_path)


@pytest.mark.parametrize("end", ["EOT", "'EOT'"])
def test_a_script_that_a_batch_system_reads_from_a_here_document_is_started(tmp_path: Path, end: str) -> None:
    job = '#!/bin/bash\n#SBATCH --gres=gpu:2\npython train.py --lr $LR --tag "a b"'
    (tmp_path / "j.sh").write_text(f"export LR=3\nsbatch -J x << {end}\n{job}\nEOT\n")
    words = ["--env", "LR=3", "--gpus", "2", "train.py", "--", "--lr", "3", "--tag", "a b"]
    assert in_our_words(["bash", "j.sh"], tmp_path) == words


@pytest.mark.parametrize(
    "line",
    [
        "python --version",
        'python -c "import torch; print(torch.__version__)" || { echo no torch; exit 1; }',
        "cmd='python train.py --lr 1'; echo $cmd",
        "uname -a; nproc",
        'if [ "$(uname -s)" = Darwin ]; then LR=2; fi',
    ],
)
def test_what_only_shows_the_machine_is_no_second_program(tmp_path: Path, line: str) -> None:
    (tmp_path / "j.sh").write_text(f"LR=1\n{line}\npython train.py --lr $LR\n")
    assert in_our_words(["bash", "j.sh"], tmp_path) == ["train.py", "--", "--lr", "1"]


def test_a_script_that_ends_shows_nothing_of_a_check_that_may_hold(tmp_path: Path) -> None:
    check = 'python -c "import torch" || { echo no torch; exit 1; }'
    (tmp_path / "j.sh").write_text(f"{check}\nif [ ! -d data ]; then echo no data; exit 1; fi\npython train.py\n")
    with pytest.raises(TargetError, match="ends before it starts Python") as refusal:
        in_our_words(["bash", "j.sh"], tmp_path)
    assert "it prints: no data)" in str(refusal.value.cause)


def test_arguments_that_a_check_may_take_away_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "j.sh").write_text("export A=1\nunset A\nif [ -d /data ]; then shift; fi\npython train.py $1\n")
    with pytest.raises(TargetError, match="cannot read") as refusal:
        in_our_words(["bash", "j.sh", "a", "b"], tmp_path)
    assert "j.sh:3: if" in str(refusal.value.cause) and "--env" not in str(refusal.value.run)


def test_python_that_runs_the_projects_code_is_a_second_program(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    for code in ("import train; print(train)", "import os; print(os.system('./x'))"):
        (tmp_path / "j.sh").write_text(f'python -c "{code}"\npython train.py\n')
        with pytest.raises(TargetError, match="does more than start Python"):
            in_our_words(["bash", "j.sh"], tmp_path)


def test_a_job_of_several_nodes_asks_for_them(tmp_path: Path) -> None:
    (tmp_path / "j.sh").write_text("#SBATCH --nodes=2\ntorchrun --nnodes=$SLURM_NNODES train.py\n")
    assert in_our_words(["sbatch", "j.sh"], tmp_path) == ["--nodes", "2", "--launcher", "torchrun", "train.py"]
    typed = "accelerate launch --num_machines 2 --machine_rank 0 --num_processes 8 train.py"
    words = ["--nodes", "2", "--gpus", "4", "--launcher", "torchrun", "train.py"]
    assert in_our_words(typed.split(), tmp_path) == words


def test_a_batch_jobs_tasks_are_counted_and_an_inner_script_has_the_jobs_nodes(tmp_path: Path) -> None:
    (tmp_path / "in.sh").write_text("torchrun --nnodes=$SLURM_NTASKS train.py --all $SLURM_NNODES\n")
    (tmp_path / "in.sh").chmod(0o755)
    (tmp_path / "j.sh").write_text("#SBATCH --nodes=3\n#SBATCH --ntasks-per-node=1\nsrun ./in.sh\n")
    words = ["--nodes", "3", "--launcher", "torchrun", "train.py", "--", "--all", "3"]
    assert in_our_words(["sbatch", "j.sh"], tmp_path) == words


def test_a_command_that_srun_starts_several_times_is_refused_with_as_many_gpus(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    with pytest.raises(TargetError, match="srun is a launcher") as refusal:
        in_our_words(["srun", "-n", "4", "python", "train.py", "--lr", "1"], tmp_path)
    assert refusal.value.run == "seatrial run --gpus 4 train.py -- --lr 1"


def test_a_loop_that_counts_starts_each_of_its_commands(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    loop = "S=(7 9)\nfor ((i=0; i<${#S[@]}; i++)); do python train.py --seed ${S[$i]} --of ${S[i]}; done\n"
    (tmp_path / "j.sh").write_text(loop)
    with pytest.raises(TargetError, match="starts Python 2 times") as refusal:
        in_our_words(["bash", "j.sh"], tmp_path)
    runs = "seatrial run train.py -- --seed 7 --of 7\nseatrial run train.py -- --seed 9 --of 9"
    assert refusal.value.run == runs
    (tmp_path / "j.sh").write_text(
        "n=5\nfor ((i=3; i>0; i--)); do ((i == 2)) && continue; python train.py $i $((n++)) $((3 > i > 1)); done\n"
    )
    with pytest.raises(TargetError, match="cannot read") as refusal:
        in_our_words(["bash", "j.sh"], tmp_path)
    assert refusal.value.run == "seatrial run train.py -- 3 5 VALUE\nseatrial run train.py -- 1 6 VALUE"
    (tmp_path / "j.sh").write_text("N=$(wc -l < x)\nfor ((i=1; i<=N; ++i)); do python train.py; done\n")
    with pytest.raises(TargetError, match=r"cannot|does more|not Python"):
        in_our_words(["bash", "j.sh"], tmp_path)


def test_loops_end_at_break_and_arithmetic_is_computed(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    options = (
        'while true; do [ -z "${1:-}" ] && break; case $1 in --lr) lr=$2; shift 2;; *) shift; continue;; esac; done\n'
    )
    (tmp_path / "options.sh").write_text(options)
    rest = "A=(7 9)\nfor i in ${!A[@]}; do if ((i > 0)); then break; fi; n=$((${A[i]} * 2)); done\n"
    (tmp_path / "j.sh").write_text(f". ./options.sh\n{rest}python -um train --lr $lr -n $n --of $((X + 1))\n")
    with pytest.raises(TargetError, match="cannot read") as refusal:
        in_our_words(["bash", "j.sh", "-v", "--lr", "3"], tmp_path)
    assert refusal.value.run == "seatrial run -m train -- --lr 3 -n 14 --of VALUE"
    (tmp_path / "j.sh").write_text("declare -A A=([3]=0)\nread -p ok B\npython train.py ${!A[@]} ${A[3]} $B\n")
    with pytest.raises(TargetError, match="cannot read") as refusal:
        in_our_words(["bash", "j.sh"], tmp_path)
    assert refusal.value.run == "seatrial run train.py -- VALUE VALUE VALUE"


@pytest.mark.parametrize(
    ("expression", "value"),
    [("i++ + 1", "4"), ("--i", "2"), ("-7 / 2", "-3"), ("i += 2 * (n - 1)", "17"), ("n % i == 2", "1")]
    + [
        ("i > 2 && n < 9", "1"),
        ("i > 3 || n < 8", "0"),
        ("-i", "-3"),
        ("(0 - n) % i", "-2"),
        ("7 % -2", "1"),
        ("sum * 2", "10"),
    ]
    + [(each, "VALUE") for each in ("1 << 99", "__import__('os')", "i++ + X", "9" * 5000, "n ? 1 : 2", "08")]
    + [("(i *= 2) > n - 1", "VALUE"), ("i <<= 2", "VALUE"), ("i |= 4", "VALUE")],
)
def test_arithmetic_is_that_of_the_shell_and_evaluates_no_python(tmp_path: Path, expression: str, value: str) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "j.sh").write_text(f"i=3 n=8 sum=2+i\nA=$(({expression}))\npython train.py $A\npython train.py $i\n")
    with pytest.raises(TargetError) as refusal:
        in_our_words(["bash", "j.sh"], tmp_path)
    after = {"i++ + 1": "4", "--i": "2", "i += 2 * (n - 1)": "17", "i++ + X": "VALUE"}.get(expression, "3")
    after = "VALUE" if "= " in expression and value == "VALUE" else after
    assert refusal.value.run == f"seatrial run train.py -- {value}\nseatrial run train.py -- {after}"


def test_a_script_of_a_deeper_folder_is_named_though_its_own_files_end_it_there(tmp_path: Path) -> None:
    (tmp_path / "a/local").mkdir(parents=True)
    (tmp_path / "a/local/prepare.py").touch()
    (tmp_path / "a/path.sh").write_text('echo "$PWD/kaldi is missing"; exit 1\n')
    (tmp_path / "a/run.sh").write_text(". ./path.sh\npython local/prepare.py\nfairseq-train x\n")
    with pytest.raises(TargetError, match=r"finds local/prepare.py from its own folder alone"):
        in_our_words(["bash", "a/run.sh"], tmp_path)
    with pytest.raises(TargetError, match="ends before it starts Python") as refusal:
        in_our_words(["bash", "run.sh"], tmp_path / "a")
    assert "it prints: ./kaldi is missing" in (refusal.value.cause or "")
    assert refusal.value.run == "sed -n 1,1p path.sh"


@pytest.mark.parametrize("typed", ["sbatch --export=ALL,LR=3", "qsub -v B=2,LR=3", "sbatch --export ALL,LR=3 -J x"])
def test_a_batch_job_has_the_variables_that_its_command_sets(tmp_path: Path, typed: str) -> None:
    (tmp_path / "j.sh").write_text("python train.py --lr $LR $@\n")
    (tmp_path / "all.sh").write_text(f"{typed} j.sh -v C=1\n")
    for words in ([*typed.split(), "j.sh", "-v", "C=1"], ["bash", "all.sh"]):
        read = in_our_words(words, tmp_path) or []
        assert read[read.index("train.py") :] == ["train.py", "--", "--lr", "3", "-v", "C=1"]
        assert "LR=3" in read and "C=1" not in read[: read.index("train.py")]


def test_a_script_of_missing_programs_alone_names_them(tmp_path: Path) -> None:
    (tmp_path / "j.sh").write_text("for i in {1..300}; do python lost.py $i; done\n")
    with pytest.raises(TargetError, match=r"j.sh starts lost.py, which does not exist$") as refusal:
        in_our_words(["bash", "j.sh"], tmp_path)
    assert refusal.value.run == "seatrial run lost.py -- 1"


@pytest.mark.parametrize("words", [["models/slim/train.py"], ["bash", "models/run.sh"], ["bash", "j.sh"]])
def test_a_script_below_an_empty_submodule_is_fetched_with_it(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "j.sh").write_text("cp a b\npython models/slim/train.py\n")
    (tmp_path / "train.py").write_text("import torch\n")
    (tmp_path / ".gitmodules").write_text('[submodule "m"]\n\tpath = models\n\turl = https://git.example/m.git\n')
    (tmp_path / "models").mkdir()

    def start(words: list[str]) -> object:
        return in_our_words(words, tmp_path) if words[1:] else resolve_target(words, None, None, tmp_path, {})

    with pytest.raises(TargetError, match=r"not found in|which does not exist$") as refusal:
        start(words)
    assert refusal.value.run == "git submodule update --init --recursive models   # models is empty"
    (tmp_path / "models/README.md").touch()
    with pytest.raises(TargetError) as refusal:
        start(words)
    assert "git submodule" not in (refusal.value.run or "")


def test_the_folder_in_which_a_script_finds_its_program_is_named(tmp_path: Path) -> None:
    (tmp_path / "a/moco").mkdir(parents=True)
    (tmp_path / "a/scripts/deep").mkdir(parents=True)
    (tmp_path / "a/moco/main.py").touch()
    (tmp_path / "a/scripts/deep/j.sh").write_text("cd ../moco; python main.py --lr $1\n")
    with pytest.raises(TargetError, match=r"finds main.py from \S*a/scripts alone") as refusal:
        in_our_words(["bash", "a/scripts/deep/j.sh", "1"], tmp_path)
    assert (refusal.value.run or "").endswith("a/scripts && seatrial run bash deep/j.sh 1)")


def test_the_authors_folder_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "j.sh").write_text("cd /home/me/project\npython train.py\ndeactivate\n")
    command = python_command(["bash", "j.sh"], tmp_path)
    assert command is not None
    assert (command.words(), command.left) == (["train.py"], ("cd /home/me/project",))


def test_a_script_that_prints_its_usage_is_refused_with_that(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "j.sh").write_text("[ $# -ne 1 ] && echo Usage: $0 NAME && exit 1\npython train.py $1\n")
    with pytest.raises(TargetError, match="ends before it starts Python") as refusal:
        in_our_words(["bash", "j.sh"], tmp_path)
    assert refusal.value.run == "seatrial run j.sh NAME"
    assert in_our_words(["bash", "j.sh", "x"], tmp_path) == ["train.py", "--", "x"]


def test_the_authors_place_of_the_project_is_taken_out_of_the_arguments_too(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/train.py").touch()
    (tmp_path / "j.sh").write_text("python /home/me/proj/src/train.py --config /home/me/proj/a.yaml --data /data/x\n")
    with pytest.raises(TargetError) as refusal:
        in_our_words(["bash", "j.sh"], tmp_path)
    assert refusal.value.run == "seatrial run src/train.py -- --config a.yaml --data /data/x"


@pytest.mark.parametrize(("module", "found"), [("pkg", "pkg.net"), ("deep", "sub.deep.go")])
def test_a_package_that_python_cannot_start_is_refused_with_a_module_of_it(
    project: Path, module: str, found: str
) -> None:
    for name in ("__init__.py", "go.py"):
        (project / "sub/deep").mkdir(parents=True, exist_ok=True)
        (project / "sub/deep" / name).touch()
    with pytest.raises(TargetError, match=f"the package {module} has no __main__.py") as refusal:
        resolve_target([], module, None, project, RECIPES)
    assert refusal.value.run == f"seatrial run -m {found} …"


def test_a_loop_that_only_waits_hides_no_command(tmp_path: Path) -> None:
    wait = "while [ $(jobs -r | wc -l) -ge 4 ]; do sleep 1; done"
    (tmp_path / "j.sh").write_text(f"for s in 1 2; do\n  {wait}\n  python train.py --seed $s &\ndone\n")
    (tmp_path / "train.py").touch()
    with pytest.raises(TargetError, match="starts Python 2 times") as refusal:
        in_our_words(["bash", "j.sh"], tmp_path)
    assert refusal.value.run == "seatrial run train.py -- --seed 1\nseatrial run train.py -- --seed 2"


def test_a_variable_without_a_value_is_named_with_the_option_that_gives_it_one(tmp_path: Path) -> None:
    (tmp_path / "j.sh").write_text("source .envrc\nuv sync\npython -m train --data $DATA/a --out ${OUT} --lr $1\n")
    with pytest.raises(TargetError, match="needs values for DATA, OUT") as refusal:
        in_our_words(["sbatch", "j.sh", "0.1"], tmp_path)
    assert str(refusal.value.cause).endswith("; not read: source .envrc")
    assert refusal.value.run == "seatrial run -e DATA=VALUE -e OUT=VALUE j.sh 0.1"
    command = python_command(["sbatch", "j.sh", "0.1"], tmp_path, env=["DATA=/d", "OUT=o=1", "HOST"])
    assert shlex.join(command.words() if command else ()) == "-m train -- --data /d/a --out o=1 --lr 0.1"


@pytest.mark.parametrize("word", ["$HOME", "$(ls)", "$DATA/*.txt", "$2", "${NODES:0:9}", "${TABLE[a]}"])
def test_what_no_variable_gives_gets_no_option_for_one(tmp_path: Path, word: str) -> None:
    (tmp_path / "j.sh").write_text(f"python -m train --data $DATA {word}\n")
    with pytest.raises(TargetError, match="cannot read") as refusal:
        in_our_words(["j.sh"], tmp_path)
    assert str(refusal.value.run).startswith('seatrial run -m train -- --data "$DATA" ')


def test_a_quoted_export_is_a_variable(tmp_path: Path) -> None:
    (tmp_path / "j.sh").write_text('export \'TAG=a b\' "OUT=$1/c"\npython train.py "$TAG"\n')
    words = in_our_words(["LR=1 2", "bash", "j.sh", "/x"], tmp_path)
    assert words == ["--env", "LR=1 2", "--env", "TAG=a b", "--env", "OUT=/x/c", "train.py", "--", "a b"]


@pytest.mark.parametrize("start", ["sbatch -J x j.sh", "bash j.sh", "./j.sh", "make", "pixi run go"])
def test_variables_before_any_program_are_the_runs(tmp_path: Path, start: str) -> None:
    (tmp_path / "j.sh").write_text("#!/bin/bash\npython train.py --lr $LR\n")
    (tmp_path / "Makefile").write_text("go:\n\tpython train.py --lr $(LR)\n")
    (tmp_path / "pixi.toml").write_text('[tasks]\ngo = "python train.py --lr $LR"\n')
    words = in_our_words(["LR=0.1", "CUDA_VISIBLE_DEVICES=1", *start.split()], tmp_path)
    assert words == ["--env", "LR=0.1", "--gpus", "device=1", "train.py", "--", "--lr", "0.1"]


def test_commands_of_a_script_that_is_read_in_part_are_given_in_order_with_what_is_known(tmp_path: Path) -> None:
    (tmp_path / "j.sh").write_text(
        "cd /home/them\nexport OUT=/scratch/$USER\npython a.py --out $OUT --tag $(git rev-parse HEAD) *.csv\n"
        "cd $WHERE\ntorchrun --master_port=$((RANDOM + 1)) b.py --lr 1\n"
    )
    for name in ("a.py", "b.py"):
        (tmp_path / name).touch()
    with pytest.raises(TargetError) as refusal:
        in_our_words(["bash", "j.sh"], tmp_path)
    first = 'seatrial run --env "OUT=/scratch/$USER" a.py -- --out "/scratch/$USER" --tag VALUE *.csv'
    second = 'seatrial run --env "OUT=/scratch/$USER" --launcher torchrun b.py -- --lr 1'
    assert refusal.value.run == f"{first}\n{second}"


def test_long_commands_of_a_script_are_given_whole(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    commands = [f"train.py -- --name {letter * 1500}" for letter in "ab"]
    (tmp_path / "j.sh").write_text("".join(f"python {each.replace(' -- ', ' ')}\n" for each in commands))
    with pytest.raises(TargetError) as refusal:
        in_our_words(["bash", "j.sh"], tmp_path)
    assert refusal.value.run == "\n".join(f"seatrial run {each}" for each in commands)


def test_a_script_that_ends_before_it_starts_python_is_refused_with_the_place(tmp_path: Path) -> None:
    (tmp_path / "j.sh").write_text("if [ -z ${MAIL:-} ]; then\n  exit 1\nfi\npython train.py\n")
    with pytest.raises(TargetError) as refusal:
        in_our_words(["bash", "j.sh"], tmp_path)
    assert str(refusal.value.cause).endswith("j.sh:2: exit 1 (the script ends here)")


def test_what_a_job_script_does_also_does_is_shown(tmp_path: Path) -> None:
    lines = "#SBATCH --gres=gpu:2\n#SBATCH --mem=8G\nmodule load cuda\nsource activate e\npip install x\n"
    (tmp_path / "j.sh").write_text(f"{lines}if nvidia-smi; then mkdir -p o; fi\nsrun python train.py\n")
    command = python_command(["sbatch", "j.sh"], tmp_path)
    left = ("--mem=8G", "module load cuda", "source activate e", "pip install x", "mkdir -p o")
    assert command is not None and command.left == left


@pytest.mark.parametrize(
    "text",
    [
        'bsub -q gpu sh -c "cd /share/me/sub && python train.py --lr 1"',
        "cd /home/me/sub; apptainer exec --nv a.sif ./train.py --lr 1",
        'cd sub; A=1 queue run -n$1 "python train.py --lr 1 2>&1 | tee log"',
    ],
)
def test_a_command_in_an_unknown_one_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.sh").write_text(text)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/train.py").touch()
    with pytest.raises(TargetError, match="does more than start Python") as refusal:
        in_our_words(["bash", "job.sh", "1"], tmp_path)
    assert re.fullmatch(r"\(cd sub && seatrial run (--env A=1 )?(./)?train.py -- --lr 1\)", str(refusal.value.run))


def test_a_script_that_finds_python_from_its_own_folder_alone_is_started_there(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "train.py").touch()
    (tmp_path / "scripts/x.sh").write_text("python ../train.py --cfg=../cfg.yaml\n")
    with pytest.raises(TargetError, match=r"scripts/x\.sh finds \.\./train\.py from its own folder alone") as refusal:
        in_our_words(["bash", "scripts/x.sh", "1"], tmp_path)
    assert re.fullmatch(r"\(cd \S*scripts && seatrial run bash x.sh 1\)", str(refusal.value.run))
    assert in_our_words(["bash", "x.sh"], tmp_path / "scripts") is not None


def test_an_entry_point_of_a_long_module_is_named(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project.scripts]\ntrain-it = "long:start"\n')
    (tmp_path / "long.py").write_text("# text\n" * 10_000 + "def start():\n    print(1)\n")
    with pytest.raises(TargetError, match=r"calls start\(\) of long, which -m long does not"):
        in_our_words(["train-it"], tmp_path)


def test_a_variable_of_make_has_the_value_that_it_had_where_it_was_set_at_once(tmp_path: Path) -> None:
    text = "A := 1\nB := $(A)$(C) $$X\nD = $(A)\nA := 2\nC = 3\ntrain:\n\tX=x; C=c; python train.py $(B) $(D)\n"
    (tmp_path / "Makefile").write_text(text)
    assert in_our_words(["make"], tmp_path) == ["train.py", "--", "1c", "x", "2"]
    assert in_our_words(["make", "A=4"], tmp_path) == ["train.py", "--", "4c", "x", "4"]


def test_the_name_of_a_recipe_is_the_recipes_though_a_task_has_it(tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text('{"scripts": {"digits": "python train.py"}}')
    assert in_our_words(["digits"], tmp_path, RECIPES) is None
    assert in_our_words(["npm", "run", "digits", "--", "--lr"], tmp_path, RECIPES) == ["train.py", "--", "--lr"]


@cases("text")
def test_a_shell_script_is_read_as_bash_reads_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\nprintf '%s\\n' \"$@\" end >> out\n")
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "t.sh").write_text(f"{text}\nwait\n")
    arguments = ["p q", "r"]
    subprocess.run(["bash", "t.sh", *arguments], cwd=tmp_path, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=True)
    reading = read_shell(text, arguments, "t.sh", tmp_path)
    assert (reading.unread, reading.others) == (None, [])
    words = [word for _, command in reading.started for word in ("t.py", *command.arguments, "end")]
    assert words == (tmp_path / "out").read_text().splitlines()


def test_a_shell_script_with_the_name_of_a_missing_script_is_suggested(tmp_path: Path) -> None:
    (tmp_path / "run_experiment.sh").write_text("python model.py\n")
    with pytest.raises(TargetError, match=r"did you mean run_experiment\.sh\?"):
        resolve_target(["run_experiment.py", "config.json"], None, None, tmp_path, RECIPES)


@pytest.mark.parametrize(("at", "run"), [("../mnist/", "cd tools && seatrial run eval.py"), ("../no/", ""), ("..", "")])
def test_a_script_whose_paths_exist_from_its_own_folder_starts_there(project: Path, at: str, run: str) -> None:
    (project / "tools" / "eval.py").write_text(f"def save(at='{at}'):\n    pass\n")
    with pytest.raises(TargetError) as refusal:
        resolve_target(["eval.py"], None, None, project, RECIPES)
    assert refusal.value.run == (run or "seatrial run tools/eval.py")


def test_a_script_in_the_folder_that_was_named_goes_before_those_of_others(tmp_path: Path) -> None:
    for name in ("a/train.py", "star/atari/train.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    with pytest.raises(TargetError, match=r"did you mean star/atari/train\.py or a/train\.py\?"):
        resolve_target(["star/train.py"], None, None, tmp_path, RECIPES)


def test_the_folder_of_a_shell_script_is_relative() -> None:
    text = 'cd "$(pwd)"\nHERE=$(cd -- "$(dirname -- "$0")/.." > /dev/null 2>&1 && pwd -P)\npython $HERE/t.py $PWD/x\n'
    [(folder, command)] = read_shell(text, [], "tools/go.sh", Path()).started
    assert (folder, command.words()) == (".", ["t.py", "--", "x"])


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("distributed_type: MULTI_GPU\nmixed_precision: 'no'", "--env ACCELERATE_MIXED_PRECISION=no"),
        (
            "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 3\n  zero3_init_flag: true\n",
            "--env ACCELERATE_USE_DEEPSPEED=true --env ACCELERATE_DEEPSPEED_ZERO_STAGE=3 "
            "--env ACCELERATE_DEEPSPEED_ZERO3_INIT=true",
        ),
        (
            "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"
            "  fsdp_transformer_layer_cls_to_wrap: Block\n  fsdp_use_orig_params: false",
            "--env ACCELERATE_USE_FSDP=true --env FSDP_SHARDING_STRATEGY=FULL_SHARD "
            "--env FSDP_TRANSFORMER_CLS_TO_WRAP=Block --env FSDP_USE_ORIG_PARAMS=false",
        ),
    ],
    ids=["several GPUs", "DeepSpeed", "FSDP"],
)
def test_a_configuration_of_accelerate_becomes_processes_and_variables(tmp_path: Path, part: str, words: str) -> None:
    (tmp_path / "a.yaml").write_text(f"{part}\nnum_machines: 1\nnum_processes: 4\nuse_cpu: false\ntpu_env: []\n")
    typed = ["accelerate", "launch", "--config_file", "a.yaml", "--num_processes=2", "train.py"]
    assert in_our_words(typed, tmp_path) == [*words.split(), *["--gpus", "2", "--launcher", "torchrun", "train.py"]]


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ("num_machines: 2", "num_machines"),
        ("distributed_type: MEGATRON_LM", "MEGATRON_LM"),
        ("unheard_of: 1", "unheard_of"),
        ("fsdp_config: {1: 2}", "1 has no counterpart"),
    ],
)
def test_a_configuration_of_accelerate_that_has_no_counterpart_is_refused(tmp_path: Path, part: str, why: str) -> None:
    (tmp_path / "a.yaml").write_text(part)
    with pytest.raises(TargetError) as refusal:
        in_our_words(["accelerate", "launch", "--config_file", "a.yaml", "train.py"], tmp_path)
    assert why in str(refusal.value.cause)


def test_a_configuration_of_accelerate_may_write_no_without_quotes(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("distributed_type: NO\nmixed_precision: no\n")
    typed = ["accelerate", "launch", "--config_file", "a.yaml", "train.py"]
    assert in_our_words(typed, tmp_path) == ["--env", "ACCELERATE_MIXED_PRECISION=no", "train.py"]


def test_a_configuration_of_accelerate_may_be_of_before_mixed_precision(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"distributed_type": "NO", "fp16": false, "num_processes": 1}')
    typed = ["accelerate", "launch", "--config", "a.json", "train.py"]  # argparse takes it for --config_file
    assert in_our_words(typed, tmp_path) == ["--gpus", "1", "train.py"]


def test_a_configuration_of_accelerate_that_would_never_end_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.yaml")
    for name in ("a.yaml", "/dev/zero"):
        with pytest.raises(TargetError) as refusal:
            in_our_words(["accelerate", "launch", "--config_file", name, "train.py"], tmp_path)
        assert f"--config_file {name} is a" in str(refusal.value.cause)


def test_a_command_may_name_a_function_of_a_module_in_its_package(tmp_path: Path) -> None:
    (tmp_path / "setup.cfg").write_text("console_scripts =\n    go = pkg:__main__.run\n")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/__init__.py").touch()
    (tmp_path / "pkg/__main__.py").write_text("def run(): ...\nif __name__ == '__main__':\n    run()\n")
    assert in_our_words(["uv", "run", "--extra", "gpu", "go", "train"], tmp_path) == [
        "-m",
        "pkg.__main__",
        "--",
        "train",
    ]


@pytest.mark.parametrize(
    ("text", "end", "run"),
    [
        (
            '"""main method."""\ndef run(): ...\nif __name__ == "__main__":\n    run()\n',
            "no main",
            "seatrial run pkg/cli.py",
        ),
        ("def run(): ...\n", "no main", "grep -n '^def ' pkg/cli.py"),
        ("from a import (\n    b,\n    main,\n)\n", "does not", "seatrial run go.py"),
        ("import x as main\n", "does not", "seatrial run go.py"),
        ("from a import *\n", "does not", "seatrial run go.py"),
    ],
)
def test_an_entry_point_whose_module_has_no_such_function_is_refused(
    tmp_path: Path, text: str, end: str, run: str
) -> None:
    (tmp_path / "setup.cfg").write_text("console_scripts =\n    go = pkg.cli:main\n")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/cli.py").write_text(text)
    with pytest.raises(TargetError) as refusal:
        in_our_words(["go"], tmp_path)
    assert (refusal.value.message.endswith(end), refusal.value.run) == (True, run)


@pytest.mark.parametrize(
    ("line", "is_sent"), [("sbatch \\\n  --mem=$M \\\n  hpc/job.sh 1", True), ("cat hpc/job.sh", False)]
)
def test_a_shell_script_that_only_submits_another_proposes_that_one(tmp_path: Path, line: str, is_sent: bool) -> None:
    (tmp_path / "hpc").mkdir()
    (tmp_path / "hpc/job.sh").write_text("python train.py\n")
    (tmp_path / "hpc/submit.sh").write_text(f"if [ -f secrets ]; then\n  . secrets\nelse\n  exit 1\nfi\n{line}\n")
    with pytest.raises(TargetError) as refusal:
        in_our_words(["hpc/submit.sh"], tmp_path)
    assert (refusal.value.run == "seatrial run hpc/job.sh") == is_sent


def test_scripts_deeper_than_the_search_are_not_denied(tmp_path: Path) -> None:
    (tmp_path / "a/b/c").mkdir(parents=True)
    (tmp_path / "a/b/c/main.py").touch()
    with pytest.raises(TargetError) as raised:
        resolve_target(["main.py"], None, None, tmp_path, {})
    assert raised.value.cause == "scripts here: none up to two folders deep"
    (tmp_path / "a/b/other.py").touch()
    with pytest.raises(TargetError) as raised:
        resolve_target(["main.py"], None, None, tmp_path, {})
    assert raised.value.cause == "scripts here: a/b/other.py"


def test_a_missing_script_is_replaced_by_one_that_does_something_when_started(tmp_path: Path) -> None:
    (tmp_path / "train_manager.py").write_text("import torch\ndef train():\n    torch.ones(1)\n")
    (tmp_path / "main.py").write_text("from train_manager import train\nif __name__ == '__main__':\n    train()\n")
    with pytest.raises(TargetError) as raised:
        resolve_target(["CVAE_main.py"], None, None, tmp_path, {})
    assert raised.value.run == "seatrial run main.py"


def test_a_script_that_installs_the_project_starts_python_for_its_training_alone(tmp_path: Path) -> None:
    (tmp_path / "j.sh").write_text("python setup.py install\npython train.py --lr 1\n")
    command = python_command(["bash", "j.sh"], tmp_path)
    assert command is not None and command.words() == ["train.py", "--", "--lr", "1"]


def test_a_folder_is_no_shell_script_and_is_not_proposed_as_one(tmp_path: Path) -> None:
    (tmp_path / "job.sh").mkdir()
    with pytest.raises(TargetError, match=r"Shell script job\.sh not found in [^;]*$"):
        in_our_words(["bash", "job.sh"], tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "A=xx\n" + "A=$A$A\n" * 60,
        "echo it's\n" + "ls\n" * 6000,
        f"B={'x' * 9000}\npython t.py {'${A:-$B}' * 1000}\n",
        "while true; do A=$A; done\n",
        "f() {\n  f\n}\nf\n",
        "python $(" * 3000 + ")" * 3000 + "\n",
        ". ./job.sh\n",
        "if x\nfi\n",
        "for x in 1; 2\ndone\n",
        "for ;do\nls\ndone\n",
        "python t.py $((1 (2)))\n",
        "case x in\n",
        "A=(1\n",
        'f() { f "$@" "$@" a; }\nf a\n',
        "A=(1)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 40,
        f"A={'x' * 9000}\n" + "A=${A##*y*y*z*}\n" * 200,
        "A=(" + "a " * 900 + ")\npython t.py" + " ${A[@]}" * 4000 + "\n",
        f"[ {'9' * 5000} -gt 1 ] && python t.py\n",
        f"python t.py ${{{'9' * 5000}}} ${{@:{'9' * 5000}}}\n",
        f"shift {'9' * 5000}\n",
        f"[ -d {'d' * 5000} ] && cd {'d' * 5000}\n",
        *(f"A=$(({each}))\nls\n" for each in ("~" * 9000 + "1", "a" * 19_000, "i=" * 9000)),
        f"<<{'A' * 40}\n" * 3_000,
        f"cat <<{'A' * 3000}\n" + "b\n" * 20_000,
        "".join(f"A{at}=A{at + 1}+A{at + 1}\n" for at in range(30)) + "A30=1\nA=$((A0))\nls\n",
    ],
    ids=[
        "doubled",
        "open",
        "defaults",
        "loop",
        "recursion",
        "brackets",
        "itself",
        "if",
        "for",
        "for nothing",
        "call of a number",
        "case",
        "array",
        "arguments",
        "list",
        "cut",
        "lists",
        "number",
        "argument",
        "shift",
        "name",
        "complements",
        "letters",
        "assignments",
        "documents",
        "document",
        "names",
    ],
)
def test_a_shell_script_without_bounds_is_refused_at_once(
    tmp_path: Path, text: str, recwarn: pytest.WarningsRecorder
) -> None:
    (tmp_path / "job.sh").write_text(text)
    began_s = time.process_time()
    assert ":" in (read_shell(text + "python train.py $A\n", [], "job.sh", tmp_path).unread or "").partition(" ")[0]
    assert time.process_time() - began_s < 5
    assert not recwarn.list  # of Python's compiler


def test_a_command_of_the_project_that_its_module_does_not_call_gets_a_script(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project.scripts]\ngo-train = "go:cli"\n')
    (tmp_path / "go.py").write_text("def cli(): ...\nif __name__ == '__main__':\n    train()\n")
    with pytest.raises(TargetError) as refusal:
        in_our_words(["go-train", "--lr", "1"], tmp_path)
    assert refusal.value.first == "echo 'from go import cli; cli()' > go_train.py"
    assert refusal.value.instead == ("go-train", ["go_train.py"])


def test_the_script_for_a_command_does_not_hide_its_package(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project.scripts]\ngo-train = "go_train:cli"\n')
    (tmp_path / "src/go_train").mkdir(parents=True)
    (tmp_path / "src/go_train/__init__.py").write_text("def cli(): ...\n")
    with pytest.raises(TargetError) as refusal:
        in_our_words(["uv", "run", "go-train"], tmp_path)
    assert refusal.value.instead == ("go-train", ["run_go_train.py"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"A = {'x' * 1900}\nB = {'$(A)' * 9000}\ntrain:\n\tpython train.py $(B)\n", "make train"),
        (f"A = {'$(A)' * 400}\ntrain:\n\tpython train.py $(A)\n", "make train"),
        ("ifdef A\nB = 1\nendif\ntrain:\n\tpython train.py $(B)\n", "make train"),
        ("train: train\n\tpython train.py $(B)\n", "make"),
        (f"A = x{' ' * 90_000}y\na:{' ' * 9_000}=\ntrain:\n\tpython train.py\n", "make train"),
        ("".join(f"a{n}: a{n + 1}\n" for n in range(5000)) + "a5000:\n\tpython train.py\n", "make a0"),
        (f"train:\n\tpython train.py\n{'#' * 100_000}\n", "make"),
    ],
    ids=["long", "doubled", "condition", "needs itself", "blanks", "deep", "cut"],
)
def test_a_makefile_that_is_not_read_is_refused_at_once(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "Makefile").write_text(text)
    began_s = time.process_time()
    with pytest.raises(TargetError):
        in_our_words(words.split(), tmp_path)
    assert time.process_time() - began_s < 5


def test_metadata_of_empty_lines_are_searched_at_once(tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text("\n" * 60_000)
    began_s = time.process_time()
    assert in_our_words(["train"], tmp_path) is None
    assert time.process_time() - began_s < 5


def test_a_script_that_is_too_long_is_refused_and_not_cut(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("python train.py\n" + "#\n" * 50_000 + "python train.py\n")
    with pytest.raises(TargetError) as refusal:
        in_our_words(["bash", "job.sh"], tmp_path)
    assert "job.sh has more than 50000 letters" in str(refusal.value.cause)


def test_a_file_of_tasks_without_bounds_has_none(tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text('{"scripts": ' * 900 + "{}" + "}" * 900)
    (tmp_path / "pixi.toml").write_text("[tasks\n")
    assert in_our_words(["pixi", "run", "train"], tmp_path) is None


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("--cfg a \\ # mine\n  --data b\n", 1),
        ("\\\n --cfg a \\\n # --old 1 \\\n --data b\n", 3),
        ("--cfg a \\ \n --data b\n", 1),
        ("--cfg a\n  --data \\\n b\n", 1),
        ('--cfg a \\\n # --old 1\n "${@:1}"\n', 2),
    ],
)
def test_a_command_that_a_comment_cuts_is_joined(tmp_path: Path, text: str, line: int) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "x.sh").write_text(f"python train.py {text}")
    with pytest.raises(TargetError, match=rf"at x\.sh:{line},") as caught:
        in_our_words(["bash", "x.sh", *["--data", "b"][: 2 * ("@" in text)]], tmp_path)
    assert caught.value.run == "seatrial run train.py -- --cfg a --data b"


@pytest.mark.parametrize("text", ["\necho\n--data b\n", "; --data b\n"])
def test_an_option_below_another_command_is_not_of_the_script(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "x.sh").write_text(f"python train.py --cfg a{text}")
    with pytest.raises(TargetError, match="does more than") as caught:
        in_our_words(["bash", "x.sh"], tmp_path)
    assert caught.value.run == "seatrial run train.py -- --cfg a"


def test_exec_and_the_path_of_a_script_start_it(tmp_path: Path) -> None:
    (tmp_path / "inner.sh").write_text('python train.py --lr "$1"  # \\ # not cut\n')
    (tmp_path / "x.sh").write_text('exec ./inner.sh "$@"\n')
    assert in_our_words(["bash", "x.sh", "3"], tmp_path) == ["train.py", "--", "--lr", "3"]


@pytest.mark.parametrize(
    ("source", "notebook", "run"),
    [
        ("!ls\n", False, "sed -i '/x/d' {}"),
        ("%%time\nmodel.fit()\n", False, "sed -i '/x/d' {}"),
        ("%%bash\nls\n", False, "${{EDITOR:-vi}} {}"),
        ("get_ipython().run_cell_magic('time', '', 'model.fit()')\n", False, "${{EDITOR:-vi}} {}"),
        (
            "get_ipython().run_cell_magic('time', '', 'model.fit()')\n",
            True,
            "pip install jupytext && jupytext --to py {}",
        ),
    ],
)
def test_no_fix_of_an_exported_notebook_deletes_the_code_of_a_cell(
    tmp_path: Path, source: str, notebook: bool, run: str
) -> None:
    script = tmp_path / "a b.py"
    script.write_text(source)
    if notebook:
        script.with_suffix(".ipynb").touch()
    typed = shlex.quote(str(script.with_suffix(".ipynb") if notebook else script))
    assert (notebook_error("x", script, "/x/d").run or "").startswith(run.format(typed) + "    # ")
