"""``python`` in a README's command replaced by ``seatrial run``."""

from pathlib import Path

import pytest

from seatrial.cli.options import _with_dashes

SCRIPT = "parser.add_argument(\"--model\")\nparser.add_argument('--data')\n"


@pytest.mark.parametrize(
    ("typed", "split"),
    [
        ("run train.py --epochs 5", "run train.py -- --epochs 5"),
        ("plan --gpus none train.py --lr=1 x", "plan --gpus none train.py -- --lr=1 x"),
        ("run train.py task=cls", "run train.py -- task=cls"),
        ("run -m net.train --lr 1", "run -m net.train -- --lr 1"),
        ("run train.py --data d --epochs 5", "run train.py -- --data d --epochs 5"),
        ("run train.py --model m", "run train.py -- --model m"),
        ("run train.py --nodes_ m", "run train.py -- --nodes_ m"),
        ("run gone.py --epochs 5", "run gone.py -- --epochs 5"),
        ("run split.py --name x --epochs 5", "run split.py -- --name x --epochs 5"),
        ("run -m flags --workdir d --config c", "run -m flags -- --workdir d --config c"),
        (
            "run -m torch.distributed.launch --model m --gpus 2 train.py",
            "run -m torch.distributed.launch -- --model m --gpus 2 train.py",
        ),
    ],
)
def test_words_that_can_only_be_the_scripts_are_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str, split: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "options.py").write_text('add("--nodes_")')
    (tmp_path / "split.py").write_text("from opts.train import Options\n")
    (tmp_path / "opts").mkdir()
    (tmp_path / "opts" / "base.py").write_text('parser.add_argument("--name")\n')
    (tmp_path / "flags.py").write_text("from absl import flags\nflags.DEFINE_string('workdir', None, 'x')\n")
    assert " ".join(_with_dashes(typed.split())) == split


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
def test_words_that_may_be_seatrials_stay_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "plain.py").write_text("import math\nprint(math.pi)\n")  # reads no argument
    assert " ".join(_with_dashes(typed.split())) == typed
