"""load_job: seatrial.toml (or [tool.seatrial] of pyproject.toml) and flags → Job.

Tables merge, lists add up, and of everything else the flag wins. A target on the command line brings its own
arguments: those of the file belong to the file's target.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from seatrial.errors import ConfigError, DataError, TargetError, UsageError, os_errors
from seatrial.job.asks import mounted, project_asks
from seatrial.job.cluster import ClusterOptions, volumes_apart
from seatrial.job.flags import FLAGS, KEYS
from seatrial.job.host_paths import host_paths
from seatrial.job.in_container import CONTAINER_PROJECT
from seatrial.job.keys import KeyTable, typed_keys
from seatrial.job.model import ConfigFile, Criteria, ImageOptions, Job, Target, WatchOptions, file_keys
from seatrial.job.reading.modules import is_file
from seatrial.job.tables import Changes, Notify, SweepTable, from_flags
from seatrial.job.target import resolve_target
from seatrial.system.project_files import as_table, is_there, read_toml, real_project
from seatrial.system.text import as_typed, from_here, nearest, shown

_TABLES: dict[str, type[KeyTable]] = {
    "image": ImageOptions,
    "criteria": Criteria,
    "watch": WatchOptions,
    "notify": Notify,
    "kubernetes": ClusterOptions,
    "tune": Changes,
    "sweep": SweepTable,
}

#: pydantic's type of an error → the words of TOML for it.
_EXPECTED = {
    "bool_type": "expected true or false",
    "dict_type": "expected a table",
    "tuple_type": "expected a list",
    "model_type": "expected a table",
    "string_type": "expected text",
}

#: Mistakes of one file that are reported at once.
_MOST_PROBLEMS = 8

#: Keys of the file that are options, as they are typed.
_FLAGS = {flag.key: flag.name for flag in FLAGS}


def load_job(
    project: Path,
    flags: Mapping[str, Any],
    *,
    without_container: Callable[[str], bool],
    recipes: Collection[str] = (),
    cwd: Path | None = None,
    leave_out: Collection[str] = (),
) -> Job:
    """Return what the user requests.

    Args:
        project: the folder that the target gets; the file is looked for in it.
        flags: the same keys and shape as the file, e.g. ``{"gpus": "2", "image": {"ready": "x"}}``; numbers may be
            text, None and () mean not given, and ``env`` may be a list of ``NAME=value`` or ``NAME`` (then the
            value is this process's, as for ``docker run --env``).
        without_container: whether the backend of a name runs the target as the user's own process.
        recipes: names of the built-in recipes.
        cwd: folder that relative paths in flags count from, and that a target of the flags starts in if it is the
            project's; the current one by default.
        leave_out: keys of the file that do not count.

    Raises:
        ConfigError: names file and key, what was expected and found, and the nearest key.
        DataError: a data folder or mounted file that is missing or empty.
        TargetError: nothing to run, or not there.
    """
    project = real_project(project)
    cwd = Path(os.path.realpath(cwd or Path.cwd()))
    own, typed = _file_source(project), _Source("", "seatrial run --help", cwd, _given(flags))
    from_file = {key: value for key, value in own.read().items() if key not in ("sweep", *leave_out)}
    from_flags = typed.read()
    config = _merge(from_file, from_flags)
    if "kubernetes" in from_flags and config.get("backend") != "k8s":
        names = ", ".join(_FLAGS.get(f"kubernetes.{key}", key) for key in from_flags["kubernetes"])
        raise UsageError(f"{names}: only for runs on Kubernetes", run="seatrial run … --on k8s")
    wishes = _not_replaced(from_file, from_flags)
    for source, values in ((own, wishes), (typed, from_flags)):
        with source.naming():
            _check_paths(values, project)
    image = config.get("image", {})
    if "python" in image and "ready" not in image:
        why = "a build has the Python of image.base, such as python:3.12-slim-bookworm"
        raise ConfigError(f"image.python is for an existing image, image.ready; {why}", run=own.run)
    with (typed if {"target", "module", "image"} & {*from_flags} else own).naming():
        target, start = _target(project, cwd, from_file, from_flags, image.get("ready"), recipes)
    if start != project and "workdir" not in config:
        config["workdir"] = str(start.relative_to(project))
    if config.get("backend") != "k8s":  # which auto never chooses: the rest of the file does not reach a cluster
        wishes.pop("kubernetes", None)
    asks = project_asks(wishes, project, without_container)
    nodes = config.pop("nodes", 1)
    hosts = nodes if isinstance(nodes, tuple) else ()
    rest = {key: value for key, value in config.items() if key not in ("target", "module", "args")}
    job = Job(project=project, target=target, asks=asks, nodes=len(hosts) or nodes, hosts=hosts, **rest)
    if target.kind not in ("script", "module") or without_container(job.backend):
        return job
    job = _with_exported_path(job, cwd)
    unasked = (path for path in host_paths(job) if path.is_there and not (path.typed and from_flags.get("args")))
    more = (ask for path in unasked for ask in mounted(path.source, project, path.target, read_only=True))
    return job.changed(asks=(*asks, *more))


def _with_exported_path(job: Job, cwd: Path) -> Job:
    """Return the job with the project's folders on the caller's exported PYTHONPATH, unless it sets its own."""
    named = (Path(os.path.realpath(cwd / each)) for each in filter(None, os.environ.get("PYTHONPATH", "").split(":")))
    ours = [each.relative_to(job.project).as_posix() for each in named if each.is_relative_to(job.project)]
    if not ours or "PYTHONPATH" in job.env:
        return job
    return job.changed(env={**job.env, "PYTHONPATH": ":".join(f"{CONTAINER_PROJECT}/{each}" for each in ours)})


def read_file(project: Path) -> dict[str, Any]:
    """Return the checked keys of the project's file; {} without one. Raises ConfigError."""
    return _file_source(project).read()


def read_sweep(project: Path) -> SweepTable:
    """Read [sweep] of the project's file; empty where it has none. Raises ConfigError."""
    return SweepTable(**read_file(project).get("sweep", {}))


@dataclass(frozen=True)
class _Source:
    """Where keys come from: a file (``where`` ends in what precedes its keys) or, with "", the flags."""

    where: str
    run: str
    base: Path
    table: Any

    def read(self) -> dict[str, Any]:
        """Return what is set, validated, under the names that a Job has for it: values as in a Job, tables as dicts."""
        if not isinstance(self.table, dict):
            raise ConfigError(f"{self.where.rstrip('.')}: expected a table, got {shown(self.table)}", run=self.run)
        try:
            config = ConfigFile.model_validate(
                volumes_apart(self.table), context={"base": self.base}, by_alias=True, by_name=False
            )
        except ValidationError as error:
            order = {key: place for place, key in enumerate(file_keys())}
            found = sorted(error.errors(include_url=False), key=lambda each: order.get(str(each["loc"][0]), len(order)))
            own = getattr((found[0].get("ctx") or {}).get("error"), "__cause__", None) if not self.where else None
            run, instead = (own.run, own.instead) if isinstance(own, UsageError) else (None, _accepted(found[0]))
            messages = map(self._message, found[:_MOST_PROBLEMS])
            raise ConfigError("; and ".join(messages), run=run or self.run, instead=instead) from None
        return _set(config)

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Begin the message of an error about a value of the project's file with the file's name."""
        try:
            yield
        except (DataError, TargetError) as error:
            if self.where and self.table:
                error.message = f"{self.where.partition(' ')[0]} {error.message}"
            raise

    def _key(self, key: str) -> str:
        if self.where:
            return self.where + key
        parts = key.split(".")
        of_table = parts[0] in _TABLES and parts[0] != "notify" and parts[1:]  # one flag is all of [notify]
        name = parts[1] if of_table else parts[0]
        return _FLAGS.get(key) or _FLAGS.get(name) or "--" + name.replace("_", "-")

    def _message(self, detail: ErrorDetails) -> str:
        """Return one line about an invalid key: ``seatrial.toml: criteria.mean_utilization: expected …, got …``."""
        location = [str(part) for part in detail["loc"] if part != "[key]" and not isinstance(part, int)]
        if location[:2] == ["criteria", "metrics"]:  # in the file they are among the other criteria
            del location[1]
        key, table = ".".join(location), ".".join(location[:-1])
        known = _known(table)
        similar = [] if location[-1] in known else difflib.get_close_matches(location[-1], known, n=1)
        hint = f"; did you mean {similar[0]}?" if similar else ""
        if detail["type"] == "extra_forbidden":
            if sentence := KEYS.get(key) or KEYS.get(key.partition(".")[0]):
                return f"{self._key(key)} was removed: {sentence}"
            if key in ("kubernetes.limits", "kubernetes.resources"):
                hint = "; cpus and memory are the limits, kubernetes.requests is below them"
            return f"{self._key(key)}: unknown key{hint or '; known here: ' + ', '.join(known)}"
        problem = detail["msg"].removeprefix("Value error, ")
        if detail["type"] != "value_error":
            expected = _EXPECTED.get(detail["type"]) or problem.replace("Input should be", "expected")
            problem = f"{expected}, got {shown(detail['input'])}"
        if location[:1] == ["secrets"]:  # what was got may be the secret
            has_value = detail["type"] == "value_error" and "=" in str(detail["input"])
            problem = problem.partition(", got")[0] + ", without its value" * has_value
        colon = "" if problem.startswith("0 is ") else ":"  # --gpus 0 is ambiguous
        return f"{self._key(key)}{colon} {problem}{hint}"


def _accepted(detail: ErrorDetails) -> tuple[str, list[str]] | None:
    """Return a refused value and the nearest ones that its key accepts; None without any."""
    typed = detail["input"] if isinstance(detail["input"], str) else ""
    listed = re.findall("'([^']+)'", str((detail.get("ctx") or {}).get("expected")))
    close = difflib.get_close_matches(typed, listed, n=1) or re.findall(r"at least (\d+),", detail["msg"])
    if detail["loc"][:1] == ("mounts",):
        source, _, rest = typed.partition(":")
        target = (rest or source).partition(":")[0].strip("./")
        close = [f"{source}:/{target}"] * bool(source and target)
    if detail["loc"][:1] == ("secrets",):
        close = re.findall(r"^([A-Za-z_]\w*)=", typed)
    if detail["loc"] == ("name",):
        close = [re.sub("[^A-Za-z0-9._]+", "-", typed.removeprefix("last")).strip("-.")[:63]]
    return (typed, close) if any(close) else None


def _known(table: str) -> list[str]:
    """Return the keys of a table, "" for those outside of any; [] for a table whose keys are the user's own."""
    if not table:
        return file_keys()
    return [key for key in typed_keys(_TABLES[table]) if key != "metrics"] if table in _TABLES else []


def _set(table: KeyTable) -> dict[str, Any]:
    values = {name: getattr(table, name) for name in type(table).model_fields if name in table.model_fields_set}
    return {name: _set(value) if isinstance(value, KeyTable) else value for name, value in values.items()}


def _file_source(project: Path) -> _Source:
    """Read seatrial.toml or the table in pyproject.toml; refuse both, since chance would decide which one counts."""
    own, shared = project / "seatrial.toml", project / "pyproject.toml"
    edit = "${EDITOR:-vi} "
    own_table = read_toml(own, inside=project) if is_there(own) else None
    tool = as_table(read_toml(shared, inside=project), "tool") if is_there(shared) else {}
    shared_table = tool.get("seatrial")
    if own_table is not None and shared_table is not None:
        message = "both seatrial.toml and [tool.seatrial] in pyproject.toml exist: keep one of them"
        raise ConfigError(message, run=edit + as_typed(shared))
    if shared_table is not None:
        return _Source("pyproject.toml: tool.seatrial.", edit + as_typed(shared), project, shared_table)
    return _Source("seatrial.toml: ", edit + as_typed(own), project, own_table or {})


def project_table(project: Path) -> dict[str, Any]:
    """Return the project's file as it is written, unchecked; {} without one. Raises ConfigError."""
    return as_table(_file_source(project).table)


def _given(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags that were given, in the file's shape."""
    given: dict[str, Any] = {}
    for key, value in flags.items():
        if key == "env" and isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
            value = _environment(value)
        if key == "notify" and isinstance(value, list | tuple):
            value = from_flags(value)
        if isinstance(value, Mapping):
            value = _given(value)
        elif isinstance(value, tuple):
            value = list(value)
        if value is not None and value not in ([], {}):
            given[key] = value
    return given


def _environment(items: Collection[str]) -> dict[str, str]:
    """Read ``NAME=value`` and ``NAME``; leave out a NAME that is not set here, as Docker does.

    Text that is not a name stays, for the model to refuse.
    """
    pairs = (item.partition("=") for item in items)
    values = {name: value if equals else os.environ.get(name) for name, equals, value in pairs}
    return {name: value or "" for name, value in values.items() if value is not None or not name.isidentifier()}


#: Tables of which a flag sets one key; of every other (``data`` is one, too) it replaces the whole.
_MERGED = ("env", "image", "criteria", "metrics", "kubernetes", "node_selector")


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        if isinstance(value, tuple) and key != "nodes":
            merged[key] = (*merged.get(key, ()), *value)
        else:
            merged[key] = _merge(merged.get(key, {}), value) if isinstance(value, dict) and key in _MERGED else value
    return merged


def _not_replaced(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of the file that is in the merged job."""
    kept = {key: value for key, value in below.items() if key not in above or isinstance(value, tuple)}
    both = (key for key in _MERGED if isinstance(below.get(key), dict) and key in above)
    return {**kept, **{key: _not_replaced(below[key], above[key]) for key in both}}


def _target(
    project: Path,
    cwd: Path,
    from_file: Mapping[str, Any],
    from_flags: Mapping[str, Any],
    ready: str | None,
    recipes: Collection[str],
) -> tuple[Target, Path]:
    """Return the target, and the folder of the project that it starts in: where one stands, for what is typed."""
    named = from_flags if {"target", "module"} & set(from_flags) else from_file
    image = from_flags.get("image", {}).get("ready")
    typed = (named is from_flags or image is not None) and cwd.is_relative_to(project)
    start = cwd if typed else project
    args = from_flags.get("args") or named.get("args", ())
    if "target" in named and "module" in named and named is from_file:
        message = "the project's file sets both target and module: keep one of them"
        raise ConfigError(message, run="seatrial plan train.py")
    words = [named["target"]] if "target" in named else []
    if words and named is from_flags and not typed and (cwd / words[0]).is_file():
        words = [str(cwd / words[0])]
    if words and not is_file(start / words[0]) and is_file(project / words[0]):
        start = project
    target = resolve_target([*words, *args], named.get("module"), ready, project, recipes, start)
    return target, project if target.kind == "recipe" else start


def _check_paths(config: Mapping[str, Any], project: Path) -> None:
    """Require what is mounted or read: an engine would create a missing folder, owned by root."""
    if "data" in config:
        _check_data(config["data"].source, read_only=config["data"].read_only)
    models = config["models"].source if "models" in config else None
    if models is not None and models.exists() and not models.is_dir():
        raise DataError(f"models folder {from_here(models)} is a file", run=f"ls -l {as_typed(models)}")
    # A plan knows whether the script writes to a folder of the project, which is then made.
    mounts = config.get("mounts", ())
    read = [("mount", each.source) for each in mounts if each.read_only or not each.source.is_relative_to(project)]
    read += [("env file", path) for path in config.get("env_files", ())]
    read += [("image.ca_bundle", path) for path in [config.get("image", {}).get("ca_bundle")] if path]
    for what, path in read:
        if not path.exists():
            raise DataError(f"{what} {from_here(path)}: no such file or folder", run=f"ls {_nearest(path)}")


def _nearest(path: Path) -> str:
    """Return the nearest folder above that is there, to be typed."""
    return as_typed(next(parent for parent in path.parents if parent.is_dir()))


def _check_data(folder: Path, *, read_only: bool) -> None:
    shown = as_typed(folder)
    if not folder.exists():
        others = folder.parent.iterdir() if folder.parent.is_dir() else ()
        close = nearest(from_here(folder), [from_here(path) for path in others if path.is_dir()])
        hint = f"; did you mean {close}?" if close else ""
        run = f"seatrial run --data {shlex.quote(close)} …" if close else f"ls {_nearest(folder)}"
        raise DataError(f"data folder {from_here(folder)} does not exist{hint}", run=run)
    if not folder.is_dir():
        run = f"seatrial run --data {as_typed(folder.parent)} …"
        raise DataError(f"data folder {from_here(folder)} is a file", run=run)
    with os_errors(DataError, f"data folder {folder} cannot be read", f"ls -ld {shown}"):
        empty = next(folder.iterdir(), None) is None
    if empty and read_only:
        run = f"ls -la {shown}   # if the script downloads into it: seatrial run --data {shown}:rw …"
        raise DataError(f"data folder {folder} is empty", run=run)
