"""The ``fix:`` of an error is a command: the shell takes it, and where it is ours, our own parser does."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

import seatrial
from seatrial import cli
from seatrial.cli.completion import find_command
from seatrial.cli.errors import as_typed
from seatrial.cli.options import Root
from seatrial.cli.verbs import VERBS
from seatrial.findings.catalogue import entries
from seatrial.findings.finding import with_own_words
from tables import cases, constant

#: Words of the shell itself.
BUILTIN = {"cd", "export", "unset", "read", "ulimit"}

#: Not of a command to type: a change to a file, or a sentence.
_PROSE = re.compile(r"(in|the|or|a|set|add|upgrade|remove|change|name|rename|free|pass|use) ", re.IGNORECASE)


def commands(fix: str) -> list[list[str]]:
    """The words of each command in a fix, as bash would split them. Fails for what bash does not take."""
    checked = subprocess.run(["bash", "-n", "-c", fix], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, f"{fix}: {checked.stderr}"
    lexer = shlex.shlex(fix, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set(";&|"):
            found.append([])
        else:
            found[-1].append(word)
    return [words for words in found if words]


def is_taken(words: list[str]) -> None:
    """A command of ours parses; another is a program, or could be one."""
    while "=" in words[0] or words[0] == "sudo":
        words = words[1:]
    if words[0] != "seatrial":
        assert words[0] in BUILTIN or re.fullmatch(r"[\w./${}:-]+", words[0]), words
        return
    if words[1] in ("--help", "--version", "--completion"):
        return
    ours = words[2 : words.index("--")] if "--" in words else words[2:]
    command = find_command(Root(), words[1:2])
    assert command is not None, words
    if isinstance(command, click.Group) and ours and not ours[0].startswith("-"):
        command, ours = command.commands[ours[0]], ours[1:]
    if "--help" not in ours:
        command.make_context("seatrial", list(ours), obj=[])


#: Fixes of refused commands, which another test compares word for word.
APPROVED = {advice for _, advice in constant(str(Path(__file__).with_name("test_messages.py")), "REFUSED").values()}


@pytest.mark.parametrize("advice", sorted(APPROVED))
def test_an_approved_fix_is_taken(advice: str) -> None:
    if not _PROSE.match(advice):
        for command in commands(advice):
            is_taken(command)


@pytest.fixture
def fix(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def fail(*words: str) -> str:
        assert cli._main(list(words)) != 0, words
        error = capsys.readouterr().err
        lines = [line for line in error.splitlines() if line.startswith("  fix: ")]
        assert lines, error
        return lines[0].removeprefix("  fix: ")

    return fail


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "mein projekt ü (1)"
    (folder / "sub dir").mkdir(parents=True)
    (folder / "empty data").mkdir()
    (folder / "train me.py").write_text("print(1)")
    (folder / "broken 'quote.py").write_text("def (:\n")
    (folder / "latin.py").write_bytes(b"# \xe9\n\xff\xfe")
    (folder / "note book.ipynb").write_text("{}")
    (folder / "start me.sh").write_text("echo")
    monkeypatch.chdir(folder)
    return folder


ERRORS = constant(__file__, "ERRORS")


@pytest.mark.parametrize("words", ERRORS, ids=" ".join)
def test_the_fix_of_an_error(fix: Callable[..., str], project: Path, words: tuple[str, ...]) -> None:
    advice = fix(*words)
    if _PROSE.match(advice):
        assert "seatrial run" not in advice
        return
    for command in commands(advice):
        is_taken(command)


def test_a_path_is_the_one_to_type_from_here(
    fix: Callable[..., str], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [[*_, path]] = commands(fix("run", "latin.py"))
    assert path == "latin.py"
    monkeypatch.chdir("sub dir")
    [[*_, path]] = commands(fix("run", "latin.py", "-C", ".."))
    assert Path(path).samefile("../latin.py")


CATALOGUE = [(entry.id, entry.fix) for entry in entries() if entry.fix.startswith("seatrial ")]


@pytest.mark.parametrize("advice", [fix for _, fix in CATALOGUE], ids=[id for id, _ in CATALOGUE])
def test_the_fix_of_a_known_failure(advice: str) -> None:
    """With the user's own words in it, as receipts and errors show it."""
    advice = with_own_words(re.sub(r"\{\w+\}", "2", advice), ["train me.py", "--gpus", "1"], ["--", "--epochs", "5"])
    advice = re.sub(r"<[\w-]+>", "X", advice)
    for command in commands(advice):
        if "…" not in command:
            is_taken(command)


@cases("advice", "own", "arguments", "shown")
def test_own_words(advice: str, own: str | None, arguments: str | None, shown: str) -> None:
    """An option that may be given twice stays, a variable is set once, and of two mounts none is chosen."""
    words = ["a b.py", "--gpus", "1"] if own is None else own.split()
    assert with_own_words(advice, words, ["--", "-x"] if arguments is None else arguments.split()) == shown


PACKAGE = Path(seatrial.__file__).parent

#: Folders whose errors a training prints inside a container: it cannot know the command outside.
_INSIDE = ("agent", "export", "models", "recipes", "serve", "train")


def _texts(node: ast.AST) -> Iterator[str]:
    """Every text that an expression may be, with 2 in place of its values."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "2" for part in node.values)
    elif isinstance(node, ast.IfExp | ast.BoolOp):
        for part in ast.iter_child_nodes(node):
            yield from _texts(part)
    elif isinstance(node, ast.BinOp):
        yield from (left + right for left in _texts(node.left) for right in _texts(node.right))


WRITTEN = {
    f"{path.relative_to(PACKAGE)}:{node.value.lineno}:{number}": text
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.relative_to(PACKAGE).parts[0] not in _INSIDE
    for node in ast.walk(ast.parse(path.read_text()))
    if (isinstance(node, ast.keyword) and node.arg in ("run", "fix"))
    or (isinstance(node, ast.Assign) and {ast.unparse(each) for each in node.targets} & {"run", "fix"})
    for number, text in enumerate(_texts(node.value))
} | {entry.id: re.sub(r"\{\w+\}|<[\w-]+>", "2", entry.fix) for entry in entries()}


#: What stands where a value does, so that the rest is a command.
_VALUES = {"… 2": "… --trust", "… -- 2": "… -- --lr", "--2": "--image"}


@pytest.mark.parametrize("advice", WRITTEN.values(), ids=[*WRITTEN])
def test_a_fix_in_the_source_is_whole(advice: str) -> None:
    """It begins with no option, and each command of ours in it, a comment's too, is whole and taken."""
    assert not advice.startswith("-") and advice.count(" # ") == advice.count("   # ") <= 1
    for value, word in _VALUES.items():
        advice = advice.replace(value, word)
    for verb in [verb for verb in VERBS if re.search(rf"seatrial {verb}( [^a-z]|$)", advice)]:
        shown = as_typed(advice, [verb, "a.py", *(["--to", "onnx"] if verb == "export" else [])])
        for call in re.findall(rf"(?<![\w.])seatrial {verb}(?: '[^']*'| [^\s;&|#]*)*", shown or ""):
            assert "…" not in call
            is_taken([word.rstrip(",") for word in shlex.split(call)])
