"""``python`` in a README's command replaced by ``seatrial run``."""

from pathlib import Path

import pytest

from seatrial.cli.words import _with_dashes

SCRIPT = "parser.add_argument(\"--model\")\nparser.add_argument('--data')\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "train.py": SCRIPT,
        "plain.py": "import math\nprint(math.pi)\n",  # reads no argument
        "options.py": 'add("--nodes_")',
        "split.py": "from opts.train import Options\n",
        "opts/base.py": 'parser.add_argument("--name")\n',
        "flags.py": "from absl import flags\nflags.DEFINE_string('workdir', None, 'x')\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
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
        "run gone.py -- --epochs 5",
        "run split.py -- --name x --epochs 5",
        "run -m flags -- --workdir d --config c",
        "run -m torch.distributed.launch -- --model m --gpus 2 train.py",
    ],
)
def test_words_that_can_only_be_the_scripts_are_its_own(project: None, split: str) -> None:
    assert " ".join(_with_dashes(split.replace(" -- ", " ").split())) == split


@pytest.mark.parametrize(
    "typed",
    [
        "run train.py --data d",
        "run train.py --gpus 2",
        "run train.py --gpu 2",
        "run train.py --epochs 5 --name x",
        "run train.py --help",
        "run train.py -- --epochs 5",
        "run digits --epochs 5",
        "run --epochs 5 train.py",
        "tune train.py --epochs 5",
        "run --image x train.py",
        "run plain.py --dry-run",
    ],
)
def test_words_that_may_be_seatrials_stay_as_they_are(project: None, typed: str) -> None:
    assert " ".join(_with_dashes(typed.split())) == typed
