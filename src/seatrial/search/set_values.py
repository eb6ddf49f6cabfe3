"""Find the way in which a setting reaches the target: a flag or a variable that its source shows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from seatrial.errors import UsageError
from seatrial.job.model import Job
from seatrial.job.script import source_facts
from seatrial.planning.options import PRECISIONS, RECIPE_FLAGS

#: Libraries that make a flag from a name in the source → the character that joins its words.
_FLAG_MAKERS = {
    r"(?:import|from)\s+(?:tyro|fire|simple_parsing|jsonargparse)\b": "_",
    r"\bHfArgumentParser\b": "_",
    r"(?:import|from)\s+typer\b": "-",
}

#: Scripts whose globals are set by ``--name=value``, as nanoGPT's.
_CONFIGURATOR = "configurator.py"

#: Import of absl, whose boolean flags take the value in the same word only.
_ABSL = r"(?:import|from)\s+absl\b"

#: Scripts that take ``model.width=64``: of Hydra, and OmegaConf's from_cli.
_OVERRIDES = r"(?:import|from)\s+hydra\b|\bfrom_cli\("

#: An option that takes no value. Source: argparse's actions, click's is_flag.
_SWITCH = re.compile(r"action\s*=\s*[\"']store_(?:true|false)|\bis_flag\s*=\s*True|(BooleanOptionalAction)")
_NEXT_OPTION = re.compile(r"\b(?:add_argument|option)\(")
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


def ways_in(job: Job, names: Sequence[str]) -> dict[str, str]:
    """Return name of a setting → ``--flag``, ``--flag=``, or the name of a variable. Raises UsageError."""
    source = None if job.target.kind == "recipe" else _sources(job)
    return {name: _way_in(job, name, source) for name in names}


def _way_in(job: Job, name: str, source: str | None) -> str:
    """Return the way in which the target takes a setting.

    ``--flag``; ``--flag=`` or ``name=``, the value in the same word; ``--flag?`` or ``--flag?--no-flag``, of a switch
    the words for true, and for false; or the name of a variable.

    Raises UsageError when its source shows none.
    """
    variable = re.sub("[-.]", "_", name.upper())
    if job.target.kind == "recipe":
        return RECIPE_FLAGS.get(variable, "--" + name.replace("_", "-"))
    if source is None:
        return variable
    word = name.replace("-", "_")
    for flag in ("--" + name.replace("_", "-"), "--" + name.replace("-", "_")):
        if match := re.search(rf"""["']{re.escape(flag)}(?:/(--[\w-]+))?["'=]""", source):
            return flag + (f"?{match[1]}" if match[1] else _switch(flag, source[match.end() :]))
    if re.search(rf"""["']{re.escape(variable)}["']""", source):
        return variable
    if re.search(_OVERRIDES, source):
        return f"{name}="
    last = re.escape(word.rpartition(".")[2])  # of a nested configuration's
    if re.search(rf"\b{last}\b", source):
        if re.search(_ABSL, source):
            return f"--{word}="
        joins = next((join for maker, join in _FLAG_MAKERS.items() if re.search(maker, source)), None)
        if joins is not None:
            flag = "--" + word.replace("_", joins)
            truth = re.search(rf"\b{last}\s*:\s*bool\b", source) and re.search(r"import\s+(?:tyro|typer)", source)
            return f"{flag}?--no-{flag[2:]}" if truth else flag
        if _CONFIGURATOR in source:
            return f"--{word}="
    both = f"{re.escape(variable)}|{re.escape(word)}"
    constant = re.search(rf"(?m)^(?:({both})|\s+({both})(?=\s))\s*(?::[^=\n]+)?=", source)  # not f(name=value)
    fixed = constant and (constant[1] or constant[2])
    raise UsageError(
        f"{job.target.value} has no way to set {name}",
        cause=f"{fixed} is a constant in its source, which nothing from outside reaches"
        if fixed
        else f"neither --{name.replace('_', '-')} nor the variable {variable} is in its source",
        run=f'parser.add_argument("--{name.replace("_", "-")}") in {job.target.value}, or os.environ["{variable}"]',
    )


def _switch(flag: str, behind: str) -> str:
    """Return the suffix of the way in for an option without a value, from the source after its name."""
    match = _SWITCH.search(behind[: _end_of_call(behind)])
    if match is None:
        return ""
    return f"?--no-{flag[2:]}" if match[1] else "?"


def _end_of_call(behind: str) -> int:
    """Return the place where the call ends in whose arguments the text begins, or the next option begins."""
    following = _NEXT_OPTION.search(behind)
    end, deep = following.start() if following else len(behind), 0
    for place, letter in enumerate(behind[:end]):
        deep += (letter in "([{") - (letter in ")]}")
        if deep < 0:
            return place
    return end


def check_switches(ways: Mapping[str, str], values: Mapping[str, Sequence[str]]) -> None:
    """Refuse a value other than true or false for an option that is there or not. Raises UsageError."""
    for name, way in ways.items():
        wrong = [value for value in values.get(name, ()) if value.lower() not in (*_TRUE, *_FALSE)]
        if "?" in way and wrong:
            raise UsageError(
                f"--set {name}={wrong[0]}: {way.partition('?')[0]} takes no value",
                run=f"seatrial sweep … --set {name}=true,false",
            )


def _sources(job: Job) -> str | None:
    """Read the target and what it imports of the project; None for an image, or a module of no project."""
    files = source_facts(job).files
    texts = ((job.project / name).read_text(encoding="utf-8", errors="replace") for name in files)
    return "\n".join(texts) if files else None


def varied(job: Job, chosen: Mapping[str, str], ways: Mapping[str, str]) -> Job:
    """Return the job with these settings handed to its target, and in its name."""
    args, env = list(job.target.args), dict(job.env)
    for name, value in chosen.items():
        if ways[name].endswith("="):
            args.append(ways[name] + value)
        elif "?" in ways[name]:
            yes, _, no = ways[name].partition("?")
            args += [word for word in [yes if value.lower() in _TRUE else no] if word]
        elif ways[name].startswith("--"):
            if ways[name] == "--precision":
                value = PRECISIONS.get(value.lower(), value)
            args += [ways[name], value]
        else:
            env[ways[name]] = value
    suffix = re.sub(r"[^A-Za-z0-9_.-]+", "-", "-".join(f"{name}-{value}" for name, value in chosen.items()))
    run_name = f"{job.name}-{suffix}"[:63].rstrip("-.") if job.name else None
    return job.changed(name=run_name, env=env, target=job.target.changed(args=tuple(args)))
