"""Words as they are typed: impossible requests are refused, with exit code 2, and a script keeps its own arguments."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from seatrial import cli
from seatrial.cli.words import _in_our_words, similar_option, with_dashes
from seatrial.errors import TargetError
from tables import cases, constant

NAN = ["-1", "nan", "inf", "-inf", "1e999", "1e3", "0x10", "", " ", "9" * 5000]

#: No run can be called so.
NO_RUNS = ["", "-", "/", "a/b", "..", ".", "*", "a\nb", "\x1b[31m", "a b", "é", "x" * 64, "x" * 5000]
RUN_VERBS = ["show", "logs", "attach", "stop", "rm", "verify", "exec", "cp", "compare", "--resume"]

#: (words before, words behind) a number.
NUMBERS = constant(__file__, "NUMBERS")


@pytest.fixture
def refused(capsys, tmp_path, monkeypatch):
    """Runs a command line in an empty project, which must be refused and leave nothing."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> str:
        assert cli._main(list(words)) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("error: ") and "Traceback" not in err
        assert len(err.split("\n  cause: ")[0].split("\n  fix: ")[0].strip().splitlines()) == 1
        assert not any(ord(letter) < 32 and letter != "\n" for letter in err)
        assert not (tmp_path / ".seatrial").exists()
        return err

    return run


@pytest.mark.parametrize("reference", NO_RUNS, ids=repr)
@pytest.mark.parametrize("verb", RUN_VERBS)
def test_no_run(refused, verb, reference):
    behind = {"exec": ["--", "true"], "cp": ["out"], "compare": ["last"]}.get(verb, [])
    refused(*(["run", verb] if verb == "--resume" else ["runs", verb]), reference, *behind)


@pytest.mark.parametrize("option", ["--image", "--container"])
def test_a_name_that_is_empty(refused, option):
    assert f"seatrial doctor {option} NAME" in refused("doctor", option, "")


@pytest.mark.parametrize("name", NUMBERS)
def test_no_number(refused, name):
    before, behind = NUMBERS[name]
    for value in NAN:
        if (name, value) in {("plan --cpus", "1e3"), ("top --interval", "1e3"), ("metrics --interval", "1e3")}:
            continue  # a number there
        words = [*before[:-1], before[-1] + value] if before[-1].endswith(":") else [*before, value]
        refused(*words, *behind)


@pytest.mark.parametrize("words", constant(__file__, "WORDS"), ids=repr)
def test_no_word(refused, words):
    refused(*words)


@pytest.mark.parametrize("word", [b"\xff.py", b"a\xfeb", b"\xed\xa0\x80"])
def test_a_word_that_is_not_utf_8(refused, word):
    message = refused("run", word.decode("utf-8", "surrogateescape"))
    assert "not UTF-8" in message and "\\x" in message


def test_a_word_that_the_locale_has_no_letters_for(refused):
    assert "PYTHONUTF8=1" in refused("run", "é.py".encode().decode("ascii", "surrogateescape"))


@cases("typed", "read")
def test_a_command_that_starts_python_is_read_into_our_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str, read: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in constant(__file__, "PROJECT").items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    assert shlex.join(_in_our_words(shlex.split(typed))) == read


def test_a_variable_of_the_machine_is_read_into_the_words_and_a_secret_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    for name, value in {"LR": "5", "MY_TOKEN": "hidden"}.items():
        monkeypatch.setenv(name, value)
        (tmp_path / f"{name}.sh").write_text(f"python train.py --value ${name}\n")
    assert shlex.join(_in_our_words(["plan", "-e", "LR", "LR.sh"])) == "plan -e LR train.py -- --value 5"
    assert shlex.join(_in_our_words(["plan", "-eLR=3", "LR.sh"])) == "plan -eLR=3 train.py -- --value 3"
    with pytest.raises(TargetError) as refusal:
        _in_our_words(["plan", "-e", "MY_TOKEN", "MY_TOKEN.sh"])
    assert "hidden" not in f"{refusal.value} {refusal.value.cause} {refusal.value.run}"


@cases("typed", "run")
def test_the_command_to_type_keeps_the_options_that_were_typed(
    refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str, run: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "b.py"):
        (tmp_path / name).touch()
    (tmp_path / "go.sh").write_text("python train.py --lr 1\n")
    (tmp_path / "other.sh").write_text("python train.py\npython b.py\n")
    (tmp_path / "two.sh").write_text("python $@\nrm log\n")
    assert f"  fix: seatrial {run}\n" in refused("run", *shlex.split(typed))


@pytest.mark.parametrize(
    ("words", "run"),
    [
        ("kit fit", "run_kit.py fit"),
        ("kit fit --gpus none --lr 1", "run_kit.py --gpus none -- fit --lr 1"),
    ],
)
def test_an_entry_point_is_refused_with_words_that_our_parser_takes(
    refused, tmp_path: Path, words: str, run: str
) -> None:
    (tmp_path / "setup.cfg").write_text("[options.entry_points]\nconsole_scripts =\n    kit = kit.cli:app\n")
    (tmp_path / "kit").mkdir()
    (tmp_path / "kit/cli.py").write_text("import typer\napp = typer.Typer()\n@app.command()\ndef fit():\n    pass\n")
    text = refused("run", *words.split())
    assert "he entry point kit calls app() of kit.cli, which -m kit.cli does not" in text
    assert f"fix: echo 'from kit.cli import app; app()' > run_kit.py && seatrial run {run}\n" in text


def test_the_options_of_an_unknown_program_are_its_own(
    refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert shlex.join(_in_our_words(["plan", "fit", "--lr", "1"])) == "plan fit -- --lr 1"
    assert shlex.join(_in_our_words(["plan", "fit", "--gpus", "1"])) == "plan fit --gpus 1"
    assert refused("plan", "composer", "-n", "2", "train.py", "--lr", "1").startswith("error: seatrial does not read")


def test_options_of_ours_and_no_secret_stand_in_the_command_to_type(
    refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "j.sh").write_text("python train.py --key $HF_TOKEN\npython train.py\n")
    assert "fix: seatrial plan --memory 8g train.py -- --lr 1\n" in refused(
        "plan", "foo", "train.py", "--memory", "8g", "--lr", "1"
    )
    (tmp_path / "lab.ipynb").touch()
    assert " && seatrial plan lab.py\n" in refused("plan", "papermill", "lab.ipynb", "out.ipynb")
    text = refused("plan", "-e", "HF_TOKEN=topsecret", "j.sh")
    assert "topsecret" not in text and "fix: seatrial plan -e HF_TOKEN=$HF_TOKEN train.py -- --key $HF_TOKEN\n" in text


def test_a_command_for_another_folder_keeps_the_verb(refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "train.py").touch()
    (tmp_path / "go.sh").write_text("cd 'a b'\npython train.py\n")
    assert "(cd 'a b' && seatrial plan train.py)" in refused("plan", "go.sh")


def test_the_command_for_what_needs_mpi_itself_can_be_typed(refused) -> None:
    assert "--image IMAGE -- mpirun …" in refused("plan", "mpirun", "-n", "2", "./x")


SCRIPT = "parser.add_argument(\"--model\")\nparser.add_argument('--data')\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "train.py": SCRIPT,
        "plain.py": "import math\nprint(math.pi)\n",  # reads no argument
        "options.py": 'add("--nodes_")',
        "launch.py": "from split import run\nrun()\n",
        "elsewhere.py": "from inner import train\n",
        "added.py": "import _paths\nfrom base import options\n",
        "lib/inner/__init__.py": "",
        "split.py": "from opts.train import Options\n",
        "opts/base.py": 'parser.add_argument("--name")\n',
        "agent.py": "parser.add_argument('--env')\n",
        "mounted.py": "parser.add_argument('--data', default='/data')\n",
        "tf1.py": "import tensorflow as tf\nflags = tf.app.flags\nflags.DEFINE_string('csv', '', '')\n",
        "typed.py": "from fastcore.script import call_parse\n@call_parse\ndef main(model_name: str, data: str): ...\n",
        "tapped.py": "from tap import Tap\nclass Options(Tap):\n    dataset: str = 'a'\n",
        "later.py": "import tapped\nclass Own(tapped.Options):\n    models: str = 'a'\n",
        "flags.py": "from absl import flags\nflags.DEFINE_string('workdir', None, 'x')\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)


@pytest.mark.parametrize(
    "split",
    [
        "run train.py -- --epochs 5",
        "plan --gpus none train.py -- --lr=1 x",
        "run train.py -- task=cls",
        "run -m net.train -- --lr 1",
        "run train.py -- --data d --epochs 5",
        "run train.py -- --model m",
        "run train.py -- --nodes_ m",
        "run gone.py -- --model m",
        "run gone.py -- --epochs 5",
        "run added.py -- --epochs 5 --name x",  # opts/base.py has it
        "run base.py -- --run 1 --name x",  # opts/base.py is the script
        "run split.py -- --name x --epochs 5",
        "run -m flags -- --workdir d --config c",
        "run agent.py -- --env Ant-v2",
        "run agent.py -- --env=a/b",
        "run tf1.py -- --csv a",
        "run train.py -- -f config.yaml",
        "run train.py -- -m model=a,b",  # Hydra's multirun
        "run -m split -- -m model=a,b",
        "run typed.py -- --model_name m --data d",
        "run elsewhere.py -- --train_files a.csv",
        "run train.py -- --data d",
        "run tapped.py -- --dataset d",  # resembles --data, and is a field of the class that is parsed
        "run later.py -- --models d",  # a field, and the class that parses it is imported
        "run train.py -- fit --model.loss mse",
        "run --gpus 1 split.py -- --name x",
        "run -m flags -- --workdir d",
        "run -m split -- --epochs 5 --name x",  # opts/base.py has it
        "run -m launch -- --epochs 5 --name x",  # through split.py
    ],
)
def test_words_that_can_only_be_the_scripts_are_its_own(project: None, split: str) -> None:
    assert " ".join(with_dashes(split.replace(" -- ", " ").split())) == split


@pytest.mark.parametrize(
    "typed",
    [
        "run mounted.py --data d",
        "run train.py --models d",
        "run split.py --gpus 1 --name x",
        "run train.py --gpus 2",
        "run train.py --gpu 2",
        "run train.py --epochs 5 --name x",
        "run gone.py --epochs 5 --gpus 2",
        "run train.py --help",
        "run agent.py --env A=b",
        "run train.py --env a-b",
        "run train.py -- --epochs 5",
        "run digits --epochs 5",
        "run --epochs 5 train.py",
        "tune train.py --epochs 5",
        "run --image x train.py",
        "run plain.py --dry-run",
    ],
)
def test_words_that_may_be_seatrials_stay_as_they_are(project: None, typed: str) -> None:
    assert " ".join(with_dashes(typed.split())) == typed


def test_an_option_of_a_package_at_the_projects_root_is_the_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {
        "setup.py": "",
        "net/__init__.py": "parser.add_argument('--print-freq', '-p')\n",
        "examples/train.py": "import net\nnet.parser.parse_args()\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path / "examples")
    assert with_dashes(["run", "train.py", "-p", "30"]) == ["run", "train.py", "--", "-p", "30"]


@pytest.mark.parametrize("added", ['f"--{key}"', '"--" + key'])
def test_keys_of_a_dictionary_are_options_of_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, added: str
) -> None:
    code = f"defaults = dict(names='mri', lr=1)\nfor key in defaults:\n    parser.add_argument({added})\n"
    (tmp_path / "fit.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    typed = ["run", "fit.py", "--names", "mri", "--lr", "2"]
    assert with_dashes(typed) == [*typed[:2], "--", *typed[2:]]
    (tmp_path / "fit.py").write_text("names = 'mri'\nparser.add_argument('--lr')\n")
    assert with_dashes(typed) == typed


def test_an_option_of_a_package_in_src_is_the_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "src/entry/active").mkdir(parents=True)
    (tmp_path / "src/entry/active/train.py").write_text("parser.add_argument('--dataset')\n")
    (tmp_path / "fit.py").write_text("from entry.active.train import main; main()\n")
    monkeypatch.chdir(tmp_path)
    assert with_dashes(["run", "fit.py", "--dataset", "busi"]) == ["run", "fit.py", "--", "--dataset", "busi"]


@pytest.mark.parametrize("option", ["--conf", "--task", "--base"])
def test_an_option_that_shares_two_letters_with_ours_is_the_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    (tmp_path / "train.py").write_text("from tensorfn import load_arg_config\nimport models\n")
    (tmp_path / "models.py").touch()
    monkeypatch.chdir(tmp_path)
    assert with_dashes(["plan", "train.py", option, "a.conf"]) == ["plan", "train.py", "--", option, "a.conf"]


@pytest.mark.parametrize(
    ("text", "typed", "option"),
    [
        (
            "import typer\ndef main(run_name: str = 'x', seed: int = 1): ...\ntyper.run(main)\n",
            "--run-nmae",
            "--run-name",
        ),
        ("from transformers import HfArgumentParser\nclass A:\n    run_name: str\n", "--run_nmae", "--run_name"),
        ("from absl import flags\nflags.DEFINE_string('workdir', None, '')\n", "--work_dir", "--workdir"),
        ("@click.option('-n', '--name-of', default=1)\n", "--nameof", "--name-of"),
        ("x: int = 1\n", "--xx", None),
    ],
)
def test_the_option_that_was_meant_is_found_however_it_is_declared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, typed: str, option: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(text)
    assert similar_option(Path("train.py"), typed) == option
