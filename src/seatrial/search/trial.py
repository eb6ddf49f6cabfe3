"""Trial: one combination of settings, the way in which each reaches the target, and the trial's result."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from seatrial.errors import UsageError
from seatrial.job.model import Job
from seatrial.job.script import source_facts
from seatrial.planning.options import PRECISIONS, RECIPE_FLAGS
from seatrial.receipt.reported import PHASES
from seatrial.search.space import Settings
from seatrial.system.text import nearest

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

#: ``waiting``: its searcher went before the run began, so that it is run again. ``stopped``: by the user, or because
#: the search's time was over. ``not followed``: its searcher has gone while it runs; shown, never stored.
State = Literal["waiting", "running", "done", "pruned", "failed", "stopped", "not followed"]


class TrialReport(NamedTuple):
    """A value of the objective that the script reported; ``step`` is 1 for the first report, 2 for the second …"""

    step: int
    value: float


@dataclass(frozen=True)
class Ending:
    """The end of a trial.

    Attributes:
        value: the objective's last value; None: never reported.
        outcome: the receipt's headline, or why there is none.
        measured: ``seconds``, ``images_per_s``, ``energy_j``, ``utilization_pct``, ``cpu_s``: what is known of them.
        metrics: last values of all that the target reported. printed, percent: names of those only printed, in percent.
        series: the full name under which the objective came several times while it ran; None: none did.
    """

    state: State
    value: float | None = None
    outcome: str = ""
    exit_code: int | None = None
    measured: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    series: str | None = None
    printed: list[str] = field(default_factory=list)
    percent: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Trial:
    """One trial as the study has it; times are seconds since the epoch.

    ``number``: from 0, in the order in which they were made. ``run_id``: None before its run was made.
    """

    number: int
    settings: Settings
    state: State
    run_id: str | None = None
    begun_at: float | None = None
    ended_at: float | None = None
    reports: tuple[TrialReport, ...] = ()
    ending: Ending | None = None

    def reported(self, metric: str) -> str:
        """Return the trial's value of the objective with the metric's name and unit: ``accuracy 98.12 %``."""
        percent = self.ending is not None and any(phase + metric in self.ending.percent for phase in PHASES)
        return f"{metric} {self.value or 0.0:.5g}{' %' * percent}"

    @property
    def value(self) -> float | None:
        """Return the trial's last value so far; None if none has come."""
        if self.ending is not None and self.ending.value is not None:
            return self.ending.value
        return self.reports[-1].value if self.reports else None

    @property
    def label(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.settings.items())

    def as_dict(self) -> dict[str, Any]:
        """Return the trial as an object for results.json and --json."""
        end = self.ending or Ending(self.state)
        measured = {key: end.measured.get(key) for key in ("seconds", "images_per_s", "energy_j", "utilization_pct")}
        return {
            "number": self.number,
            "settings": self.settings,
            "run_id": self.run_id,
            "state": self.state,
            "value": self.value,
            "exit_code": end.exit_code,
            "outcome": end.outcome,
            **measured,
            "metrics": end.metrics,
            "reports": [[report.step, report.value] for report in self.reports],
        }


def trial_of(frozen: FrozenTrial) -> Trial:
    """Return the trial that Optuna keeps."""
    kept = frozen.user_attrs
    ending = Ending(**kept["ending"]) if kept.get("ending") and frozen.state.is_finished() else None
    state = "waiting" if kept.get("owner") is None else "running"
    return Trial(
        number=frozen.number,
        settings=dict(kept["settings"]),
        state=ending.state if ending is not None else state,  # type: ignore[arg-type]
        run_id=kept.get("run"),
        begun_at=kept.get("begun_at"),
        ended_at=kept.get("ended_at"),
        reports=tuple(TrialReport(step, value) for step, value in sorted(frozen.intermediate_values.items())),
        ending=ending,
    )


# ----------------------------------------------------------------------- the ways in which settings reach the target

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

_OPTION = r"""["']--([\w-]+)["'?/=]"""


def ways_in(job: Job, names: Sequence[str]) -> dict[str, str]:
    """Return name of a setting → ``--flag``, ``--flag=``, or the name of a variable. Raises UsageError."""
    source = None if job.target.kind == "recipe" else _sources(job)
    return {name: _way_in(job, name, source) for name in names}


def _way_in(job: Job, name: str, source: str | None) -> str:
    """Return the way in which the target takes a setting. Raises UsageError when its source shows none.

    ``--flag``; ``--flag=`` or ``name=``, the value in the same word; ``--flag?`` or ``--flag?--no-flag``, of a switch
    the words for true, and for false; or the name of a variable.
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
    known = re.findall(_OPTION, source)
    short = (each for each in known if _initials(each) == word or each == _initials(word))  # --lr of a learning_rate
    if close := nearest(name.replace("_", "-"), known) or next(short, None):
        message = f"{job.target.value} has no option --{name}; did you mean {close}?"
        raise UsageError(message, run="${EDITOR:-vi} seatrial.toml", instead=(f"{name}=", [f"{close}="]))
    flag = name.replace("_", "-")
    cause = f"neither --{flag} nor the variable {variable} is in its source"
    cause += f"; it has --{', --'.join(dict.fromkeys(known[:8]))}" if known else ""
    cause = f"{fixed} is a constant in its source, which nothing from outside reaches" if fixed else cause
    run = f'parser.add_argument("--{flag}") in {job.target.value}, or os.environ["{variable}"]'
    raise UsageError(f"{job.target.value} has no way to set {name}", cause=cause, run=run)


def no_settings(job: Job) -> UsageError:
    """Return the error for a search without a setting, with an option of the script that is a number."""
    source = (None if job.target.kind == "recipe" else _sources(job)) or "'--batch-size', default=64)"
    numbers = dict(re.findall(rf"{_OPTION}[^)]*?\bdefault\s*=\s*(\d*\.?\d+(?:e-?\d+)?)\b", source))
    name = next((each for each in ("lr", "learning-rate", "batch-size", *numbers) if each in numbers), None)
    values = f"{name.replace('-', '_')}={numbers[name]},{float(numbers[name]) * 2:g}" if name else "NAME=V1,V2"
    return UsageError("No settings to try: add --set NAME=V1,V2", run=f"seatrial sweep … --set {values}")


def _initials(name: str) -> str:
    return "".join(each[:1] for each in re.split("[-_]", name))


def _switch(flag: str, behind: str) -> str:
    """Return the suffix of the way in for an option without a value, from the source after its name."""
    if (match := _SWITCH.search(behind[: _end_of_call(behind)])) is None:
        return ""
    return f"?--no-{flag[2:]}" if match[1] else "?"


def _end_of_call(behind: str) -> int:
    """Return where the call ends in whose arguments the text begins, or where the next option begins."""
    following = _NEXT_OPTION.search(behind)
    end, deep = following.start() if following else len(behind), 0
    for place, letter in enumerate(behind[:end]):
        deep += (letter in "([{") - (letter in ")]}")
        if deep < 0:
            return place
    return end


def check_switches(ways: Mapping[str, str], values: Mapping[str, Sequence[str]]) -> None:
    """Refuse a value other than true or false for an option that takes no value. Raises UsageError."""
    for name, way in ways.items():
        wrong = [value for value in values.get(name, ()) if value.lower() not in (*_TRUE, *_FALSE)]
        if "?" in way and wrong:
            run = f"seatrial sweep … --set {name}=true,false"
            raise UsageError(f"--set {name}={wrong[0]}: {way.partition('?')[0]} takes no value", run=run)


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
