"""Words that argparse ends at, and scripts of which that is not known."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.job.model import Target
from seatrial.job.script import script_facts

HEAD = "import argparse\nparser = argparse.ArgumentParser()\n"
LR = "parser.add_argument('--lr', '-l', type=float)\nparser.add_argument('--data-dir', required=True)\n"
PARSE = "args = parser.parse_args()\n"


def misfits(folder: Path, source: str, words: str) -> tuple[str, ...]:
    (folder / "train.py").write_text(source)
    (folder / "options.py").write_text("def add(parser):\n    parser.add_argument('--more')\n")
    return script_facts(Target(kind="script", value="train.py", args=tuple(words.split())), folder).misfits


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--data-dir d --learn 1", "train.py:5 ends the script at --learn, which is none of its options; it has --lr"),
        ("--data-path=d --data-dir d", "ends the script at --data-path, which is none of its options; it has --data-"),
        ("--lr 1", "train.py:4 requires --data-dir, which is not given: the script ends there"),
        ("-l 1 --data d", ""),
        ("--data-dir d -- --other", ""),
        ("--data-dir d --help", ""),
    ],
)
def test_a_word_that_the_parser_does_not_take_is_named(tmp_path: Path, words: str, sentence: str) -> None:
    found = misfits(tmp_path, HEAD + LR + PARSE, words)
    assert [sentence in each for each in found] == ([True] if sentence else [])


@pytest.mark.parametrize(
    "source",
    [
        HEAD + LR + "args, rest = parser.parse_known_args()\n",
        HEAD + LR + "args = parser.parse_args([])\n",
        HEAD + LR + "import lightning\nlightning.Trainer.add_argparse_args(parser)\n" + PARSE,
        HEAD + LR + "import sys\nsys.argv[1:] = ['--lr', '1']\n" + PARSE,
        HEAD + LR + "parser.add_argument('rest', nargs=argparse.REMAINDER)\n" + PARSE,
        HEAD + LR + "for name in names:\n    parser.add_argument('--' + name)\n" + PARSE,
        HEAD + LR + "if debug:\n    " + PARSE,
        "import base\nparser = base.parser()\n" + LR + PARSE,
        "from jsonargparse import ArgumentParser\nparser = ArgumentParser()\n" + LR + PARSE,
        "import argparse, base\nparser = argparse.ArgumentParser(parents=[base.parser()])\n" + LR + PARSE,
    ],
)
def test_options_that_are_not_all_known_are_not_judged(tmp_path: Path, source: str) -> None:
    assert misfits(tmp_path, source, "--other 1") == ()


def test_options_of_the_projects_functions_count(tmp_path: Path) -> None:
    source = HEAD + LR + "import options\noptions.add(parser)\n" + PARSE
    assert misfits(tmp_path, source, "--data-dir d --more 1") == ()
    assert "--fewer" in misfits(tmp_path, source, "--data-dir d --fewer 1")[0]
    parents = "import argparse\ndef base():\n    parser = argparse.ArgumentParser(add_help=False)\n    return parser\n"
    parents += "parser = argparse.ArgumentParser(parents=[base()])\n" + LR + PARSE
    assert len(misfits(tmp_path, parents, "--fewer 1")) == 1  # of two parsers, required options are not judged


def test_a_switch_of_two_forms_has_both(tmp_path: Path) -> None:
    source = HEAD + "parser.add_argument('--amp', action=argparse.BooleanOptionalAction)\n" + PARSE
    assert misfits(tmp_path, source, "--no-amp") == ()
