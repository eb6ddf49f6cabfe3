"""The one door to the terminal: names, arguments and files that steer a terminal, through every verb."""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import unicodedata
from pathlib import Path

import pytest
import rich.console
import rich.table

from seatrial import cli
from seatrial.cli import terminal
from seatrial.cli.screen import _COMMAND, Screen
from seatrial.system.text import one_line, visible
from tables import constant

#: Conceals what follows, erases the screen (in 7 and 8 bits), turns the direction of writing, and is not seen.
HOSTILE = "\x1b[8m\x9b2J\x07\x7f\u202e\u200b\u2066\u2028\xad[bold]"

#: Hides no letter but begins a line: a verdict, or a command to paste.
FORGED = "\n[✓] Done. GPUs used\n  fix: rm -rf ~"

SOURCE = Path(cli.__file__).parent.parent

#: Rooms of the host's side whose text reaches a terminal.
ROOMS = ("cli", "compose", "search", "monitor", "runs", "planning", "doctor", "receipt", "web", "system", "job")


def steering(text: str) -> set[str]:
    """Characters of the categories that steer a terminal or cannot be seen; colours of ours are taken out."""
    kinds = {"Cc", "Cf", "Zl", "Zp", "Cs"}
    return {letter for letter in text if unicodedata.category(letter) in kinds and letter not in "\n\t"}


def past_the_door(path: Path) -> list[str]:
    """Calls that reach a standard stream without the door; ``print`` and ``sys.stdout.write`` go through it."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        text = ast.unparse(node) if isinstance(node, (ast.Attribute, ast.Call)) else ""
        console = re.match(r"(rich\.)?(console\.)?Console\((?!note=)", text)  # a Person of compose has a note
        if console or re.fullmatch(r"sys\.(__stdout__|__stderr__|(stdout|stderr)\.buffer)", text):
            found.append(f"{path.relative_to(SOURCE)}:{node.lineno}: {text}")
        if re.match(r"os\.(write|fdopen)\([12]\b|open\('/dev/(tty|stdout|stderr)|.*\.markup\b", text):
            found.append(f"{path.relative_to(SOURCE)}:{node.lineno}: {text}")
    return found


#: The target's own output, and the output of a program that ``runs exec`` starts.
OUTPUT = {"system/command.py": "sys.stderr.buffer"}


def test_no_code_of_the_host_prints_past_the_door() -> None:
    files = [path for folder in ROOMS for path in sorted((SOURCE / folder).rglob("*.py"))]
    found = [each for path in files for each in past_the_door(path)]
    assert not [each for each in found if OUTPUT.get(each.partition(":")[0], "-") not in each]


def test_a_console_or_a_raw_stream_is_found_by_that_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "SOURCE", tmp_path)
    (tmp_path / "verb.py").write_text("Console(highlight=False)\nsys.stdout.buffer.write(b'')\nos.write(1, b'')\n")
    assert len(past_the_door(tmp_path / "verb.py")) == 3


def test_every_letter_that_steers_is_visible_and_a_json_text_stays_one() -> None:
    unseen = [chr(code) for code in range(sys.maxunicode + 1) if steering(chr(code))]
    assert not steering(visible("".join(unseen)))
    for letter in (each for each in unseen if each > "\x9f"):
        assert json.loads(visible(json.dumps(letter, ensure_ascii=False))) == letter
    assert visible("naïve ⚠️ 日本 é\n\t|") == "naïve ⚠️ 日本 é\n\t|"
    assert one_line("a\nb\tc") == "a\\nb\\tc"


def test_a_console_colours_its_own_text_and_one_of_a_library_is_cleaned_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    text = HOSTILE.replace("\x07", "")  # rich takes out the bell itself
    terminal.console().print(f"a{text}b", style="bold")
    assert capsys.readouterr().out == f"\x1b[1ma{visible(text)}b\x1b[0m\n"
    with terminal.open_door():
        rich.console.Console(force_terminal=True, color_system="standard").print("a", style="bold")
        print(HOSTILE, file=sys.stderr)
        sys.stdout.writelines([HOSTILE])
    shown = capsys.readouterr()
    assert not steering(shown.out) and not steering(shown.err)
    assert not isinstance(sys.stdout, terminal.Door)


def test_lines_of_a_table_end_with_their_last_letter(capsys: pytest.CaptureFixture[str]) -> None:
    table = rich.table.Table(box=None)
    table.add_row("a", "long text")
    table.add_row("b", "c  ")
    terminal.console().print(table)
    assert [line for line in capsys.readouterr().out.splitlines() if line] == [" a  long text", " b  c"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in a folder, with files and with a run whose names and arguments steer a terminal."""
    folder = tmp_path_factory.mktemp("door") / f"project{HOSTILE}"
    folder.mkdir()
    script = "import sys\nprint('a\\x1b[8mb')\nsys.exit('error: a\\x1b[8mb')\n"
    (folder / f"train{HOSTILE}.py").write_text(script)
    config = f'secrets = ["KEY"]\n[env]\nA = {json.dumps(HOSTILE + FORGED)}\n'
    (folder / "seatrial.toml").write_text(config)
    lines = (f"FROM python{HOSTILE}", f"RUN pip install torch {HOSTILE}", f"COPY {HOSTILE} .", f"FOO {HOSTILE}")
    (folder / "Dockerfile").write_text("\n".join(lines))
    service = {"image": f"a{HOSTILE}", "command": [HOSTILE + FORGED], "labels": {HOSTILE: HOSTILE}}
    (folder / "compose.yaml").write_text(json.dumps({"services": {"a": service}}))
    (folder / "train.log").write_text(f"{HOSTILE} CUDA error: no kernel image is available {HOSTILE}\n")
    return folder


#: What the words of COMMANDS stand for.
WORDS = {
    "TARGET": "trainHOSTILE.py --on local --gpus none",
    "ARGUMENTS": "-- HOSTILEFORGED",
}
COMMANDS = constant(__file__, "COMMANDS")


def typed(words: str) -> list[str]:
    for name, meaning in WORDS.items():
        words = words.replace(name, meaning)
    return [word.replace("HOSTILE", HOSTILE).replace("FORGED", FORGED) for word in words.split()]


def test_no_verb_prints_a_letter_that_steers_or_a_line_that_is_forged(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable in ("SEATRIAL_STATE", "SEATRIAL_LEASES", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    monkeypatch.setenv("KEY", "a secret of some length")
    monkeypatch.chdir(project)
    failed, codes = [], []
    for words in map(typed, COMMANDS):
        codes.append(cli._main(words))
        shown = capsys.readouterr()
        text = (shown.out + shown.err).replace("a\x1b[8mb", "")  # the target's own output
        lines = [line for line in text.splitlines() if line.startswith(("[✓] Done. GPUs", "  fix: rm"))]
        if steering(text) or lines or "Internal error" in text:
            failed.append((words[:3], sorted(map(ascii, steering(text))), lines))
    assert not failed, failed
    assert codes[0] != 0 and codes[1] == 1, "the run that nobody allowed, and the one that was"
    pages = [*(project / ".seatrial").rglob("receipt.*"), project / "c.html"]
    assert len(pages) >= 4
    assert not [page for page in pages if page.suffix != ".json" and steering(page.read_text())]


def test_a_request_of_a_project_cannot_hide_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    Screen().asks([f"mounts {HOSTILE}{FORGED}", "runs on this machine"])
    head, first, second = capsys.readouterr().err.splitlines()
    assert head == "This project asks for" and second == "  runs on this machine"
    assert first == "  " + one_line(f"mounts {HOSTILE}{FORGED}")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_sentence_breaks_between_words_only_on_a_terminal(width: int) -> None:
    sentence = "  cause: NVML is not available: libnvidia-ml.so.1 cannot be loaded " + "x" * 130 + " (no driver)"
    screen = rich.console.Console(file=io.StringIO(), force_terminal=True, width=width)
    lines = terminal.at_words(sentence, screen).splitlines()
    assert " ".join(map(str.strip, lines)) == sentence.strip() and len(lines) > 2
    assert all(line.startswith("    ") for line in lines[1:])
    assert all(len(line) <= width or "x" * 130 in line for line in lines)
    assert terminal.at_words(sentence, rich.console.Console(file=io.StringIO())) == sentence


@pytest.mark.parametrize("width", [60, 80])
def test_a_comment_behind_a_command_breaks_between_words_and_the_command_stays_whole(width: int) -> None:
    command = "  fix: seatrial run train.py --on docker --gpus none -- " + "x" * 30
    advice = f"{command}   # on the CPU; lspci -d 10de:: shows whether this machine has a GPU of NVIDIA at all"
    screen = rich.console.Console(file=io.StringIO(), force_terminal=True, width=width)
    first, *comment = terminal.at_comment(advice, screen).splitlines()
    assert first == command and all(line.startswith("    # ") and len(line) <= width for line in comment)
    assert " ".join(line[6:] for line in comment) == advice.partition("   # ")[2]
    assert terminal.at_comment(advice, rich.console.Console(file=io.StringIO())) == advice
    assert terminal.at_comment("a   # b", screen) == "a   # b"


@pytest.mark.parametrize("width", [30, 60, 80])
def test_a_command_in_a_sentence_stays_on_one_line(width: int) -> None:
    screen = rich.console.Console(file=io.StringIO(), force_terminal=True, width=width)
    sentence = (
        "seatrial team is up in the background; seatrial runs ls lists it, seatrial runs stop team -C /a/b ends it"
    )
    lines = terminal.at_words(sentence, screen, whole=_COMMAND).splitlines()
    assert " ".join(map(str.strip, lines)) == sentence and len(lines) > 1
    assert any("seatrial runs stop team -C /a/b ends" in line for line in lines)
