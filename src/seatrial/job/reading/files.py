"""Files and folders that a script creates or reads: the calls, and their paths as far as constants show them."""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from seatrial.errors import ConfigError
from seatrial.job.reading.constants import ANY, Constants, ParsedCall, is_outside, typed_options
from seatrial.job.reading.flow import statements
from seatrial.job.reading.modules import is_file, is_folder
from seatrial.job.reading.parsed_modules import Module, Unit
from seatrial.job.reading.signs import dotted, is_constant, keywords, literal
from seatrial.system.project_files import parse_yaml, read_sources, read_text

_MOST_WRITES, _LONGEST_PATH, _MOST_SETTINGS = 500, 300, 200_000

#: Last name of a call → index of the path among its arguments (None: the first that is an absolute path) and the
#: keywords that it may come by.
_FILES: dict[str, tuple[int | None, tuple[str, ...]]] = {
    **dict.fromkeys(
        ("save", "dump", "export", "save_file"), (None, ("f", "path", "filepath", "filename", "fp", "file"))
    ),
    **dict.fromkeys(("savez", "savez_compressed", "savetxt"), (0, ("file", "fname"))),
    **dict.fromkeys(("savefig", "imsave", "imwrite", "write_image", "write_html"), (0, ("fname", "file", "filename"))),
    **dict.fromkeys(
        ("to_csv", "to_parquet", "to_json", "to_pickle", "to_feather", "to_excel", "to_hdf"),
        (0, ("path_or_buf", "path")),
    ),
    **dict.fromkeys(
        ("save_weights", "save_checkpoint", "save_state", "save_vocabulary"), (None, ("filepath", "path", "filename"))
    ),
    **dict.fromkeys(("copy", "copy2", "copyfile", "move"), (1, ("dst",))),
    "FileHandler": (0, ("filename",)),
    "ModelCheckpoint": (0, ("filepath",)),
}
_FOLDERS: dict[str, tuple[int | None, tuple[str, ...]]] = {
    **dict.fromkeys(("makedirs", "mkdir"), (0, ("name", "path"))),
    **dict.fromkeys(
        ("save_pretrained", "save_model", "save_to_disk"), (None, ("save_directory", "output_dir", "path"))
    ),
    **dict.fromkeys(("SummaryWriter", "FileWriter", "create_file_writer", "TensorBoard"), (0, ("log_dir", "logdir"))),
    "copytree": (1, ("dst",)),
}
#: Calls that read a file or list a folder, by last or full name; keywords of the path, else the first argument.
_READERS = {
    *(f"read_{kind}" for kind in ("csv", "table", "excel", "parquet", "json", "pickle", "feather", "hdf")),
    *("np.load", "numpy.load", "torch.load", "joblib.load", "np.memmap", "np.fromfile", "librosa.load", "loadtxt"),
    *("torchaudio.load", "loadmat", "load_file", "genfromtxt", "imread", "load_from_disk", "listdir", "scandir"),
    *("os.walk", "merge_from_file", "flow_from_directory", "image_dataset_from_directory", "glob.glob", "glob.iglob"),
    *("glob", "iglob", "load_weights", "load_model", "from_pretrained", "ImageFolder", "DatasetFolder"),
}
_PATHS = {
    *("filepath_or_buffer", "io", "path", "path_or_buf", "file", "f", "filename", "fname", "dataset_path", "root"),
    *("directory", "pathname", "filepath", "pretrained_model_name_or_path", "cfg_filename", "annFile"),
}
#: torchvision's datasets, and their keywords. Source: docs.pytorch.org/vision/stable/datasets.html.
_DATASETS, _OF_DATASETS = re.compile(r"(\w+\.)*d\w*sets?\.[A-Z]\w*"), {"root", "train", "transform"}
#: Calls whose argument may be a model's name on a hub; arguments that are paths.
_NAMES_MODELS, _NO_NAME = {"from_pretrained", "load_model"}, re.compile(r"[./].*|.*\.(h5|keras)")
#: Calls that find nothing in a missing folder, and folders that trackers and trainers make.
_MAY_LACK, _MADE = {"glob", "iglob", "rglob", "walk"}, {"lightning_logs", "mlruns", "runs", "tb_logs", "wandb"}
#: Methods of pathlib.Path that read their receiver.
_READ_PATHS = {"read_text", "read_bytes", "iterdir", "glob", "rglob"}
#: Methods of datasets and of Lightning's modules that a framework calls in every training.
_CALLED_LATER = ("__getitem__", "__iter__", "setup", "train_dataloader")
#: Calls that check for a path, and calls that may create any.
_ASKS = {"exists", "isfile", "isdir", "is_file", "is_dir", "access", "lexists"}
_MAKES_ANY = re.compile(
    r"(?!hf_hub_|snapshot_)\w*(download|urlretrieve|gdown|wget|retrieve)\w*|extractall|unpack_archive|get_file|(os\.(?:system|popen|exec\w+|spawn\w+)|subprocess\.\w+|check_call|check_output|Popen|system)"
)
_STARTS = re.compile(r"wget|curl|gdown|kaggle|clone|unzip|\btar\b|python|\.sh\b|\.py\b|download|\bmake\b|'\./\w")
#: Endings of configuration files, and a setting in one.
CONFIGURATION = (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg", ".conf")
_SETTING = re.compile(
    r"""\s*(?:-\s+)?["']?([\w-]+)["']?\s*[:=]\s*["']?([^"'#\[{\s,](?:[^"'#,]*[^"'#,\s])?)["']?\s*(?:,\s*)?(?:#.*)?"""
)
_TYPED_SETTING = re.compile(r"\+{0,2}(?:[\w-]+[./])*([\w-]+)=([^\s\[{]+)")
#: Calls whose second argument, or keyword ``mode``, gives the mode that their first is opened in.
#: Below: methods that open their receiver.
_OPENERS = {"open", "io.open", "gzip.open", "bz2.open", "lzma.open", "codecs.open", "h5py.File", "zipfile.ZipFile"}
_OPENERS |= {"tarfile.open", "ZipFile", "tf.io.gfile.GFile", "Image.open", "PIL.Image.open", "jsonlines.open"}
_WRITES = frozenset("wax+")
#: Methods of pathlib.Path, whose receiver they make.
_OF_PATHS = {"mkdir", "touch", "write_text", "write_bytes", "open"}
#: Keywords of settings that trainers write to; they choose when.
_SETTINGS = {"output_dir", "log_dir", "logging_dir", "save_dir", "dirpath", "default_root_dir", "checkpoint_dir"}

#: Names of options for a place to write to.
_OUTPUT = re.compile(
    r"(^|[-_])(out|output|outputs|save|log|logs|result|results|checkpoints?|ckpt|export|artifacts?)([-_]|dir|$)"
)
#: Names of settings for a place to write to.
_OUTPUT_KEYS = re.compile(
    r"(out(put)?|save|log(ging)?|work|results?|tensorboard|tb|checkpoints?|ckpt)_?(dir|path|root|folder)|dirpath|output"
)


#: An override of Hydra's command line, ``model=large``; most files that are composed, most bytes of each.
_CHOICE = re.compile(r"\+{0,2}([\w/]+)(?:@[\w.]*)?=([\w./-]+)")
_MOST_COMPOSED, _MOST_BYTES = 100, 100_000


@dataclass(frozen=True)
class Write:
    """A file or folder that a script makes.

    Attributes:
        path: as far as it is constant, ``*`` for the rest: ``/models/*.pth``.
        folder: it is a folder.
        where: ``train.py:78``, or the option that was typed.
        certain: it runs in every run that ends well, and with this path.
    """

    path: str
    folder: bool
    where: str
    certain: bool

    def __str__(self) -> str:
        return f"{self.where} writes {self.path}" if self.certain else f"{self.where} may write {self.path}"


@dataclass(frozen=True)
class Read:
    """Hold a file or folder that a script reads in every run and neither creates nor checks for.

    Attributes:
        where: ``train.py:78``. option: by which it is given, ``--data``, or None.
    """

    path: str
    where: str
    option: str | None


class Files:
    """Calls that a reading comes by, and what they write and read once all of it is read.

    Args:
        module_at: a file's module.
        arguments: arguments of the script. folder: the working directory.
    """

    def __init__(self, module_at: Callable[[Path], Module | None], arguments: Sequence[str], folder: Path) -> None:
        self._module_at, self._folder = module_at, folder
        self.constants = Constants(module_at, arguments, folder)
        self._settings: list[tuple[str, str, str]] = []
        self._noted: list[ParsedCall] = []
        self._reading: list[ParsedCall] = []
        self._asking: list[ParsedCall] = []
        self._given: set[str] = set()
        self._makes_any = False
        self._always: dict[Unit, list[Unit]] = {}
        self._moves = False
        self._composed: Sequence[str] = ()

    def note(self, unit: Unit, node: ast.Call, called: Sequence[Unit], *, always: bool) -> None:
        """Note a call in ``unit``, and the parts of the project that it runs."""
        name, last = _called(node)
        if last in ("add_argument", "option"):
            self.constants.note_option(unit, node)
        elif name == "os.chdir":
            self._moves = True
        elif len(self._noted) < _MOST_WRITES and (
            last in _FILES or last in _FOLDERS or last in _OF_PATHS or name in _OPENERS or {*keywords(node)} & _SETTINGS
        ):
            self._noted.append(ParsedCall(unit, node, always))
        if not called and len(self._reading) < _MOST_WRITES and any(_read_paths(node)):
            self._reading.append(ParsedCall(unit, node, always))
        elif last in _ASKS:
            self._asking.append(ParsedCall(unit, node, always))
        elif last not in ("add_argument", "Path", "join") and not called:
            self._given.update(filter(None, map(literal, (*node.args, *keywords(node).values()))))
        made = _MAKES_ANY.fullmatch(name) or _MAKES_ANY.fullmatch(last)
        if made and not name.startswith("nltk.") and (not made[2] or _STARTS.search(ast.dump(node))):
            self._makes_any = True
        for each in called:
            self.constants.callers.setdefault(each, []).append(ParsedCall(unit, node, always))
            if always and self._runs_when_called(each):
                self._always.setdefault(unit, []).append(each)
                owner, _, method = each[1].rpartition(".")
                if method == "__init__":
                    self._always[unit] += ((each[0], f"{owner}.{later}") for later in _CALLED_LATER)

    def note_import(self, unit: Unit, imported: Unit) -> None:
        """Note that ``unit`` imports a module in every run."""
        self._always.setdefault(unit, []).append(imported)

    def read_settings(self, composed: Sequence[str] = ()) -> None:
        """Note the settings of the files that the script opens in the working directory, and those of the command line.

        Args: composed: files that Hydra reads.
        """
        self._composed = composed
        opened = [self.constants.text(path, each.unit) for each in self._reading for path in _read_paths(each.node)]
        names = dict.fromkeys(
            [*composed, *self.constants.arguments, *(each.text for each in opened if each is not None)]
        )
        for name in (each for each in names if each.endswith(CONFIGURATION)):
            lines = "".join(read_sources([self._folder / name], self._folder, _MOST_SETTINGS)).splitlines()
            matches = ((number, _SETTING.fullmatch(line)) for number, line in enumerate(lines, 1))
            self._settings += ((each[1], each[2], f"{name}:{number}") for number, each in matches if each)
        typed = {match[1]: match[2] for word in self.constants.arguments if (match := _TYPED_SETTING.fullmatch(word))}
        self._settings = [each for each in self._settings if each[0] not in typed]
        self._settings += ((key, value, key) for key, value in typed.items())
        values: dict[str, dict[str, str]] = {}
        for key, value, where in self._settings:
            values.setdefault(key, {}).setdefault(value, where)
        self.constants.settings = {key: next(iter(each.items())) for key, each in values.items() if len(each) == 1}

    def reads(self) -> tuple[Read, ...]:
        """Return what the script reads; () if unseen code may create it. Call ``found`` first."""
        reads = {each: Read(each, each, None) for each in self._composed}
        if self._moves or self._makes_any:
            return tuple(reads.values())
        made = [self.constants.text(path, each.unit) for each in self._noted for path, _, _ in _targets(each.node)]
        made += [self.constants.text(argument, each.unit) for each in self._asking for argument in _asked(each.node)]
        known = {posixpath.normpath(each.text.partition(ANY)[0] or ANY) for each in made if each is not None} | _MADE
        above = {str(parent) for each in known for parent in PurePosixPath(each).parents}
        begun = tuple(each.text.partition(ANY)[0] or "\n" for each in made if each is not None and ANY in each.text)
        for unit, node, runs in self._reading:
            module = self._module_at(unit[0])
            if module is None or not runs or unit not in self.constants.always:
                continue
            for path in _read_paths(node):
                found, flag = self.constants.text(path, unit), self.constants.by_option
                if found is None or not (found.sure or self.constants.by_setting):
                    continue
                start, any_part, _ = found.text.partition(ANY)
                start = posixpath.dirname(start) if any_part else start
                text = posixpath.normpath(start or ".")
                parents = {text, *map(str, PurePosixPath(text).parents)} - {".", "/"}
                named = _called(node)[1] in _NAMES_MODELS and not _NO_NAME.fullmatch(start)
                unclear = named or found.text in self._given or re.search(r"^~|[:\\\n]", text) or not parents
                ours = text in above or text.startswith(begun) or posixpath.splitext(text)[0] in known
                ours |= _called(node)[1] in _MAY_LACK and any(map(_OUTPUT.search, parents))
                if not unclear and not ours and known.isdisjoint(parents):
                    reads.setdefault(text, Read(text[:_LONGEST_PATH], f"{module.shown}:{node.lineno}", flag))
        return tuple(reads.values())

    def found(self, start: Unit) -> tuple[Write, ...]:
        """Return what is written outside of the working directory, by the path that comes first."""
        always, pending = {start}, [start]
        while pending:
            for unit in self._always.get(pending.pop(), ()):
                if unit not in always:
                    always.add(unit)
                    pending.append(unit)
        self.constants.always = always
        writes: dict[str, Write] = {}
        for write in (*self._of_calls(always), *self._of_options()):
            known = writes.get(write.path)
            if known is None or (write.certain and not known.certain):
                writes[write.path] = write
        return tuple(writes.values())

    def _of_calls(self, always: set[Unit]) -> Iterator[Write]:
        for unit, node, runs in self._noted:
            module = self._module_at(unit[0])
            if module is None:
                continue
            for target, folder, sure in _targets(node):
                found = self.constants.text(target, unit)
                if found is None or not is_outside(found.text):
                    continue
                certain = sure and runs and unit in always and found.sure and not found.anywhere
                certain = certain and not (self._moves and found.text.startswith(".."))
                where = f"{module.shown}:{node.lineno}"
                yield Write(found.text[:_LONGEST_PATH], folder, where, certain)
                break

    def _of_options(self) -> Iterator[Write]:
        """Yield options and settings whose names are of output folders; whether the script writes there is unknown."""
        for name, option in self.constants.options.items():
            if (
                _OUTPUT.search(name)
                and (found := self.constants.of_option(name)) is not None
                and is_outside(found.text)
            ):
                module = self._module_at(option.unit[0])
                shown = module.shown if module else option.unit[0].name
                yield Write(found.text, True, f"{shown}:{option.node.lineno}", False)
        known = {flag for option in self.constants.options.values() for flag in option.flags}
        for flag, value in typed_options(self.constants.arguments):
            if flag not in known and _OUTPUT.search(flag.lstrip("-")) and is_outside(value):
                yield Write(value, True, flag, False)
        for key, value, where in self._settings:
            if _OUTPUT_KEYS.fullmatch(key) and is_outside(value) and " " not in value:
                yield Write(value[:_LONGEST_PATH], True, where, False)

    def _runs_when_called(self, unit: Unit) -> bool:
        """Return whether a call runs it: not a generator or a coroutine, nor one of two of the name."""
        module = self._module_at(unit[0])
        if module is None:
            return False
        if not unit[1]:
            return True
        function = module.flow.functions[unit[1]]
        if isinstance(function, ast.AsyncFunctionDef) or unit[1] in module.flow.doubled:
            return False
        return not any(isinstance(each, ast.Yield | ast.YieldFrom) for each in statements(function.body))


def _targets(node: ast.Call) -> Iterator[tuple[ast.expr, bool, bool]]:
    """Yield (path, whether it is a folder, whether the call always makes it) for each argument that may be one."""
    name, last = _called(node)
    given = keywords(node)
    receiver = node.func.value if isinstance(node.func, ast.Attribute) else None
    if name in _OPENERS:
        mode = node.args[1] if len(node.args) > 1 else given.get("mode")
        if node.args and _opens_to_write(mode):
            yield node.args[0], False, literal(mode) is not None
        return
    if receiver is not None and last in _OF_PATHS and name != "os.mkdir":
        if last != "open" or _opens_to_write(node.args[0] if node.args else given.get("mode")):
            yield receiver, last == "mkdir", True
        return
    index, names = _FILES.get(last) or _FOLDERS.get(last) or (0, ())
    folder = last in _FOLDERS
    if last in _FILES or folder:
        positional = node.args if index is None else node.args[index : index + 1]
        yield from ((each, folder, True) for each in positional if not isinstance(each, ast.Starred))
        yield from ((given[each], folder, True) for each in names if each in given)
    yield from ((value, True, False) for key, value in given.items() if key in _SETTINGS)


def _read_paths(node: ast.Call) -> Iterator[ast.expr]:
    """Yield the path that a call reads, if it reads one."""
    name, last = _called(node)
    given = keywords(node)
    if name in _OPENERS:
        yield from node.args[: not _opens_to_write(node.args[1] if len(node.args) > 1 else given.get("mode"))]
    elif isinstance(node.func, ast.Attribute) and last in _READ_PATHS and name not in _READERS:
        yield node.func.value
    elif not _READERS.isdisjoint((name, last)) or (_DATASETS.fullmatch(name) and _OF_DATASETS & {*given}):
        downloads = not is_constant(given.get("download", ast.Constant(False)), False)
        if not downloads and not _opens_to_write(given.get("mode")):
            yield from (*node.args[:1], *(value for key, value in given.items() if key in _PATHS))


def _asked(node: ast.Call) -> list[ast.expr]:
    return node.args[:1] or ([node.func.value] if isinstance(node.func, ast.Attribute) else [])


def _called(node: ast.Call) -> tuple[str, str]:
    """Return a call's name and its last part: ``os.mkdir``, ``mkdir``; ``.open``, ``open`` of ``Path("x").open()``."""
    name = dotted(node.func)
    name = f".{name}" if isinstance(node.func, ast.Attribute) and "." not in name else name
    return name, name.rpartition(".")[2]


def _opens_to_write(mode: ast.expr | None) -> bool:
    return mode is not None and not (isinstance(mode, ast.Constant) and _WRITES.isdisjoint(literal(mode) or ""))


def composed(folder: Path, name: str, words: Sequence[str], project: Path) -> list[tuple[Path, str]]:
    """Return (file, text) of each file that Hydra composes; [] without the primary file.

    Format: hydra.cc/docs/advanced/defaults_list.

    Args: name: name of the primary file. words: arguments of the command line.
    """
    chosen: dict[str, Any] = {match[1]: match[2] for word in words if (match := _CHOICE.fullmatch(word))}
    first = [f"{group}/{option}" for group, option in chosen.items() if is_folder(folder / group)]
    pending, found = [*first, name.removesuffix(".yaml")], dict[Path, str]()
    while pending and len(found) < _MOST_COMPOSED:
        path = pending.pop(0)
        file = folder / f"{path}.yaml"
        if file in found or not is_file(file):
            continue
        try:
            found[file] = read_text(file, inside=project, limit_bytes=_MOST_BYTES)
            table = parse_yaml(found[file], file.name)
        except ConfigError:
            continue
        defaults = table.get("defaults") if isinstance(table, dict) else None
        for item in defaults if isinstance(defaults, list) else ():
            for key, value in item.items() if isinstance(item, dict) else [("", item)]:
                *how, group = str(key).partition("@")[0].split() or [""]
                group = posixpath.normpath(posixpath.join("/", posixpath.dirname(path), group))[1:]
                if "override" in how:
                    chosen.setdefault(group, value)
                options = chosen.get(group, value) if key else value
                options = options if isinstance(options, list) else [options]
                pending += (posixpath.join(group, str(each)).lstrip("/") for each in options)
    return list(found.items()) if folder / f"{name.removesuffix('.yaml')}.yaml" in found else []
