"""Words that argparse ends at, and scripts of which that is not known."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.job.model import Target
from seatrial.job.script import script_facts

HEAD = "import argparse\nparser = argparse.ArgumentParser()\n"
LR = "parser.add_argument('--lr', '-l', type=float)\nparser.add_argument('--data-dir', required=True)\n"
PARSE = "args = parser.parse_args()\n"
SHORT = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr', '-l', type=float)\n"


def misfits(folder: Path, source: str, words: str) -> tuple[str, ...]:
    (folder / "train.py").write_text(source)
    (folder / "options.py").write_text("def add(parser):\n    parser.add_argument('--more')\n")
    return script_facts(Target(kind="script", value="train.py", args=tuple(words.split())), folder).misfits


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--data-dir d --learn 1", "train.py:5 rejects --learn: unknown option; it has --lr"),
        ("--data-path=d --data-dir d", "rejects --data-path: unknown option; it has --data-"),
        ("--data-dri d --data-dir d", "rejects --data-dri: unknown option; did you mean --data-dir?"),
        ("--lr 1", "train.py:4 requires --data-dir, which is not given"),
        ("--data-dir d --lr", "train.py:5 rejects --lr: it needs a value"),
        ("--lr --data-dir d", "train.py:5 rejects --lr: it needs a value"),
        ("--data-dir d -l", "train.py:5 rejects -l: it needs a value"),
        ("--lr -1 --data-dir --", "train.py:5 rejects --data-dir: it needs a value"),
        ("conf.yaml --data-dir d", "train.py:5 rejects conf.yaml: it takes no positional arguments; it has --lr"),
        ("-l 1 --data d", ""),
        ("--data-dir d -- --other", ""),
        ("--data-dir d --help", ""),
    ],
)
def test_a_word_that_the_parser_does_not_take_is_named(tmp_path: Path, words: str, sentence: str) -> None:
    found = misfits(tmp_path, HEAD + LR + PARSE, words)
    assert [sentence in each for each in found] == ([True] if sentence else [])


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        ("--lr x", "train.py:7 rejects --lr x: expected a number"),
        ("-l x", "train.py:7 rejects -l x: expected a number"),
        ("--sizes 3 4 5.0 -l 1e-3", "train.py:7 rejects --sizes 5.0: expected an integer"),
        ("--mode=fit", "train.py:7 rejects --mode fit: expected one of train, 3"),
        ("--only 1 --more 2 x", ""),
        ("--lr nan --sizes 3 -4 --mode train --any x -- --lr x", ""),
    ],
)
def test_a_value_that_the_type_of_its_option_rejects_ends_every_run(tmp_path: Path, words: str, refused: str) -> None:
    more = "parser.add_argument('--sizes', type=int, nargs='+')\nparser.add_argument('--any', type=open)\n"
    more += "parser.add_argument('--mode', choices=['train', 3])\nparser.add_argument('--only', type=int, nargs='?')\n"
    more = more.replace("\n", ";", 3)
    source = (
        SHORT.replace("p.", "parser.").replace("p =", "parser =") + more + "parser.add_argument('--more', nargs=2)\n"
    )
    (tmp_path / "train.py").write_text(f"{source}parser.add_argument('x', nargs='*')\n{PARSE}")
    target = Target(kind="script", value="train.py", args=tuple(words.split()))
    assert [each for each, _ in script_facts(target, tmp_path).failing] == [refused] * bool(refused)
    assert misfits(tmp_path, source + "if ask:\n    " + PARSE, words) == ()


@pytest.mark.parametrize(
    "more",
    [
        "from kinds import KINDS, Kind\np.add_argument('--n', choices=[Kind.A.value, *KINDS, KINDS[0]])\n",
        "import kinds\nif kinds.ask:\n    p.add_argument('--n', type=int)\nelse:\n    p.add_argument('--n')\n",
        "def int(text):\n    return 1\np.add_argument('--n', type=int)\n",
        "float = str\np.add_argument('--n', type=float)\n",
    ],
)
def test_a_value_is_taken_where_what_its_option_takes_is_not_known(tmp_path: Path, more: str) -> None:
    (tmp_path / "train.py").write_text(SHORT + more + PARSE.replace("parser", "p"))
    facts = script_facts(Target(kind="script", value="train.py", args=("--n", "x")), tmp_path)
    assert (facts.failing, facts.misfits) == ((), ())


def test_a_parser_in_a_function_whose_exit_is_caught_may_go_on(tmp_path: Path) -> None:
    source = SHORT + "def get():\n    return p.parse_args()\ntry:\n    get()\nexcept BaseException:\n    pass\n"
    (tmp_path / "train.py").write_text(source)
    assert not script_facts(Target(kind="script", value="train.py", args=("--lr", "x")), tmp_path).failing


def test_the_word_of_a_command_is_no_positional_argument_too_many(tmp_path: Path) -> None:
    assert misfits(tmp_path, HEAD + "commands = parser.add_subparsers()\nadd(commands)\n" + PARSE, "fit") == ()
    assert misfits(tmp_path, HEAD + PARSE, "fit") == (
        "train.py:3 rejects fit: it takes no positional arguments; it has none",
    )


@pytest.mark.parametrize(
    "source",
    [
        HEAD + LR + "args, rest = parser.parse_known_args()\n",
        HEAD + LR + "import lightning\nlightning.Trainer.add_argparse_args(parser)\n" + PARSE,
        HEAD + LR + "import sys\nsys.argv[1:] = ['--lr', '1']\n" + PARSE,
        HEAD + LR + "parser.add_argument('rest', nargs=argparse.REMAINDER)\n" + PARSE,
        HEAD + LR + "for name in names:\n    parser.add_argument('--' + name)\n" + PARSE,
        HEAD + LR + "if debug:\n    " + PARSE,
        "import base\nparser = base.parser()\n" + LR + PARSE,
        "from jsonargparse import ArgumentParser\nparser = ArgumentParser()\n" + LR + PARSE,
        "import argparse, base\nparser = argparse.ArgumentParser(parents=[base.parser()])\n" + LR + PARSE,
        HEAD + LR + "add = parser.add_argument\nadd('--other')\n" + PARSE,
        HEAD
        + LR
        + "import functools\nadd = functools.partial(parser.add_argument, type=str)\nadd('--other')\n"
        + PARSE,
        HEAD + LR + "list(map(parser.add_argument, ['--other']))\n" + PARSE,
        HEAD + LR + "parser._add_action(OTHER)\n" + PARSE,
        HEAD + LR + "group = parser.add_argument_group('a').add_argument\ngroup('--other')\n" + PARSE,
        HEAD + LR + "for each in nets.ALL:\n    each.add(parser)\n" + PARSE,
        HEAD + LR + "other.add(args=[parser])\n" + PARSE,
        HEAD + LR + "nets['a'](parser)\n" + PARSE,
        SHORT + "import other\ndef add(q):\n    other.add(q)\nadd(p)\np.parse_args()\n",
        SHORT + "import other\nother.add(p.add_argument_group('x'))\np.parse_args()\n",
        "import argparse, other\ndef build():\n    return other.add(argparse.ArgumentParser())\nbuild().parse_args()\n",
        SHORT + "import deepspeed\ndeepspeed.add_config_arguments(p)\np.parse_args()\n",
        SHORT + "import deepspeed\np = deepspeed.add_config_arguments(p)\np.parse_args()\n",
        SHORT + "import lightning\nclass M(lightning.LightningModule):\n    pass\nM.add_args(p)\np.parse_args()\n",
        "import argparse, other\nclass A:\n    def __init__(self):\n        self.p = argparse.ArgumentParser()\n"
        "        other.add(self.p)\n    def go(self):\n        return self.p.parse_args()\nA().go()\n",
        "import argparse\nclass P(argparse.ArgumentParser):\n    pass\nQ = argparse.ArgumentParser\nQ()\n"
        + SHORT
        + "p.parse_args()",
        HEAD + LR + "parser.add_argument('rest', nargs='...')\n" + PARSE,
        HEAD + LR + "parser.add_argument('rest', nargs='A...')\n" + PARSE,
        HEAD + LR + "parser.add_argument('', dest='mode')\n" + PARSE + "open(args.mode)\n",
        HEAD + LR + "exec(open('more.py').read())\n" + PARSE,
        HEAD + LR + "from sys import argv\nargv.remove('--other')\n" + PARSE,
        HEAD + LR + "from absl import app, flags\nflags.DEFINE_string('other', '', '')\n" + PARSE,
        HEAD + LR + "import tensorflow as tf\ntf.app.flags.DEFINE_string('other', '', '')\n" + PARSE,
        HEAD + LR + "import click\n" + PARSE,
        SHORT + "def main():\n    p.parse_args()\ntry:\n    main()\nexcept (OSError, SystemExit):\n    pass\n",
        HEAD + LR + "try:\n    args = parser.parse_args()\nexcept SystemExit:\n    args = None\n",
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


@pytest.mark.parametrize(
    ("maker", "more", "words"),
    [
        ("", "", "-dfoo"),
        ("", "", "-vd foo"),
        ("", "", "--help"),
        ("fromfile_prefix_chars='@'", "", "@words.txt"),
        ("conflict_handler='resolve'", "p.add_argument('-d', '--data', default=1)\n", ""),
        ("", "p.add_argument('--show', action='version', version='1')\n", "--show"),
        ("", "from gooey import Gooey\n", ""),
        ("", "x = p.add_argument('--x')\nx.required = False\n", ""),
    ],
)
def test_required_option_may_be_given_in_another_way(tmp_path: Path, maker: str, more: str, words: str) -> None:
    source = f"import argparse\np = argparse.ArgumentParser({maker})\np.add_argument('-v', action='store_true')\n"
    source += f"p.add_argument('-d', '--data', required=True)\n{more}p.parse_args()\n"
    assert misfits(tmp_path, source, words) == ()


@pytest.mark.parametrize(
    "line",
    [
        "",
        "def main():\n    return p\n",
        "p.set_defaults(lr=1)\n",
        "import sys\nsys.argv[1]\n",
        "c = ConfigParser()\nc.read('a')\nax = f.add_subplot()\nax.plot()\n",
    ],
)
def test_parser_of_another_name_is_judged(tmp_path: Path, line: str) -> None:
    assert "--other" in misfits(tmp_path, SHORT + line + "args = p.parse_args()\n", "--other 1")[0]


@pytest.mark.parametrize("name", ["parse_args", "parse_arguments", "get_args"])
def test_required_options_of_a_parser_in_a_function_of_that_name_are_judged(tmp_path: Path, name: str) -> None:
    source = f"import argparse\ndef {name}():\n    p = argparse.ArgumentParser()\n"
    source += f"    p.add_argument('--prompts', required=True)\n    return p.parse_args()\nargs = {name}()\n"
    words = "train.py:4 requires --prompts, which is not given: seatrial run … -- --prompts VALUE"
    assert misfits(tmp_path, source, "") == (words,)
    assert misfits(tmp_path, source, "--prompts a") == ()
    assert misfits(tmp_path, source.replace(".parse_args()\n", ".parse_known_args()[0]\n"), "") == ()


@pytest.mark.parametrize(
    ("body", "call", "judged"),
    [
        (
            "if words is not None:\n        return p.parse_args(words)\n    else:\n        return p.parse_args()",
            "",
            True,
        ),
        ("return p.parse_args(words)", "", True),
        ("return p.parse_args(args=words)", "sys.argv[1:]", True),
        ("return p.parse_args(sys.argv[1:])", "", True),
        ("return p.parse_args(words)", "['--lr', '1']", False),
        ("return p.parse_args(words)", "sys.argv[2:]", False),
        ("words.pop()\n    return p.parse_args(words)", "sys.argv[1:]", False),
        ("if words is None:\n        words = ['--lr', '1']\n    return p.parse_args(words)", "", False),
        ("return p.parse_args(namespace=words)", "read()", False),
    ],
)
def test_a_parser_of_another_module_that_takes_its_words_as_an_argument(
    tmp_path: Path, body: str, call: str, judged: bool
) -> None:
    parser = "import argparse, sys\ndef parse(words=None):\n    p = argparse.ArgumentParser()\n"
    (tmp_path / "helper.py").write_text(f"{parser}    p.add_argument('--lr', required=True)\n    {body}\n")
    found = misfits(tmp_path, f"import sys\nfrom helper import parse\nargs = parse({call})\n", "--rank 1")
    assert len(found) == 2 * judged
    assert all("rejects --rank: unknown option" in each or "requires --lr" in each for each in found)


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        ("", "data, epochs, which are not given: seatrial run … -- VALUE VALUE"),
        ("--lr 1 -v", "data, epochs, which are not given"),
        ("--lr=1 d 3", ""),
        ("d -1", ""),
        ("--lr 1 -- d 3", ""),
        ("-v d 3 more", ""),
        ("--help", ""),
    ],
)
def test_positionals_that_the_words_lack_are_named(tmp_path: Path, words: str, missing: str) -> None:
    source = SHORT + "p.add_argument('-v', action='store_true')\np.add_argument('data')\n"
    source += "p.add_argument('epochs', type=int)\np.add_argument('more', nargs='*')\np.parse_args()\n"
    found = misfits(tmp_path, source, words)
    assert [missing in each for each in found] == ([True] if missing else [])


def test_option_that_only_a_condition_adds_is_not_required(tmp_path: Path) -> None:
    source = SHORT + "if debug:\n    p.add_argument('--x', required=True)\np.parse_args()\n"
    assert misfits(tmp_path, source, "--lr 1") == ()


@pytest.mark.parametrize(("words", "device"), [("[]", "cpu"), ("args=['--device', 'cuda:3']", "cuda:3")])
def test_a_list_in_the_code_replaces_the_command_line(tmp_path: Path, words: str, device: str) -> None:
    source = f"{HEAD}parser.add_argument('--device', default='cpu')\na = parser.parse_args({words})\n"
    (tmp_path / "train.py").write_text(f"{source}import torch\ntorch.zeros(1).to(a.device)\n")
    target = Target(kind="script", value="train.py", args=("--device", "cuda"))
    facts = script_facts(target, tmp_path)
    assert "--device has no effect" in facts.misfits[0] and facts.devices[0].device in (device, "")


@pytest.mark.parametrize(
    ("source", "words", "sentence"),
    [
        (
            "parser.add_argument('--key', default='<your key>')\nargs = parser.parse_args()\nprint(args.key)",
            "",
            "train.py:3",
        ),
        (
            "parser.add_argument('--key', default='<your key>')\nargs = parser.parse_args()\nprint(args.key)",
            "--key k",
            "",
        ),
        ("parser.add_argument('--key', default='<pad>')\nargs = parser.parse_args()\nprint(args.key)", "", ""),
        ("parser.add_argument('--key', default='/path/to/x')\nargs = parser.parse_args()\n", "", ""),
        ("import yaml\nc = yaml.safe_load(open('c.yaml'))\nprint(c['token'])\n", "", "c.yaml:1 token: YOUR_TOKEN"),
    ],
)
def test_a_placeholder_that_is_used_is_named(tmp_path: Path, source: str, words: str, sentence: str) -> None:
    (tmp_path / "c.yaml").write_text("token: YOUR_TOKEN\nother: YOUR_OTHER\n")
    found = misfits(tmp_path, HEAD + source, words)
    assert [each.startswith(sentence) for each in found] == ([True] if sentence else [])
