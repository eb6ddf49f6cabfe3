"""Find paths of this machine in a target's arguments, its inputs, and the configuration files that it reads."""

from __future__ import annotations

import difflib
import os
import posixpath
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path, PurePosixPath

from seatrial.errors import ConfigError, fallback
from seatrial.job.in_container import CONTAINER_DATA, CONTAINER_HOME, CONTAINER_MODELS, CONTAINER_PROJECT
from seatrial.job.model import Job
from seatrial.job.reading.argparse_words import typed_words
from seatrial.job.reading.configurations import CONFIGURATION
from seatrial.job.reading.constants import ANY
from seatrial.job.reading.file_calls import LOADED, OUTPUT, Read, Write
from seatrial.job.reading.modules import folders_of
from seatrial.job.reading.signs import SETS, WINDOWS, of_a_machine
from seatrial.system.project_files import read_bytes, read_sources
from seatrial.system.text import first_of, regex

#: A configuration is a few pages; a larger file of these formats holds data.
_MOST_BYTES = 200_000
_MOST_PATHS = 20
#: Most missing inputs named, also in one sentence; bytes read to find what creates them.
_MOST_MISSING, _MOST_MORE, _MOST_SEARCHED = 5, 3, 2_000_000
#: Folders that every image has; suffixes of lists of files; files that keep an empty folder in Git.
_OF_IMAGES = regex(r"/(bin|dev(?!/shm/)|etc|lib\w*|proc|run|sbin|seatrial|sys|usr|var)(/.*)?")
_LISTS = (".csv", ".lst", ".tsv", ".txt")
_PLACEHOLDER = regex(r"\.(git)?(keep|ignore)|\.placeholder|README(\.\w+)?", re.I)
#: Bytes of a Git LFS pointer. Source: github.com/git-lfs/git-lfs/blob/main/docs/spec.md.
_MOST_OF_POINTER = 1_024
#: A line that creates the file, or the folder, that it names.
_MAKES = regex(r"""["']wb?["']|\b(save|dump|to_|wget|curl|g?down|unzip|mkdir|makedir)|\s-[oO]\s|(?<!-)>(?!\s*[\d=&])""")
_MAKES_FOLDERS = regex(r"\b(wget|curl|gdown|download\w*(?! (the|an?) )|unzip|tar|git clone|mkdir|makedirs)\b|\s-[oO]\s")
_KEY = regex(r"""(\s*[\w-]+)["']?\s*[:=]""")
_IN_TEXT = regex(
    r"""(?<=["'])(?:/|[C-Z]:[\\/]+)[\w.](?:[\w./+@\\-]|[ ](?![ /-]))*(?=["'])"""
    r"""|(?<![\w./$~}{-])(?:/|\.\./|[C-Z]:[\\/]+)[\w.][\w./+@\\-]*"""
)
#: A path in a sentence; a bare word is one only behind ``reads``.
_NAMED = regex(r"(?<=reads )[^\s,;:]+|[^\s,;:()]*[./][^\s,;:()]*")
#: Calls of MLflow that store files; the two lines of an experiment. Source: mlflow/store/tracking/file_store.py.
_LOGS_FILES = regex(r"\b(autolog|log_(artifacts?|dict|figure|image|model|table|text))\(")
_OF_MLFLOW = regex(r"""(?m)^(artifact_location|name):\s*['"]?(?:file:/*(?=/|[A-Z]:))?(.*?)['"]?\s*$""")
#: A line of a data set's description for Ultralytics. Source: docs.ultralytics.com/datasets/detect.
_OF_YOLO = regex(r"""(?m)^(path|train|val|names|nc|download)\s*:[ \t]*["']?([^\s"'#\[]*)""")


@dataclass(frozen=True)
class HostPath:
    """Hold one path.

    Attributes:
        source: its place on this machine; it may be missing. target: where the script looks for it in a container.
        where: ``--data``, ``configs/a.yaml:3`` or the argument itself. text: as it is written there.
        written: its option, key or line names results, ``output_dir``.
        typed: an argument names it, not the text of a file or a link in the project.
        key: of its line in the file, with the line's indentation.
    """

    source: Path
    target: str
    where: str
    text: str
    written: bool
    typed: bool = True
    key: str = ""

    @property
    def is_there(self) -> bool:
        return _exists(self.source)

    @property
    def absence(self) -> str:
        """Return a sentence about the missing path, with an existing file that differs in a suffix or in slashes."""
        variants = [(f"{self.source}{end}", f"{self.text}{end}") for end in CONFIGURATION]
        variants += [(str(self.source).replace("\\", "/"), self.text.replace("\\", "/"))]
        found = next((f"; {text} exists" for source, text in variants if _exists(Path(source))), "")
        if WINDOWS.match(self.text):
            return f"{self}: no container has a Windows path{found}"
        return f"{self}: this machine has no such file or folder{found}"

    def __str__(self) -> str:
        return self.text if self.where == self.text else f"{self.where} {self.text}"


def host_paths(job: Job) -> tuple[HostPath, ...]:
    """Return paths outside the project, and absolute paths inside it."""
    words = typed_words(job.target.args)
    found = [path for name, value in words for path in _of_argument(value, name or value, job)]
    return tuple({path.target: path for path in reversed(found[:_MOST_PATHS])}.values())[::-1]


def missing_inputs(job: Job, reads: Sequence[Read]) -> Iterator[str]:
    """Yield a sentence for each missing input, with the place that has it or the line that creates it."""
    absent: dict[Path, list[Read]] = {}
    found: list[str] = []
    for read in reads:
        of_home = read.path.startswith("~/") and job.backend != "local"
        inside = posixpath.join(CONTAINER_HOME, read.path[2:]) if of_home else read.path
        seen = posixpath.normpath(posixpath.join(job.folder_inside, inside))
        path = (brought := on_host(job, seen)) or _here(job, read.path)
        if of_home and not brought:
            whole = Path(read.path).suffix == "" or read.path.count("/") == 1
            source, target = (each if whole else posixpath.dirname(each) for each in (read.path, seen))
            found.append(f"{read}, and a container has no files of your home folder: --mount {source}:{target}")
        elif WINDOWS.match(read.path):
            absent.setdefault(Path(read.path[:2]), []).append(read)
        elif "".join(read_sources([path], job.project, _MOST_OF_POINTER)).startswith("version https://git-lfs"):
            found.append(f"{read}, a Git LFS pointer without its content: git lfs pull")
        elif "\\" in read.path:
            found.append(f"{read}; Linux needs {read.path.replace(chr(92), '/')}")
        elif _exists(path) and path.suffix in (*CONFIGURATION, *_LISTS):
            found += _lacking(job, path, read, reads)
        elif brought and not _exists(brought):
            found.append(f"{read}, and the mounted folder has no {brought}")
        elif (held := _placeholders(path)) and not OUTPUT.search(read.path.replace("/", "-")):
            found.append(f"{read}, a folder that holds only {', '.join(held)}")
        elif not (_exists(path) or _OF_IMAGES.fullmatch(seen)):
            first = next(each for each in (path, *path.parents) if _exists(each.parent))
            same = (at for at, known in absent.items() if (known[0].where, at.parent) == (read.where, first.parent))
            absent.setdefault(next(same, first), []).append(read)
    absent = {at: each for at, each in absent.items() if f" {each[0].path}: this machine" not in " ".join(found)}
    yield from found[:_MOST_MISSING]
    for path, (read, *more) in [*absent.items()][: max(0, _MOST_MISSING - len(found))]:
        also = f" ({', '.join(f'{each.where} {each.path}' for each in more[:_MOST_MORE])})" if more else ""
        yield f"{read}{also}, which {_instead(job, path, [read, *more])}"
    if (left := len(found) + len(absent) - _MOST_MISSING) > 0:
        yield f"and {left} more missing inputs"


def not_found(job: Job, inputs: Sequence[Read], sentences: Sequence[str], unknown: Sequence[str] = ()) -> Iterator[str]:
    """Yield one sentence about absent inputs that no other sentence names or, without any, about unknown paths."""
    named = {posixpath.normpath(word) for each in sentences for word in _NAMED.findall(each)}
    begun = {str(above) for word in named for above in PurePosixPath(word).parents}
    left: list[Read] = []
    for each in inputs:
        seen = posixpath.normpath(posixpath.join(job.folder_inside, each.path))
        here = on_host(job, seen) or _here(job, each.path)
        above = {each.path, *map(str, PurePosixPath(each.path).parents)} - {".", "/"}
        known = named & above or each.path in begun
        of_package = each.where == each.option and each.path.endswith(CONFIGURATION)
        if of_package or each.path.startswith("../"):  # of another file's folder
            places = (root / each.path.lstrip("./") for root in (*folders_of(job.project), job.project.parent))
            known = known or any(map(_exists, places))
        if not (known or _exists(here) or _OF_IMAGES.fullmatch(seen) or seen.startswith(("/tmp/", "/dev/shm"))):
            left.append(each)
            named.add(each.path)
            begun |= above
    for each in [each for each in left if "\\" in each.path]:
        left.remove(each)
        fixed = each.path.replace("\\", "/")
        way = f": -- {each.option} {shlex.quote(fixed)}" if each.option else ""
        yield f"{each.where} names {each.path}; Linux needs {fixed}{way}"
    if left:
        like = next((found for each in left if (found := _like(job.folder / each.path))), "")
        names = first_of((f"{each.path} ({each.where})" if each.where else each.path for each in left), _MOST_MORE)
        mount = posixpath.normpath(posixpath.join(job.folder_inside, posixpath.dirname(left[0].path)))
        fix = f", or edit {left[0].where}" if left[0].where else ""
        if option := left[0].option:
            fix = f", or: -- {option}{' ' if option[0] == '-' and '=' not in option else '='}PATH"
        elif left[0].path.startswith(("/", "../")):
            fix = f", or: --mount {shlex.quote(f'DIR:{mount}')}"
        which = "one" if left[1:] else "it"
        outside = job.folder == job.project or any(each.path.startswith(("/", "~", "../")) for each in left)
        place = "on this machine" if outside else f"in {os.path.relpath(job.folder, job.project)}/"
        yield f"Not found {place}: {names}{like}. If the run reads {which}, put it there{fix}"
    elif unknown:
        fix = "If a file is missing, add it to the project, or: --mount DIR:PATH"
        yield f"Inputs whose paths are known only in a run: {first_of(unknown, _MOST_MORE)}. {fix}"


def _lacking(job: Job, file: Path, read: Read, reads: Sequence[Read]) -> Iterator[str]:
    """Yield a sentence for each missing path in a configuration or a list, with the option that mounts it."""
    composed = [posixpath.dirname(each.path) or "." for each in reads if each.where == each.path]  # by Hydra
    for each in _of_file(file, read.path, job):
        key = re.escape(each.key.strip()) or "=."
        set_by = re.compile(rf"[+-]{{0,2}}([\w-]+[./])*{key}=.+|(--)?([\w-]+\.)+{key}")  # A.B=c and A.B c
        given = any(map(PurePosixPath(each.target).is_relative_to, mounted(job)))
        if not (each.is_there or each.written or given or any(map(set_by.fullmatch, job.target.args))):
            folder, override = posixpath.dirname(each.target) if Path(each.target).suffix else each.target, ""
            if read.where == read.path and each.key[:1].strip():
                group = posixpath.relpath(posixpath.dirname(read.path) or ".", posixpath.commonpath(composed))
                override = f", or override it: -- {'.'.join((*Path(group).parts, each.key))}=DIR"
            mount = f"; to mount it: --mount {shlex.quote(f'DIR:{folder}')}{override}" if each.text[0] in "/~." else ""
            yield f"{each.absence}{mount}"


def mounted(job: Job) -> dict[str, Path]:
    """Return path in the container → the user's folder that is mounted there, including data and models."""
    folders = ((job.data, CONTAINER_DATA), (job.models, CONTAINER_MODELS))
    own = {target: folder.source for folder, target in folders if folder}
    return {mount.target: mount.source for mount in job.mounts} | own


def on_host(job: Job, path: str) -> Path | None:
    """Return where a container's path lies on this machine, None if no mount of the user has it."""
    inside = {target: source for target, source in mounted(job).items() if PurePosixPath(path).is_relative_to(target)}
    target = max(inside, key=len, default="")
    return inside[target] / posixpath.relpath(path, target) if inside else None


def _here(job: Job, path: str) -> Path:
    """Return where a path that no mount brings lies on this machine; a container has the project at its own place."""
    inside = job.backend != "local" and PurePosixPath(path).is_relative_to(CONTAINER_PROJECT)
    own = posixpath.relpath(path, CONTAINER_PROJECT) if inside else path
    return Path(os.path.normpath((job.folder if own == path else job.project) / os.path.expanduser(own)))  # noqa: PTH111


def own_folder(job: Job, path: str) -> str:
    """Return the advice to start a script in its folder, if ``../x`` lies in one of the project from there, or ""."""
    folder = posixpath.dirname(job.target.value) if job.target.kind == "script" and path.startswith("../") else ""
    there = Path(os.path.normpath(job.project / folder / posixpath.dirname(path.partition(ANY)[0])))
    fits = folder and there.is_relative_to(job.project) and there.is_dir()
    return f"start the script in its folder, --workdir {shlex.quote(folder)}" if fits else ""


def missing_folders(job: Job, writes: Sequence[Write]) -> Iterator[str]:
    """Yield a sentence for each folder that a script writes to and that neither the project nor a mount has."""
    texts = [*read_sources(_sources(job), job.project, _MOST_SEARCHED)] if writes else []
    lines = [line for text in texts for line in text.splitlines() if _MAKES_FOLDERS.search(line)]
    for write in writes[:_MOST_MISSING]:
        folder = posixpath.normpath(posixpath.dirname(write.path))
        brought = on_host(job, posixpath.normpath(posixpath.join(job.folder_inside, folder)))
        path = brought or Path(os.path.normpath(job.folder / folder))
        known = _exists(path) or not (brought or path.is_relative_to(job.project) or job.backend == "local")
        own = re.escape(path.name)
        name = re.compile(rf"(?<![\w.-])(?!(?<=, ){own}[,)]){own}(?![\w-])")  # no variable: download_button("CSV", csv)
        made = (each for each in lines if not (write.folder and ".mkdir(" in each and "parents" not in each))
        if not known and not any(map(name.search, made)):
            which = "the folder above it" if write.folder else "that folder"
            way = own_folder(job, write.path) or f"mkdir -p {shlex.quote(str(brought or folder))}"
            yield f"{write}, and nothing creates {which}: {way}"


def mlflow_paths(job: Job, files: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for each of MLflow's experiments that the sources use and whose files go to another machine."""
    places = sorted(job.folder.glob("mlruns/*/meta.yaml"))
    read = read_sources((job.project / each for each in files if places), job.project, _MOST_SEARCHED)
    code = "\n".join((*read, *job.target.args))
    logs = _LOGS_FILES.search(code.partition("mlflow")[2])  # one search: code of megabytes may name it often
    if logs and "set_tracking_uri" not in code and "MLFLOW_TRACKING_URI" not in job.env:
        for file in places:
            found = dict(_OF_MLFLOW.findall("".join(read_sources([file], job.project, _MOST_OF_POINTER))))
            name, place = found.get("name", ""), found.get("artifact_location", "")
            used = name in code if "set_experiment" in code else name == "Default"
            if used and of_a_machine(place) and not _exists(Path(place)):
                shown = file.parent.relative_to(job.folder)
                yield f"{shown}/meta.yaml makes MLflow write to {place}, on another machine: mv mlruns mlruns.old"


def _instead(job: Job, path: Path, reads: Sequence[Read]) -> str:
    """Return where missing inputs are, or what creates them. ``path``: the first part of them that is missing."""
    read = reads[0]
    folders, parts = folders_of(job.project), Path(read.path.replace("\\", "/")).parts
    same = [each / parts[-1] for each in folders if (each / parts[-1]).is_file()] if "." in parts[-1] else []
    there = os.path.relpath(same[0], job.folder) if same else None
    given = str(Path(there).parent) if there and len({each.path for each in reads}) > 1 else there
    if there and read.value and PurePosixPath(read.path).is_relative_to(read.value):
        below = PurePosixPath(read.path).relative_to(read.value).parts
        given = str(Path(*Path(there).parts[: -len(below) or None])) if there.endswith("/".join(below)) else None
    edit = f"-- {read.option} {shlex.quote(given or 'PATH')}" if read.option else f"edit {read.where}"
    if WINDOWS.match(read.path):
        why = f"the project has {there}" if there else f"--data DIR mounts {CONTAINER_DATA}, for example"
        return f"is a Windows path, and no container has one: {edit}; {why}"
    if there and of_a_machine(read.path) and not reads[1:]:
        return f"this machine does not have, but the project has {there}: {edit}"
    if not path.is_relative_to(job.project):
        parents = [posixpath.dirname(each.path) if Path(each.path).suffix else each.path for each in reads]
        folder = posixpath.commonpath(parents) if len({each.startswith("/") for each in parents}) == 1 else parents[0]
        target = posixpath.normpath(posixpath.join(job.folder_inside, folder))
        option = "--data DIR" if target == CONTAINER_DATA else f"--mount {shlex.quote(f'DIR:{target}')}"
        option += f", or give {read.option}" if read.option else ""
        unclear = _exists(Path(folder)) or re.search("[$%]", folder)  # a folder that is mounted where it is
        return "this machine does not have" + ("" if unclear else f"; to mount it: {option}")
    root = next((each for each in folders if _exists(each / read.path)), None)
    if root is not None and not (there and read.option and not reads[1:]):
        folder = f"--workdir {shlex.quote(os.path.relpath(root, job.project))}"
        return f"is below {os.path.relpath(root, job.folder)}, but the script runs in {job.folder.name}: {folder}"
    if there:
        return f"is missing, but the project has {there}: {edit}"
    advice = next((f"; the script's message: {each.advice}" for each in reads if each.advice), "")
    place = "the project" if job.folder == job.project else f"{os.path.relpath(job.folder, job.project)}/"
    return f"{place} does not have{_like(path) or advice or _maker(job, read.path, read.where)}"


@fallback("", on=OSError)  # a name that is too long, or a folder that nobody may search
def _like(path: Path) -> str:
    """Return the broken link on a path, DVC's pointer to it, or configurations with similar names next to it."""
    if link := next((each for each in (path, *path.parents) if each.is_symlink() and not each.exists()), None):
        return f"; {link.name} is a link to {link.readlink()}"
    if pointer := next((each.name for each in (path, *path.parents) if Path(f"{each}.dvc").is_file()), None):
        configs = [each for above in path.parents if (each := above / ".dvc/config").is_file()]
        pulls = any(re.search(r"(?m)^\s*url\s*=", each.read_text(errors="replace")) for each in configs)
        return f"; {pointer}.dvc points to it{': dvc pull' if pulls else ', but .dvc/config names no remote'}"
    names = [each.name for each in path.parent.glob(f"*{path.suffix}*")] if path.suffix in CONFIGURATION else []
    found = difflib.get_close_matches(path.name, sorted(names))
    return f"; next to it: {', '.join(found)}" if found else ""


def _sources(job: Job) -> list[Path]:
    files = (path for folder in folders_of(job.project) for path in sorted(folder.glob("*")))
    return [path for path in files if path.suffix in (".md", ".py", ".sh")]


def _maker(job: Job, wanted: str, reader: str) -> str:
    """Return the line that may create a file: it names the file and writes, and is not the line that reads it."""
    name, makes = (wanted, _MAKES_FOLDERS) if "." not in (last := posixpath.basename(wanted)) else (last, _MAKES)
    path_of = rf"(?<![\w./-])[\w./-]*(?<![\w.-]){re.escape(name)}(?![\w-])"
    for path in (each for each in _sources(job) if each.suffix != ".md"):
        lines = (line for text in read_sources([path], job.project, _MOST_SEARCHED) for line in text.splitlines())
        for number, line in enumerate(lines, 1):
            is_code = name in line and not line.lstrip().startswith("#")
            rest, named = re.subn(path_of, "", line) if is_code else ("", 0)  # its own words tell nothing
            place = f"{path.relative_to(job.project)}:{number}" if named and makes.search(rest) else reader
            if place != reader and not re.search(rf"(?<!down)(?<!up)(load|read)(_\w+)?\([^;|]*{path_of}", line):
                return f"; {place} may create it"
    return ""


def _of_argument(value: str, where: str, job: Job) -> Iterator[HostPath]:
    written = where != value and _is_written(where)
    if (path := _path(value, where, job, written=written)) is not None:
        yield path
        return
    file = Path(os.path.normpath(job.folder / value))
    if not value or not file.is_relative_to(job.project):
        return
    if not _exists(file):
        sets = file.suffix in CONFIGURATION or any(_exists(Path(f"{file}{end}")) for end in CONFIGURATION)
        named = re.search("conf|cfg", where) if sets else file.suffix and file.parent.is_dir() and LOADED.search(where)
        if named and "/" in value and not written:  # a package may resolve the bare name yolov3.yaml
            yield HostPath(file, str(file), where, value, written)
        return
    real = Path(os.path.realpath(file))
    if not real.is_relative_to(os.path.realpath(job.project)):  # a link to data: it has this target in a container, too
        yield HostPath(real, str(real), where, value, written, typed=False)
    elif file.suffix in CONFIGURATION and file.is_file() and not written:
        yield from _of_file(file, value, job)


def _of_file(file: Path, shown: str, job: Job) -> Iterator[HostPath]:
    """Yield the host paths that a configuration names, or the first line of a list."""
    if file.suffix in _LISTS:
        for line in "".join(read_sources([file], job.project, _MOST_SEARCHED)).splitlines()[:1]:
            for name in [each for each in re.split(r"[\s,;]+", line) if of_a_machine(each)][:1]:
                yield HostPath(Path(name), name, f"{shown}:1", name, False, typed=False)
        return
    try:
        text = read_bytes(file, inside=job.project, limit_bytes=_MOST_BYTES).decode()
    except (ConfigError, UnicodeDecodeError):
        return
    yield from _of_yolo(text, file, shown, job)
    for number, line in enumerate(text.splitlines(), 1):
        for match in _IN_TEXT.finditer(re.split(r"(?:^|\s)#", line, maxsplit=1)[0]):
            path = _path(match[0], f"{shown}:{number}", job, written=_is_written(line[: match.start()]), typed=False)
            deep = len(re.findall(r"[\\/]+", match[0])) > 1
            if path is not None and deep and (path.is_there or of_a_machine(path.text)):
                yield replace(path, key=key[1] if (key := _KEY.match(line)) else "")


def _of_yolo(text: str, file: Path, shown: str, job: Job) -> Iterator[HostPath]:
    """Yield the missing images of a data set in Ultralytics' format, searched from its folder and from ours."""
    found = {match[1]: match for match in _OF_YOLO.finditer(text)}
    values = {key: match[2] for key, match in found.items()}
    if not ({"train", "val"} <= {*values} and {"names", "nc"} & {*values}) or values.get("download"):
        return
    for key in ("train", "val"):
        folder, name = values.get("path", ""), values[key]
        tried = [folder and job.folder, folder and job.folder / "datasets", file.parent]
        places = [Path(root, folder, each) for root in filter(None, tried) for each in (name, name.removeprefix("../"))]
        target = posixpath.join(folder, name)
        if name and not (of_a_machine(target) or target.startswith("/") or any(map(_exists, places))):
            where = f"{shown}:{text.count(chr(10), 0, found[key].start()) + 1} {key}"
            yield HostPath(places[0], posixpath.join(job.folder_inside, target), where, target, written=False)


def _path(text: str, where: str, job: Job, *, written: bool, typed: bool = True) -> HostPath | None:
    if WINDOWS.match(text) and of_a_machine(text):
        return HostPath(Path(text), text, where, text, written=False, typed=typed)  # no mount brings one
    if not text.isprintable() or text in ("/", "//") or not text.startswith(("/", "../", "~/")):
        return None
    if text.startswith(("/dev/", "/proc/", "/sys/")):  # the kernel's: a container has its own
        return None
    if ":" in text and not _exists(Path(text)):  # config.py:b16, as ml_collections has it
        text = text.partition(":")[0]
    source = Path(os.path.normpath(job.folder / os.path.expanduser(text)))  # noqa: PTH111  keeps what has no home
    if source.is_relative_to(job.project) and text.startswith("../"):  # the container has it at this place
        return None
    seen = posixpath.join(CONTAINER_HOME, text[2:].lstrip("/")) if text.startswith("~/") else text
    return HostPath(source, posixpath.normpath(posixpath.join(job.folder_inside, seen)), where, text, written, typed)


def _is_written(name: str) -> bool:
    words = re.findall(r"[a-z]+", re.sub("work[-_ ]", "work", re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower()))
    return not SETS["written"].isdisjoint(words)


def _placeholders(folder: Path) -> list[str]:
    """Return the files that keep an otherwise empty folder in Git."""
    with suppress(OSError, ValueError), os.scandir(folder) as entries:  # a data set may have millions
        names = sorted(each.name for each in islice(entries, 9))
        return names if all(map(_PLACEHOLDER.fullmatch, names)) else []
    return []


def _exists(path: Path) -> bool:
    program = re.sub(r"(\.(app|exe|x86))?$", ".x86_64", str(path), count=1)  # Unity and TensorFlow add these
    return any(os.path.exists(each) for each in (path, f"{path}.index", program))  # noqa: PTH110
