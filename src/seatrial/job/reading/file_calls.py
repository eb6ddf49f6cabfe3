"""Calls that write or read files and folders, by their names, and the arguments that are their paths."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from seatrial.job.reading.flow import fails
from seatrial.job.reading.signs import dotted, is_constant, keywords, last_name, literal

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
#: Calls that fail without the folder of their file; the writers of files among _FILES that others define, too, do not.
NEED_FOLDERS = {
    *("torch.save", "np.save", "numpy.save", "joblib.dump", "FileHandler", "write_text", "write_bytes", "touch"),
    *("savez", "savez_compressed", "savetxt", "savefig", "imsave", "imwrite", "to_csv", "to_parquet", "to_json"),
    *("to_pickle", "to_feather", "to_excel", "to_hdf"),
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
NAMES_MODELS, NO_NAME = {"from_pretrained", "load_model"}, re.compile(r"[./].*|.*\.(h5|keras)")
ON_THE_HUB = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
#: Calls that find nothing in a missing folder, and folders that trackers and trainers make.
MAY_LACK, MADE = {"glob", "iglob", "rglob", "walk"}, {"lightning_logs", "mlruns", "runs", "tb_logs", "wandb"}
#: Methods of pathlib.Path that read their receiver.
_READ_PATHS = {"read_text", "read_bytes", "iterdir", "glob", "rglob"}
#: Calls whose second argument, or keyword ``mode``, gives the mode that their first is opened in.
#: Below: methods that open their receiver.
OPENERS = {"open", "io.open", "gzip.open", "bz2.open", "lzma.open", "codecs.open", "h5py.File", "zipfile.ZipFile"}
OPENERS |= {
    "fsspec.open",
    "tarfile.open",
    "ZipFile",
    "tf.io.gfile.GFile",
    "Image.open",
    "PIL.Image.open",
    "jsonlines.open",
}
_WRITES = frozenset("wax+")
#: Calls that check for a path.
ASKS = {"exists", "isfile", "isdir", "is_file", "is_dir", "access", "lexists"}
#: Packages whose calls open remote paths through fsspec. Source: filesystem-spec.readthedocs.io, "Who uses fsspec?".
BY_FSSPEC = re.compile(r"(pandas|fsspec|dask|xarray|datasets)\.")
#: Methods of pathlib.Path, whose receiver they make.
_OF_PATHS = {"mkdir", "touch", "write_text", "write_bytes", "open"}
#: Keywords of settings that trainers write to; they choose when.
_SETTINGS = {"output_dir", "log_dir", "logging_dir", "save_dir", "dirpath", "default_root_dir", "checkpoint_dir"}
#: Last names of calls, and keywords, that may make something.
MAKING = {*_FILES, *_FOLDERS, *_OF_PATHS, *_SETTINGS, "download"}


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
    index, names = _FILES.get(last) or _FOLDERS.get(last) or (0, ())
    folder = last in _FOLDERS
    if last in _FILES or folder:
        positional = node.args if index is None else node.args[index : index + 1]
        yield from ((each, folder, True) for each in positional if not isinstance(each, ast.Starred))
        yield from ((given[each], folder, True) for each in names if each in given)
    yield from ((value, True, False) for key, value in given.items() if key in _SETTINGS)
    if not is_constant(given.get("download", ast.Constant(False)), False):
        yield from ((each, True, False) for each in (*node.args[:1], given.get("root")) if each)


def read_paths(node: ast.Call) -> Iterator[ast.expr]:
    """Yield the path that a call reads, if it reads one."""
    name, last = called_names(node)
    given = keywords(node)
    if name in OPENERS:
        yield from node.args[: not _opens_to_write(node.args[1] if len(node.args) > 1 else given.get("mode"))]
    elif isinstance(node.func, ast.Attribute) and last in _READ_PATHS and name not in _READERS:
        yield node.func.value
    elif not _READERS.isdisjoint((name, last)) or (_DATASETS.fullmatch(name) and _OF_DATASETS & {*given}):
        downloads = not is_constant(given.get("download", ast.Constant(False)), False)
        if not downloads and not _opens_to_write(given.get("mode")):
            yield from (*node.args[:1], *(value for key, value in given.items() if key in _PATHS))


def checked_paths(node: ast.Call) -> list[ast.expr]:
    return node.args[:1] or ([node.func.value] if isinstance(node.func, ast.Attribute) else [])


def demanded(node: ast.AST) -> Iterator[tuple[ast.Call, list[ast.expr]]]:
    """Yield (call, texts that may say what to do) for each check without whose path a statement ends the run."""
    if isinstance(node, ast.Assert):
        yield from ((call, [node.msg] if node.msg else []) for call in _needed(node.test, True))
    elif isinstance(node, ast.If) and fails(node.body):
        inner = (each for part in node.body for each in ast.walk(part) if isinstance(each, ast.Call))
        said = [text for call in inner for text in call.args]
        yield from ((call, said) for call in _needed(node.test, False))


def _needed(test: ast.expr, holds: bool) -> Iterator[ast.Call]:
    """Yield the checks for paths that all succeed wherever ``test`` is as ``holds`` says."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _needed(test.operand, not holds)
    elif isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And if holds else ast.Or):
        yield from (call for each in test.values for call in _needed(each, holds))
    elif holds and isinstance(test, ast.Call) and last_name(test.func) in ASKS:
        yield test


def called_names(node: ast.Call) -> tuple[str, str]:
    """Return a call's name and its last part: ``os.mkdir``, ``mkdir``; ``.open``, ``open`` of ``Path("x").open()``."""
    name = dotted(node.func)
    name = f".{name}" if isinstance(node.func, ast.Attribute) and "." not in name else name
    return name, name.rpartition(".")[2]


def _opens_to_write(mode: ast.expr | None) -> bool:
    return mode is not None and not (isinstance(mode, ast.Constant) and _WRITES.isdisjoint(literal(mode) or ""))
