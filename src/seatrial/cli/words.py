"""The words of a command line as they are typed: which are the target's, which no verb can take, and Docker's."""

from __future__ import annotations

import itertools
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import click

from seatrial.cli.options import Root, has_undecoded, options_of, quoted
from seatrial.cli.verbs import OTHER_WORDS, VERBS
from seatrial.errors import UsageError
from seatrial.job.flags import read_table
from seatrial.system.names import SECRET, hidden

#: Files of a project that are searched for the name of an option.
_MOST_READ, _MOST_BYTES = 200, 20 << 20
#: Parts of a shell script without a counterpart that a note names.
_MOST_LEFT = 6
#: Parsers whose options are the fields of a class or the arguments of a function.
_BY_ANNOTATION = re.compile(r"HfArgumentParser|call_parse|\b(?:dcargs|draccus|fire|simple_parsing|tap|typer|tyro)\b")
#: Options that are the keys of a dictionary: ``add_argument(f"--{key}", …)``.
_BY_KEY = r"""add_argument\(\s*(?:f["']--?\{|["']--?["'] *\+)"""
#: Words of a program that reads its command line, and modules that it may leave this to.
_PARSERS = re.compile(
    r"argv|add_argument|[Aa]rg(?:ument)?_?[Pp]arse|\b(?:absl|click|docopt|hydra)\b|app\.flags|from_cli|"
    + _BY_ANNOTATION.pattern
)
#: NAME or NAME=VALUE, as seatrial's own --env takes it.
_VARIABLE = re.compile(r"[A-Za-z_]\w*(?:=|$)")
#: Options that belong to seatrial even behind a script that declares them.
_ALWAYS_OURS = {
    *("--gpus", "--on", "--strict", "--trust", "--env", "-e", "-h", "--help"),
    *("--memory", "--mount", "--network", "--notify", "--secret", "--ulimit", "--writable"),
}
#: Option that mounts a folder → pattern of a script that reads the mounted folder.
_PLACES = {"--data": r"SEATRIAL_DATA_DIR|[\"']/data\b", "--models": r"SEATRIAL_MODELS_DIR|[\"']/models\b"}
_NEVER_A_SCRIPTS = ("-it", "--dry-run", "--check")
#: Options of seatrial that never follow a target; Hydra has -m, too.
_ENV, _NEVER_BEHIND_A_TARGET = ("-e", "--env"), ("-f", "--file", "-m")
_IMPORTED = re.compile(r"^\s*(?:from|import)\s+([\w.]+)", re.MULTILINE)
#: Words that stand before Docker's own commands.
_PROGRAMS = ("sudo", "docker", "podman", "nvidia-docker", "compose", "container", "image")


def dispatch(typed: list[str]) -> int:
    """Run a verb. Words after the first ``--`` belong to the target, untouched; seatrial's replace a launcher's."""
    _check_words(typed)
    if typed[0] in ("run", "plan") and typed[1:2] and typed[1] in _PROGRAMS[:4] and (docker := of_docker(typed[1:])):
        raise UsageError(docker[0], run=docker[1])
    typed[:] = _in_our_words(typed)  # so that errors advise in these words, too
    argv = with_dashes(typed)
    cut = argv.index("--") if "--" in argv else len(argv)
    ours, theirs = list(argv[:cut]), list(argv[cut + 1 :])
    if ours == ["runs"]:
        ours = ["runs", "--help"]
    return int(Root().main(ours, prog_name="seatrial", standalone_mode=False, obj=theirs) or 0)


def _in_our_words(argv: Sequence[str]) -> Sequence[str]:
    """Put seatrial's words in place of those that start Python in READMEs: ``seatrial run torchrun … train.py``."""
    if argv[0] not in ("run", "plan"):
        return argv
    known, at, words = options_of(argv[0]), 1, [""]
    for name, words in typed_parts(argv[1:], known):
        if name == "--image":
            return argv
        if not name or name == "-m":
            break
        at += len(words)
    if not argv[at:] or (argv[at].endswith(".py") and "=" not in argv[at]):
        return argv
    from seatrial.job.startable import ASSIGNMENT, LAUNCHER_MODULES, PYTHON_SWITCHES, RUNNERS, SUBMITTERS

    python = ["python"] if words[-1] in LAUNCHER_MODULES or words[0] in PYTHON_SWITCHES else []
    if not python and argv[at].startswith("-") and argv[at] != "--":
        return argv
    from seatrial.images.recipes import RECIPES
    from seatrial.job.target import python_command

    cut = argv.index("--") if "--" in argv else len(argv)
    program = [*itertools.dropwhile(ASSIGNMENT.fullmatch, argv[at:cut])] or argv[at:cut]
    ours = _ours_behind(program, known, is_apart="--" in argv)
    if any(each[0].partition("=")[0] == "--image" for each in ours):  # the words are a command of that image
        return argv
    theirs = (each for _, each in typed_parts(argv[at:cut], known) if each not in ours)
    typed = [*itertools.chain(*theirs), *argv[cut + 1 :]]
    env = [re.sub("^(--env=|-e)", "", each[-1]) for name, each in typed_parts(argv[1:cut], known) if name in _ENV]
    env = [f"{each}={os.environ[each]}" if each in os.environ and not SECRET.search(each) else each for each in env]
    if (read := python_command([*python, *typed], Path.cwd(), RECIPES, env)) is None:
        odd = any(not name and each[0][:1] == "-" for name, each in typed_parts(argv[at + 1 : cut], known))
        is_apart = "--" in argv or not odd or Path(argv[at]).exists() or argv[at] in RECIPES
        others = [*argv[:at], *itertools.chain(*ours), typed[0], "--", *typed[1:]]  # another program, with its options
        return argv if is_apart else others
    parts = list(typed_parts(read.words(), known))
    first = next(index for index, (name, _) in enumerate(parts) if not name or name == "-m")
    parts_behind = typed_parts(argv[at + 1 : cut], known)  # what the script requests gives way; its arguments stay
    behind = [words for name, words in parts_behind if name and words[0] not in (*read.arguments, "--launcher", "-m")]
    has_own_options = {*program[:1]} & {*RUNNERS, *SUBMITTERS, "srun", "dvc", "mlflow"}
    behind = ours if has_own_options else behind
    given = {words[0].partition("=")[0] for _, words in typed_parts(argv[1:at], known)} | {each[0] for each in behind}
    kept = [words for name, words in parts[:first] if name == "--env" or name not in given]
    found = [*argv[:at], *itertools.chain(*behind, *kept, *(words for _, words in parts[first:]))]
    if read.target[-1] not in typed and not {"-q", "--quiet"} & {*argv[:cut]}:
        left = f"; left out: {', '.join([*read.left[:_MOST_LEFT], *['…'][: len(read.left) > _MOST_LEFT]])}"
        note = f"seatrial {shlex.join(typed)} is read as: seatrial {shlex.join(found)}{left * bool(read.left)}"
        click.echo(hidden(note, read.secrets), err=True)
    return found


def _ours_behind(words: Sequence[str], known: Mapping[str, bool], *, is_apart: bool) -> list[list[str]]:
    """Return the options of seatrial that follow a target: before a ``--`` all, else those that no file mentions."""
    from seatrial.job.startable import SHELL_SUFFIXES, console_script, scripts
    from seatrial.system.project_files import read_sources

    starts = (at for at, each in enumerate(words) if each.endswith((".py", *SHELL_SUFFIXES)) or words[at - 1] == "-m")
    at, others = next(starts, len(words)), ["--gpus", "--env", "--launcher"]  # a launcher may also set these
    if words and console_script(words[0], Path.cwd()):
        at, others = 0, []
    is_make = words[:1] == ["make"]  # it takes no option of a script, and of ours it has three
    at, others = (0, ["--file", "--help", "--quiet"]) if is_make else (at, others)
    parts = typed_parts(words[at + 1 :], known)
    if is_apart:
        return [each for name, each in parts if name]
    given = [each for each in parts if each[0][:2] == "--" and each[0] not in others]
    reads = given and not is_make
    files = [Path(words[at]), *map(Path, itertools.islice(scripts(Path()), _MOST_READ))] if reads else []
    code = "\n".join(read_sources(files, Path.cwd(), _MOST_BYTES))
    return [each for name, each in given if not (re.search(rf"(?<![\w-]){name}", code) or _declares(code, name))]


def with_dashes(argv: Sequence[str]) -> Sequence[str]:
    """Put ``--`` behind the script of ``seatrial run train.py --epochs 5``, as ``python train.py --epochs 5`` has it.

    Only if no word behind it may be an option of seatrial. A name that equals or resembles one belongs to the script
    if its text has the name in quotes. ``--data`` stays seatrial's if the text reads the mounted folder.
    """
    if argv[0] not in ("run", "plan") or "--" in argv or not argv[1:]:
        return argv
    import difflib

    from seatrial.job.startable import scripts
    from seatrial.system.project_files import read_sources

    here = Path.cwd()
    known, at, text, script = {**options_of(argv[0]), "-h": False, "--help": False}, 1, "", Path()
    for name, words in typed_parts(argv[1:], known):
        at += len(words)
        if not name:
            script = Path(words[0])
            if script.suffix != ".py" or words[0].startswith("-"):
                return argv
        elif name == "-m":
            script = Path(f"{words[-1].replace('.', '/')}.py")
        if not name or name == "-m":
            text = next(read_sources([script], here, _MOST_BYTES), "")
            break
    typed = list(typed_parts(argv[at:], known))
    values = [re.sub("^(--env=|-e)", "", words[-1]) for name, words in typed if name in _ENV]
    odd = any(not _VARIABLE.match(value) for value in values)  # --env Ant-v2 names no variable
    parts = [("" if name in _NEVER_BEHIND_A_TARGET else name, words[0].partition("=")[0]) for name, words in typed]
    ours, theirs = {name for name, _ in parts if name}, {word for name, word in parts if not name}
    absent, texts = not name and not script.is_file(), [text]  # the missing file is the error to report
    long = [] if absent else [word for word in theirs if word[:2] == "--" and "." not in word]
    similar = {word for word in long if difflib.get_close_matches(word, known, n=1, cutoff=0.81)}
    if "add_argument(" in text:  # its parser rejects Docker's options, and -on for --on
        others = {*" ".join(read_table("docker.json")["run"]).split(), *(name[1:] for name in known), *_NEVER_A_SCRIPTS}
        similar |= {word for word in theirs & others if word[:1] == "-" and len(word) > 2}
        similar |= {word for word in theirs - {*known} if re.fullmatch("-[A-Za-z]", word)}
    if ours or similar:
        texts = _with_imports(script)
    if similar or absent:
        files = map(Path, itertools.islice(scripts(Path()), _MOST_READ))
        everywhere = [*texts, *read_sources(files, here, _MOST_BYTES)]
        similar = {name for name in similar if not _declares("\n".join(everywhere), name, begun=True)}
        texts = everywhere if absent else texts  # the intended script may lie in another folder
    declared = all(_declares("\n".join(texts), name) for name in ours | similar)
    looks = any(re.search(form, each) for name, form in _PLACES.items() if name in ours for each in texts)
    same = bool(ours) and not ours & _ALWAYS_OURS and not looks
    reads = not text or _PARSERS.search(text) or any(each.is_file() for each in _imported_files(script, text))
    return [*argv[:at], "--", *argv[at:]] if (theirs or odd or same) and reads and declared else argv


def typed_parts(words: Sequence[str], known: Mapping[str, bool]) -> Iterator[tuple[str, list[str]]]:
    """Yield (name, option and value) or ("", another word) of a command line in order; ``known``: a value follows."""
    at = 0
    while at < len(words):
        name, sign, _ = words[at].partition("=")
        name = "-e" if sign and name[:2] == "-e" and name[2:3].isupper() else name  # -eLR=3
        size = 2 if known.get(name) and not sign else 1
        yield name if name in known else "", [*words[at : at + size]]
        at += size


def _imported_files(script: Path, text: str) -> Iterator[Path]:
    """Yield the project's files that a script imports, with their packages, also from other folders of the project."""
    from seatrial.job.reading.modules import folder_of
    from seatrial.job.startable import scripts
    from seatrial.system.project_files import project_root

    project = project_root(Path.cwd())  # a package of the project, installed there by pip -e
    for root in dict.fromkeys(name.lstrip(".").partition(".")[0] for name in _IMPORTED.findall(text)):
        for folder in {*script.parents, folder_of(root, Path.cwd()) or project, project / "src"}:
            yield from (folder / f"{root}.py", folder / root / "__init__.py")
            yield from (folder / root / each for each in itertools.islice(scripts(folder / root), _MOST_READ))


def _with_imports(script: Path) -> list[str]:
    """Return the texts of a script, of the project's files that it imports, and of those that they import."""
    from seatrial.system.project_files import project_root, read_sources

    text, project = next(read_sources([script], Path.cwd(), _MOST_BYTES), ""), project_root(Path.cwd())
    files = dict.fromkeys(_imported_files(script, text))
    texts = [*read_sources(files, project, _MOST_BYTES)]
    further = (each for each in _imported_files(script, "\n".join(texts)) if each not in files)
    return [text, *texts, *read_sources(dict.fromkeys(further), project, _MOST_BYTES)]


def declared_options(script: Path, names: Iterable[str]) -> set[str]:
    """Return the options of seatrial that a script's own parser has, too, and that it does not take from seatrial."""
    text = "\n".join(_with_imports(script))
    found = {name for name in names if name not in _ALWAYS_OURS and _declares(text, name)}
    return {name for name in found if not re.search(_PLACES.get(name, "(?!)"), text)}


def similar_option(script: Path, typed: str) -> str | None:
    """Return the option of a script's own parser that a word resembles; None if a file of it has the word itself."""
    import difflib

    texts = _with_imports(script)
    if any(_declares(each, typed, begun=True) for each in texts):
        return None
    code = "\n".join(texts)
    names = re.findall(r"""(?:(?i:argument|option|flag|arg)\([^()]*?["']--|DEFINE_\w+\(\s*["'])([\w-]+)["']""", code)
    fields = re.findall(r"(?m:^|[(,])[ \t]*([a-z]\w+)[ \t]*:[ \t]*\w", code) if _BY_ANNOTATION.search(code) else []
    options = [f"--{each}" for each in (*names, *fields, *(each.replace("_", "-") for each in fields))]
    return next(iter(difflib.get_close_matches(typed, options, n=1, cutoff=0.8)), None)


def _declares(script: str, option: str, *, begun: bool = False) -> bool:
    """Look for ``option("--name"`` of argparse and click, ``DEFINE_string("name"`` of absl, ``name: str`` of typer.

    ``begun``: find any text with the name, or a longer one with this beginning, which argparse accepts.
    """
    own, rest = re.escape(option.lstrip("-")), r"[\w-]*" if begun else ""
    call = "" if begun else r"""(?i:argument|option|flag|arg)\(\s*(?:["'][^"']*["']\s*,\s*)*"""
    name = own.replace(re.escape("-"), "_")
    field = rf"|(?m:^|[(,])\s*{name}{rest}\s*:\s*\w" if _BY_ANNOTATION.search(script) else ""
    field += rf"|\b{name}{rest}\s*=" if begun and re.search(_BY_KEY, script) else ""
    return re.search(rf"""{call}["']{option}{rest}["']|DEFINE_\w+\(\s*["']{own}["']{field}""", script) is not None


def _check_words(argv: Sequence[str]) -> None:
    """Raise UsageError for the first word that is not UTF-8: it goes into plan.json and to a container."""
    comment = next((at for at, word in enumerate(argv) if re.match(r"\s+#", word)), None)
    if comment and "--" not in argv[:comment]:
        run = f"seatrial {shlex.join(argv[:comment])}"
        raise UsageError("A \\ continues a line only as its last character; a comment follows this one", run=run)
    for word in argv:
        if word.isascii() or not has_undecoded(word):
            continue
        try:
            text = os.fsencode(word).decode("utf-8")
        except UnicodeDecodeError:
            run = f"seatrial {argv[0]} --help   # rename the file"
            raise UsageError(f"An argument is not UTF-8 text: {quoted(word)}", run=run) from None
        run = f"PYTHONUTF8=1 seatrial {argv[0]} …"
        raise UsageError(f"This locale cannot encode {quoted(text)}", cause="it is not UTF-8", run=run)


def without_docker(argv: Sequence[str]) -> tuple[str, list[str]]:
    """Return what stands for Docker's options of a command line, and its words without them; "" if it has none."""
    cut = argv.index("--") if "--" in argv else len(argv)
    pairs = itertools.pairwise([*argv[:cut], ""])
    argv = [*("--mount" if word == "-v" and ":" in after else word for word, after in pairs), *argv[cut:]]
    known, rows, has_value = options_of(argv[0]), dict[str, str](), dict[str, bool]()
    for names, row in read_table("docker.json")["build" if argv[0] == "build" else "run"].items():
        for name in (each for each in names.split() if each[0] == "-"):
            rows[name], has_value[name] = row, not names.split()[-1].startswith("-")
    kept, notes, has_target = [argv[0]], dict[str, None](), "-m" in argv[:cut] or "--image" in argv[:cut]
    parts, behind_script = [*typed_parts(argv[1:cut], has_value | known)], False
    for at, (name, words) in enumerate(parts):
        letters = [f"-{letter}" for letter in words[0][1:]] if not name and words[0][:2] != "--" else []
        if behind_script and words[0][:2] != "--" and words[0] not in ("-it", "-ti"):  # short options are the script's
            kept += words
        elif name in rows and name not in known:
            notes[f"{name}: {'seatrial has ' * (rows[name] in known)}{rows[name]}"] = None
            if rows[name] in known:
                kept += [rows[name], words[-1].removeprefix(f"{name}=")]
        elif words[0][0] == "-" and letters[1:] and all(each in rows or each in known for each in letters):
            notes |= {f"{each}: {rows[each]}": None for each in letters if each not in known}
            kept += [each for each in letters if each in known]
        elif name or words[0].startswith("-") or has_target:
            kept += words
        elif is_script(words[0]):
            kept, has_target, behind_script = [*kept, *words], True, True
            rows = {each: row for each, row in rows.items() if each not in declared_options(Path(words[0]), rows)}
        else:
            rest = [word for _, each in parts[at + 1 :] for word in each]
            return "\n".join(notes), [*kept, *_target(argv[0], words[0], rest), *argv[cut:]]
    return "\n".join(notes), [*kept, *argv[cut:]]


def is_script(word: str) -> bool:
    """Return whether a word is a Python file that is there."""
    return word.endswith(".py") and Path(word).is_file()


def _target(verb: str, word: str, rest: list[str]) -> list[str]:
    """Return seatrial's words for Docker's image and its command, or for the folder of a build."""
    from seatrial.images.recipes import RECIPES
    from seatrial.job.startable import what_is_here

    if verb == "build" and Path(word).is_dir() and (here := what_is_here(Path(word))) and not here[1]:
        return shlex.split(here[2]) if word == "." else [str(Path(word) / here[2])]
    if verb == "build" or Path(word).exists() or word.endswith(".py") or word in RECIPES:
        return [word, *rest]
    return ["--image", word, *(["--", *rest] if rest else [])]


def of_docker(argv: Sequence[str]) -> tuple[str, str] | None:
    """Return (sentence, command) for ``docker run …`` behind seatrial, or for a command of Docker alone; else None."""
    at = next((at for at, word in enumerate(argv) if word not in _PROGRAMS), len(argv))
    if argv[at:] and ({*argv[:at]} - {"sudo"} or argv[0] in read_table("docker.json")["commands"]):
        typed = " ".join(["docker", *(each for each in argv[:at] if each in _PROGRAMS[4:]), argv[at]])
        verb = OTHER_WORDS.get(argv[at], argv[at])
        if verb.split()[0] in VERBS:
            known, rest = options_of(*verb.split()), argv[at + 1 :]
            words = without_docker([verb, *rest])[1][1:] if verb in ("run", "build") else [*rest]
            while words and words[0].startswith("-") and words[0] not in known:
                words = words[1:]
            command = shlex.join(["seatrial", *verb.split(), *words])
            return f"seatrial starts containers itself: {typed} is seatrial {verb}", command
        command = shlex.join([*(argv[:at] or ["docker"]), *argv[at:]])
        return f"seatrial has no counterpart to {typed}", command
    return None
