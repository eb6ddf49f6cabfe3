"""Calls that write or read files and folders, by their names, and the arguments that are their paths."""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePosixPath

from seatrial.job.reading.constants import ANY, Text, declared, member
from seatrial.job.reading.flow import FunctionNode, conditions, fails
from seatrial.job.reading.signs import SETS, TABLES, dotted, full_name, is_constant, keywords, last_name, literal
from seatrial.system.text import regex

#: Last name of a call that writes → index of the path among its arguments, the keywords that it may come by, and
#: whether it is a folder.
_WRITERS: dict[str, tuple[int | None, list[str], bool]] = {
    name: (row.get("index"), row["by"].split(), "folder" in row)
    for row in TABLES["writers"]
    for name in row["names"].split()
}
OPENERS, NEED_FOLDERS, FOLDERS = SETS["openers"], SETS["need-folders"], {"makedirs", "mkdir", "MakeDirs"}
#: torchvision's datasets, and the arguments before ``download``. Source: docs.pytorch.org/vision/stable/datasets.html.
_DATASETS, _BEFORE_DOWNLOAD = regex(r"torchvision\.datasets\.(\w+\.)?[A-Z]\w*"), 4
#: Calls whose argument may be a model's name on a hub; arguments that are paths; settings of such a name.
NAMES_MODELS, NO_NAME = {"from_pretrained", "load_model"}, regex(r"[./].*|.*\.(h5|hdf5|keras)")
OF_MODELS = regex(r"(--|.*\.)?((base|pretrained)[-_])?(model|tokenizer)([-_](name|dir|path|name[-_]or[-_]path))?")
ON_THE_HUB = regex(r"[\w-][\w.-]{,95}(/[\w-][\w.-]{,95})?")
#: Names of functions that read a file: read_csv, load, rdsamp, ReadImage; of packages alone, those of methods as well.
_BY_NAME = regex(r"(?:im)?read_?[A-Z_]\w*|imread|load(?!s$|_dataset$|_dotenv$)(?:_\w+)?")
_OF_PACKAGES = regex(r"(?:\w*_)?(?:read|open)(?:_\w+)?|rd[a-z]+|Read[A-Z]\w*")
#: Packages whose paths are not of this project's files; a path, neither a dotted name nor a name on a hub.
_OF_OTHERS = regex(r"(nltk|importlib|pkg_resources|resources|torch\.hub|webbrowser|os|configparser|dotenv)\.")
_IS_PATH = regex(rf"(?s)(\.{{0,2}}|~|[C-Z]:)[/\\].*|.*/.*/.*|.*\.({'|'.join(SETS['suffixes'])})")
#: Data that Ultralytics' train() does not read from a file of the user's. Source: docs.ultralytics.com/datasets.
_OF_ULTRALYTICS = regex(rf"(?i)(?!.*\.ya?ml).*|(.*/)?({'|'.join(SETS['of-ultralytics'])})[\w.-]*")
#: Calls that find nothing in a missing folder, and folders that trackers and trainers make.
MAY_LACK, MADE = {"glob", "iglob", "rglob", "walk"}, {"lightning_logs", "mlruns", "runs", "tb_logs", "wandb"}
#: Calls that fail without the file or folder of their path.
READERS = {*OPENERS, *SETS["readers"], "open", "read_text", "read_bytes", "iterdir"} - NAMES_MODELS - MAY_LACK
#: Calls that read data, calls and packages that bring it, and names of, or around, what holds none.
DATA, BRINGING = (READERS | MAY_LACK | SETS["data-readers"]) - SETS["of-weights"], SETS["bringing"]
OF_DATA, NO_DATA = (regex("|".join(SETS[each])) for each in ("of-data", "no-data"))
#: Methods of pathlib.Path that read their receiver.
_READ_PATHS = {"read_text", "read_bytes", "iterdir", "glob", "rglob"}
#: Letters of modes that write, and of those that make the file: r+ requires it.
_WRITES, _MAKES, READS = frozenset("wax+"), frozenset("wax"), {"r", "rb", "rt"}
#: Calls that check for a path.
ASKS = {"exists", "isfile", "isdir", "is_file", "is_dir", "access", "lexists"}
#: Packages whose calls open remote paths through fsspec. Source: filesystem-spec.readthedocs.io, "Who uses fsspec?".
_BY_FSSPEC = regex(r"(pandas|fsspec|dask|xarray|datasets)\.")
#: The scheme of a remote path; pathlib takes one of its slashes.
_REMOTE = regex(r"(abfss?|az|gcs|gs|hf|s3a?):/")
#: Names of options for a place to write to.
OUTPUT = regex(rf"(^|[-_])({'|'.join(SETS['of-outputs'])})([-_]|dir|$)")
#: Names of settings for a place to write to.
OUTPUT_KEYS = regex(rf"({'|'.join(SETS['output-keys'])})_?(dir|path|root|folder)|dirpath|output")
#: Words of a message with advice.
ADVICE = regex(r"https?://|\w\.(py|sh)\b|\b(run|python3?|download|generate|create|prepare|extract|put|place)\b", re.I)
#: Names of what is read, of what is loaded even from a folder for results, and of what is not read.
_OF_INPUTS = regex("|".join(SETS["of-inputs"]))
LOADED = regex(r"pretrain|weight|resume|restore|(?<!down)(?<!up)load|init_from")
_ENDS = r"(s|ger|puts?|[gp]ing|ments?|ict\w*|ions?|ing)?([-_./]|dir|path|folder|file|$)"
_NOT_READ = regex(rf"(^|[-_./])({'|'.join(SETS['not-read'])}){_ENDS}")
#: A path, none of Detectron2's model zoo; one with a file's suffix; weights, which training also writes; names whose
#: values are folders.
_NO_PATH = r".*//|[\d./-]*$|(?i:auto|none|null|true|false)$|(COCO|LVISv[\d.]+|PascalVOC)-[A-Z]\w+/"
_A_PATH = regex(rf"(?!{_NO_PATH})(\.{{0,2}}/[\w ./+@=-]*|(~?[./]|\w)[\w./+@=-]*)")
_IS_FILE = regex(rf"[^/]*(/.*)?\.({'|'.join(SETS['suffixes'])})")
_IS_WEIGHTS = regex(r".*\.(bin|ckpt|keras|onnx|pb|joblib|pth?|safetensors|tar|png|jpe?g|gif|mp4)")
_FOLDER = r"((data|img|image|train|test|val)\w*[-_.]?(dir|root|folder)|(data_?)?(root|dir))"
_IN_FOLDERS, _OF_DATA = regex(rf"([\w-]+[.=])*{_FOLDER}"), regex(r"data(set)?s?/")
_OF_FOLDERS = regex(r"(?!.*(model|token|bert|check|ckpt))\w*(path|dir|root|folder)=\w*(path|data|dir|folder)\w*")
#: Weights, and words of a download that may bring some.
OF_WEIGHTS = regex(r".*\.(ckpt|keras|onnx|pth?|safetensors|caffemodel)")
OF_MANY = regex(r"weight|model|ckpt|checkpoint|pretrain|python|\.py\b|\.sh\b|\bmake\b|clone")
#: Methods of pathlib.Path, whose receiver they make.
_OF_PATHS = {"mkdir", "touch", "write_text", "write_bytes", "open"}
#: Last names of calls, and keywords, that may make something; of those that make no file, or one that is open already.
MAKES_NO_FILE = {"mkdir", "makedirs", "dump"}
MAKING = {*_WRITERS, *_OF_PATHS, *SETS["settings"], "download"}
#: Calls that may create any path, and programs that one of them starts.
_MAKES_ANY = regex(TABLES["patterns"]["makes-any"])
_STARTS = regex(r"wget|curl|gdown|kaggle|clone|unzip|\btar\b|python|\.sh\b|\.py\b|download|\bmake\b|'\./\w")
#: Downloads into a cache of their own, or of no file; targets whose files may then be anywhere; paths that are not
#: known to lie in the project.
_TO_CACHES = regex(r"(imageio|kagglehub|nltk|spacy\.cli|stanza|yf|yfinance)\.")
IN_ANY, UNKNOWN = regex(r"^\*|\.(zip|gz|tgz|tar|bz2|xz|7z|rar)$"), regex(r"^$|^[/~]|\*")
#: Calls that get a path and do not read it: they declare an option with a default, make a path or a folder, or print.
GIVES_NONE = regex("|".join(SETS["gives-none"]))


@dataclass(frozen=True)
class Write:
    """A file or folder that a script makes.

    Attributes:
        path: as far as it is constant, ``*`` for the rest: ``/models/*.pth``.
        folder: it is a folder.
        where: ``train.py:78``, or the option that was typed.
        certain: it runs in every run that ends well, and with this path.
        option: by which the path is given, ``--out``, or None. copies: it copies the working directory there.
    """

    path: str
    folder: bool
    where: str
    certain: bool
    option: str | None = None
    copies: bool = False

    def __str__(self) -> str:
        return f"{self.where} writes {self.path}" if self.certain else f"{self.where} may write {self.path}"


@dataclass(frozen=True)
class Read:
    """Hold a file or folder that a script reads in any usual run, and neither creates nor checks for.

    Attributes:
        where: ``train.py:78``. option: by which it is given, ``--data``, or None.
        advice: the message of the script where the path is missing: ``Run prepare.py first``, or "".
        verb: ``names`` where no call is seen to read it. value: the option's own, which may be a folder of the path.
    """

    path: str
    where: str
    option: str | None
    advice: str = ""
    verb: str = "reads"
    value: str = ""

    def __str__(self) -> str:
        return f"{self.where} {self.verb} {self.path}"


def folders_of(texts: Sequence[Text | None]) -> set[str]:
    """Return the first parts of the paths among a download's arguments; none if one of them may be any path."""
    known = [each.text if each else ANY for each in texts if not each or "://" not in each.text]
    unclear = any(" " in each or IN_ANY.search(each) for each in known)
    return set() if unclear else {posixpath.normpath(each).partition("/")[0] for each in known if {*"/."} & {*each}}


def written_paths(node: ast.Call) -> Iterator[tuple[ast.expr, bool, bool]]:
    """Yield (path, whether it is a folder, whether the call always makes it) for each argument that may be one."""
    name, last = called_names(node)
    given = keywords(node)
    receiver = node.func.value if isinstance(node.func, ast.Attribute) else None
    if name in OPENERS:
        mode = node.args[1] if len(node.args) > 1 else given.get("mode")
        if node.args and _opens_to_write(mode):
            yield node.args[0], False, literal(mode) is not None
        return
    if receiver is not None and last in _OF_PATHS and name != "os.mkdir":
        if last != "open" or _opens_to_write(node.args[0] if node.args else given.get("mode")):
            yield receiver, last == "mkdir", True
        return
    if row := _WRITERS.get(last) or _WRITERS.get(name):
        index, names, folder = row
        positional = node.args if index is None else node.args[index : index + 1]
        yield from ((each, folder, True) for each in positional if not isinstance(each, ast.Starred))
        yield from ((given[each], folder, True) for each in names if each in given)
    yield from ((value, True, False) for key, value in given.items() if key in SETS["settings"])
    if not is_constant(given.get("download", ast.Constant(False)), False):
        yield from ((each, True, False) for each in (*node.args[:1], given.get("root")) if each)


def made_paths(node: ast.Call) -> list[ast.expr]:
    """Return the written paths that the call itself does not require."""
    required = [*read_paths(node, {})]
    return [path for path, *_ in written_paths(node) if path not in required]


def makes_one(node: ast.Call) -> bool:
    """Return whether a call makes a folder and fails without the folder above it."""
    by_mkdir = isinstance(node.func, ast.Attribute) and node.func.attr == "mkdir"
    return by_mkdir and "parents" not in keywords(node) and not node.args[1:]


def makes_any(node: ast.Call) -> bool:
    """Return whether a call may create any path: it downloads, unpacks, or starts a program that may."""
    name, last = called_names(node)
    made = _MAKES_ANY.fullmatch(name) or _MAKES_ANY.fullmatch(last)
    elsewhere = _TO_CACHES.match(name) or (last == "get_file" and "cache_dir" not in keywords(node))  # ~/.keras
    return bool(made and not elsewhere and (not made[2] or _STARTS.search(ast.dump(node))))


def reads_by_name(node: ast.Call, names: Mapping[str, str]) -> bool:
    """Return whether only its name shows that a call reads a path. Args: names: see imported_names."""
    (name, last), root = called_names(node), dotted(node.func).partition(".")[0]
    known = {name, last} & {*SETS["readers"], *OPENERS}
    shown = _BY_NAME.fullmatch(last) or (root in names and _OF_PACKAGES.fullmatch(last))
    return bool(shown) and not known and root != "self" and not _OF_OTHERS.match(full_name(dotted(node.func), names))


def may_be_no_file(node: ast.Call, text: str, path: str, names: Mapping[str, str]) -> bool:
    """Return whether what a call reads may not be a file of the user's. Args: text, path: as given, normalized."""
    last = called_names(node)[1]
    return bool(
        re.search(r"^~(?!/)|(?<!^[A-Z]):|\n", path)
        or (reads_by_name(node, names) and not _IS_PATH.fullmatch(text))
        or (last == "compose" and not path.endswith(".yaml"))  # may be of the ConfigStore
        or (last in MAY_LACK and OUTPUT.search(path.replace("/", "-")))
        or (last == "train" and _OF_ULTRALYTICS.fullmatch(text))
    )


def remote_driver(node: ast.Call, path: str, names: Mapping[str, str]) -> str | None:
    """Return ``remote.s3`` for a remote path that a call opens through fsspec, which needs the store's driver."""
    store = _REMOTE.match(path)
    return f"remote.{store[1]}" if store and _BY_FSSPEC.match(full_name(dotted(node.func), names)) else None


def is_input(name: str, value: str, *, typed: bool) -> bool:
    """Return whether a name, ``--data_root`` or ``data.root``, and its value may be those of a path that is read."""
    name = re.sub("([a-z])([A-Z])", r"\1_\2", name.lstrip("-+")).replace("-", "_").lower()
    if "\\" in value and re.fullmatch(r"\.{0,2}\\?(\w[\w .-]*\\+)+\w[\w .-]*", value):
        value = value.replace("\\", "/")
    loaded = bool(LOADED.search(name))
    fits = _A_PATH.fullmatch(value) and (loaded or typed or _OF_INPUTS.search(name))
    if not fits or _NOT_READ.search(name) or "cache" in name:
        return False
    ends = "/".join(value.split("/")[-2:] if value.startswith("/") else [value])  # of projects/, work/ of the author's
    where = value.removeprefix("/export").replace("/", "-")  # NFS exports data there
    if not loaded and (_NOT_READ.search(ends.lower()) or OUTPUT.search(where)):
        return False
    if not typed and len(PurePosixPath(value.lstrip("~.")).parts) < 2 + value.startswith(("/", "~", ".")):
        return False  # a root that a library fills, or a name below another option's folder
    if _IS_FILE.fullmatch(value):
        of_a_package = value.endswith((".yaml", ".yml", ".json")) and "conf" not in name + value  # by its bare name
        if name and "/" not in value and (of_a_package or not (loaded or _OF_INPUTS.search(name))):
            return False
        return typed or loaded or not (_IS_WEIGHTS.fullmatch(value) or "model" in name)
    shown = value.startswith(("./", "../", "/", "~/")) or value.count("/") > 1 or (typed and _OF_DATA.match(value))
    return bool(shown or _IN_FOLDERS.fullmatch(name) or (typed and _OF_FOLDERS.fullmatch(f"{name}={value}")))


def named_values(node: ast.AST) -> Iterator[tuple[str, bool | None, ast.expr]]:
    """Yield (name, whether code looks it up by it, None for a parameter, value) of all that names a value."""
    pairs: list[tuple[str, ast.expr | None]] = []
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        values = getattr(node.value, "elts", [node.value])
        pairs = [(member(each) or last_name(each), value) for each in targets for value in values]
    elif isinstance(node, ast.Dict):
        pairs = [(literal(key) or "", value) for key, value in zip(node.keys, node.values, strict=True)]
    elif isinstance(node, ast.Call) and not GIVES_NONE.fullmatch(last := called_names(node)[1]):
        last = (
            "path" if last in READERS | MAY_LACK or re.match("register_.*(?:coco|data|instances|set)", last) else last
        )
        last = last_name(getattr(node.func, "value", node)) if last == "append" else last
        pairs = [*((last, each) for each in node.args), *((each.arg or "", each.value) for each in node.keywords)]
    elif isinstance(node, FunctionNode):
        pairs = [*declared(node)]
    by_name = isinstance(node, ast.Assign | ast.AnnAssign | ast.Dict) and not hasattr(getattr(node, "value", 0), "elts")
    for name, value in pairs:
        if value and (isinstance(value, ast.JoinedStr | ast.BinOp | ast.Call) or {*"/."} & {*(literal(value) or "")}):
            yield name, None if isinstance(node, FunctionNode) else by_name, value


def names_in(paths: Iterable[tuple[object, ast.expr]]) -> set[str]:
    """Return the names of variables, attributes and keys in calls' paths, except for ``os.path``."""
    parts = (each for _, path in paths for each in ast.walk(path))
    return {member(each) or last_name(each) for each in parts} - {"path"}


def read_paths(node: ast.Call, names: Mapping[str, str]) -> Iterator[ast.expr]:
    """Yield the path that a call reads, if it reads one. Args: names: see imported_names."""
    name, last = called_names(node)
    given = keywords(node)
    mode = node.args[1] if len(node.args) > 1 and (name in OPENERS or last == "open") else given.get("mode")
    opens = last == "open" and literal((*node.args, given.get("mode", ast.Constant("r")))[0]) in READS
    if name in OPENERS:
        yield from node.args[: not _opens_to_write(mode, _MAKES)]
    elif isinstance(node.func, ast.Attribute) and (opens or (last in _READ_PATHS and name not in SETS["readers"])):
        yield node.func.value
    elif last == "load_dataset":
        files = given.get("data_files") if literal(next(iter(node.args), None)) in SETS["formats"] else None
        yield from getattr(files, "values", getattr(files, "elts", [files] if files else []))
    elif last == "train" and name != last and "data" in given:
        yield given["data"]
    elif (
        not SETS["readers"].isdisjoint((name, last))
        or reads_by_name(node, names)
        or (_DATASETS.fullmatch(full_name(name, names)) and not node.args[_BEFORE_DOWNLOAD:])
    ):
        downloads = not is_constant(given.get("download", ast.Constant(False)), False)
        if not downloads and not _opens_to_write(mode):
            several = getattr(next(iter(node.args), None), "elts", node.args[:1])  # of TFRecordDataset, a list, too
            yield from (*several, *(value for key, value in given.items() if key in SETS["paths"]))


def checked_paths(node: ast.Call) -> list[ast.expr]:
    return node.args[:1] or ([node.func.value] if isinstance(node.func, ast.Attribute) else [])


def demanded(
    node: ast.AST, assigned: Mapping[str, list[ast.expr | None]], *, main: bool
) -> Iterator[tuple[ast.Call, list[ast.expr]]]:
    """Yield (call, texts that may hold advice) for each check, also ``assigned``, without whose path a run ends;
    ``main``: see fails."""
    if isinstance(node, ast.Assert):
        yield from ((call, [node.msg] if node.msg else []) for call in needed(node.test, True, assigned))
    elif isinstance(node, ast.If) and (fails(node.body, main=main) or fails(node.orelse, main=main)):
        ends = node.body if fails(node.body, main=main) else node.orelse
        texts = [text for part in ends for call in ast.walk(part) if isinstance(call, ast.Call) for text in call.args]
        yield from ((call, texts) for call in needed(node.test, ends is node.orelse, assigned))
        match node.test:
            case ast.Compare(left, [ast.Is() | ast.Eq()], [ast.Constant(None)]) if ends is node.body:
                yield from ((x, texts) for x in assigned.get(last_name(left), []) if isinstance(x, ast.Call))


def needed(test: ast.expr | None, holds: bool, assigned: Mapping[str, list[ast.expr | None]]) -> Iterator[ast.Call]:
    """Yield the checks for paths that all succeed wherever ``test`` evaluates to ``holds``."""
    for part, true in conditions(test, holds):
        if isinstance(part, ast.Compare) and isinstance(value := getattr(part.comparators[0], "value", None), bool):
            equals = isinstance(part.ops[0], ast.Eq | ast.Is)
            yield from needed(part.left, equals is (value is true), assigned) if not part.ops[1:] else ()
        elif isinstance(part, ast.Name) and len(values := assigned.get(part.id, [])) == 1:
            yield from needed(values[0], true, {})
        elif true and isinstance(part, ast.Call) and last_name(part.func) in ASKS:
            yield part


def called_names(node: ast.Call) -> tuple[str, str]:
    """Return a call's name and its last part: ``os.mkdir``, ``mkdir``; ``.open``, ``open`` of ``Path("x").open()``."""
    name = dotted(node.func)
    name = f".{name}" if isinstance(node.func, ast.Attribute) and "." not in name else name
    return name, name.rpartition(".")[2]


def _opens_to_write(mode: ast.expr | None, letters: frozenset[str] = _WRITES) -> bool:
    return mode is not None and not (isinstance(mode, ast.Constant) and letters.isdisjoint(literal(mode) or ""))


class Paths:
    """Decide whether a path, what is above or below it, or the file without its suffix is among others."""

    def __init__(self, texts: Sequence[Text | None]) -> None:
        known = [posixpath.normpath(each.text) if each.text[:2] == "./" else each.text for each in texts if each]
        self._known = {posixpath.normpath(each.partition(ANY)[0] or ANY) for each in known} | MADE
        self._above = {str(parent) for each in self._known for parent in PurePosixPath(each).parents}
        one = (re.sub(r"\*.*\*", ANY, each) for each in known if ANY in each and each[0] != ANY)  # more are slow
        begun = (re.escape(posixpath.normpath(each)) for each in one)
        self._begun = regex("|".join(f"{each}(/.*)?" for each in begun).replace(re.escape(ANY), ".*") or r"\n")

    def has(self, text: str) -> bool:
        """Return whether a path or what is below it is among the others; below an empty folder nothing is."""
        return text in self._above or text in self._known or bool(self._begun.fullmatch(text))

    def __contains__(self, text: str) -> bool:
        parents = {text, *map(str, PurePosixPath(text).parents)} - {".", "/"}
        ours = text in self._above or not self._known.isdisjoint((*parents, posixpath.splitext(text)[0]))
        return ours or not parents or bool(self._begun.fullmatch(text))


known_paths = lru_cache(8)(Paths)  # most reads of a script come after the same calls
