"""Signs: what a line of source shows of how a script starts its processes, and whether it compiles at run time."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from seatrial.job.reading.modules import lost
from seatrial.system.project_files import own_table
from seatrial.system.text import regex

TABLES = own_table(Path(__file__).with_name("names.toml"))
SETS = {key: frozenset(names.split()) for key, names in TABLES["sets"].items()}
#: Calls, dotted names, and names with those below them → their sign; names that a package removed → their names in the
#: tables of removed APIs.
_CALLS, _NAMES, _BELOW, _ONCE = (
    {name: sign for sign, names in TABLES[table].items() for name in names.split()}
    for table in ("calls", "names", "below", "once")
)
#: Signs of a script that starts its own ranks: under torchrun each rank would start a whole world again.
_SPAWNS = {"spawn", "start_processes", "Process"}
#: torch-ignite's, under its usual name: they take torchrun's ranks, or start ``nproc_per_node`` of their own.
_IGNITE = {"idist.Parallel", "idist.initialize", "idist.spawn"}

#: Variables that torchrun, and nothing else, sets in each rank's environment. Source:
#: docs.pytorch.org/docs/stable/elastic/run.html, "Environment Variables".
_RANK_VARIABLES = {"LOCAL_RANK", "RANK", "WORLD_SIZE"}

#: Option that torch.distributed.launch gives to each rank, under either name, and torchrun does not. Source:
#: docs.pytorch.org/docs/stable/elastic/run.html, "Transitioning from torch.distributed.launch to torchrun".
RANK_OPTIONS = ("--local_rank", "--local-rank")

#: Flags by which scripts call torch.compile.
_COMPILE_FLAGS = {"--compile", "--torch-compile", "--torch_compile", "--use-compile", "--use_compile"}

#: Calls that read these variables and raise without them. Source: torch/distributed/rendezvous.py, env://.
_NEEDS_RANKS = {"init_process_group", "init_device_mesh"}
#: Arguments that take their place; None: ``**arguments``.
_GIVES_RANKS = {"rank", "world_size", "store", None}

#: A loss' number, by its usual names: ``loss_G``, ``train_loss``, not ``losses`` or ``loss_weights``.
_LOSS = regex(r"(?:^|[._])loss(?!es\b)(?:_?[A-Za-z0-9]{1,2})?\.data$|loss\.data$")

#: Functions that load packages without an import. Sources: "Install" of docs.xarray.dev and pandas.pydata.org; metrics
#: of evaluate and datasets load those that the first argument names.
_LOADING = regex(TABLES["patterns"]["loading"])

#: Ends of files that imageio reads and writes by its plugin for FFmpeg alone.
_VIDEO = regex(r"(?i)\.(?:mp4|avi|mov|mkv|webm)$")
_STARTED = regex(r"(?:^|[\s;&])(?:python[\d.]*|torchrun)\s(?:-\S*\s)*([\w./-]+\.py)\b")

#: Packages by their usual names, where no import in the module shows what a name is.
_USUAL = {"np": "numpy", "pd": "pandas", "xr": "xarray", "tf": "tensorflow"}
#: Prefix of a sign for a name that has a row in the tables, and of all names of Keras.
NAMED = "named:"
#: Prefix of the sign of such a name that the code sets itself: ``np.float = float``.
SET_AGAIN = "set-again:"

#: Characters of a literal path; longer text is something else.
_LONGEST_PATH = 200

#: Most parts read of a dotted name.
MOST_PARTS = 20

LIGHTNING_1, _TRAINER_OF_1 = SETS["lightning-1"], SETS["trainer-1"]
#: Calls that make torch's schedulers in a method of Lightning, and the name of all in the tables of removed APIs.
SCHEDULES = regex(r"\b(?:(?:Step|MultiStep|Exponential|Lambda|CosineAnnealing|OneCycle)LR|get_\w+_schedule\w*)\(")
SCHEDULERS = "torch.optim.lr_scheduler.…"
#: What transformers compiles by itself. Source: modeling_modernbert.py, _maybe_set_compile; flex_attention.py.
COMPILES = regex(r"(?i)[\w.-]+/[\w.-]*modernbert[\w.-]*|flex_attention")
#: A command line of CUDA's compiler that compiles.
_NVCC = regex(r"nvcc\s+(?!--?V(ersion)?\b|--?version\b)\S")

#: Kinds of nodes that can be a sign of something; most are not.
TELLING = (ast.Constant, ast.Call, ast.Attribute, ast.Assign, ast.Subscript, ast.Import, ast.ImportFrom)


def signs(node: ast.AST, names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield (sign, name to show) for a node that is evidence of something. Args: names: see imported_names."""
    if text := literal(node):
        yield from _of_a_text(text)
    elif isinstance(node, ast.Assign):
        sets = isinstance(node.targets[0], ast.Subscript) and dotted(node.targets[0].value).endswith("environ")
        if sets and isinstance(node.value, ast.Constant) and not isinstance(node.value.value, str):
            yield "lacks", f"{ast.unparse(node)} sets a variable to a value that is not a string"
    elif isinstance(node, ast.Subscript):
        if (name := literal(node.slice)) in _RANK_VARIABLES and last_name(node.value) == "environ":
            # Reading it needs someone to set it, unless the script does.
            yield ("sets-ranks" if isinstance(node.ctx, ast.Store) else "needs-ranks"), f'os.environ["{name}"]'
        if is_constant(node.slice, 0) and _LOSS.search(name := dotted(node.value)):
            yield f"{NAMED}torch.Tensor.data[0]", f"{name}[0]"
    elif isinstance(node, ast.Call):
        yield from _of_a_call(node)
        yield from _of_a_full_name(node, names)
    elif isinstance(node, ast.Attribute):
        name = dotted(node)
        library, _, inner = name.partition(".")
        module, full = full_name(library, names), full_name(name, names)
        if module == "tensorflow" or full.startswith(("keras.", "tensorflow.keras.", "torchvision.")):
            yield f"{NAMED}{full}", name
        if name in ("hvd.elastic", "horovod.torch.elastic"):
            yield "horovod-elastic", name
        elif _is_lost(full, imported=library in names):
            yield f"{NAMED if isinstance(node.ctx, ast.Load) else SET_AGAIN}{_ONCE.get(full, full)}", name
        elif library in ("tf", "tensorflow") and not SETS["tensorflow-1"].isdisjoint((inner, inner.partition(".")[0])):
            yield "tensorflow-1", name
        elif library in ("tf", "tensorflow") and inner.partition(".")[0] in SETS["tensorflow-2"]:
            yield "tensorflow-2", name
        else:
            yield from _of_a_name(name)
    elif isinstance(node, ast.Import | ast.ImportFrom):
        for module in modules_of(node):
            yield from _of_a_name(module)
        for alias in node.names:
            if alias.asname and alias.name in SETS["wrappers"]:
                yield "torchrun", alias.name


def _of_a_text(text: str) -> Iterator[tuple[str, str]]:
    if sign := {"LOCAL_RANK": "local-rank", "HF_TOKEN": "hub-token"}.get(text):
        yield sign, text
    elif "/" in text and GATED.fullmatch(text):
        yield "hub-token", text
    elif "/" in text and COMPILES.fullmatch(text):
        yield "compiler", text
    elif text.endswith(".cu") and len(text) < _LONGEST_PATH:
        yield "cuda-source", text
    elif _NVCC.match(text):
        yield "nvcc", " ".join(text.split()[:2])
    elif text.startswith("ALE/") or text.endswith("NoFrameskip-v4"):
        yield f"{NAMED}gymnasium.atari", text


def _of_a_full_name(node: ast.Call, names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the signs of a call by the full name of its function."""
    full = full_name(called := dotted(node.func), names)
    if called == "setattr" and len(node.args) > 1:
        again = full_name(f"{dotted(node.args[0])}.{literal(node.args[1])}", names)
        yield f"{SET_AGAIN}{_ONCE.get(again, again)}", again
    lacks = TABLES["required"].get(full)
    if lacks and not node.args and {lacks, None}.isdisjoint(keywords(node)):
        yield "lacks", f"calls {called}() without {lacks}"
    if _LOADING.fullmatch(full):
        words = [literal(node.args[0]) or "" if node.args else "", ""]
        yield from ((f"{NAMED}{full}.{word}".rstrip("."), called) for word in words if f"a{word}".isidentifier())
    logs_in = full.endswith((".login", ".set_credentials"))
    tokens = [each.value for each in node.keywords if each.arg in SETS["tokens" if logs_in else "keys"]]
    if any(PLACEHOLDER.search(literal(each) or "YOUR_KEY") is None for each in (*tokens, *node.args[:logs_in])):
        yield f"{NAMED}{full}=", called
    if (last := last_name(node.func)) in SETS["of-frames"]:
        yield f"{NAMED}pandas.{last}", called
    names_of = (f"{full}.{each.arg}" for each in node.keywords)
    known = (each for each in names_of if _is_lost(each, imported=called.partition(".")[0] in names))
    yield from ((f"{NAMED}{_ONCE.get(each, each)}", f"{called}({each.rpartition('.')[2]}=)") for each in known)
    trackers = (each.value for each in node.keywords if each.arg in ("log_with", "report_to"))
    yield from ((f"{NAMED}{REPORT_TO}{word}", f"{called}(…)") for each in trackers for word in texts_of(each))
    if full.startswith("transformers.") and literal(keywords(node).get("deepspeed")):
        yield f"{NAMED}transformers.TrainingArguments.deepspeed", called
    made = node.func.value if last == "item" and isinstance(node.func, ast.Attribute) else None
    if isinstance(made, ast.Call) and full_name(dotted(made.func), names) == "numpy.load" and len(made.args) < 3:
        yield from [(f"{NAMED}numpy.load.item", ".item()")] * {"allow_pickle", None}.isdisjoint(keywords(made))
    if full.startswith("imageio.") and any(map(_VIDEO.search, texts_of(node.args[0]) if node.args else ())):
        yield f"{NAMED}imageio.video", called
    if engine := literal(keywords(node).get("engine")):
        yield f"{NAMED}{'xarray' if full.startswith('xarray.') else 'pandas'}.engine.{engine}", called


def imported_names(node: ast.Import | ast.ImportFrom) -> dict[str, str]:
    """Return name in the module → dotted name: ``np`` → ``numpy``, ``K`` → ``keras.backend``; with dots if relative."""
    dots = "." * node.level if isinstance(node, ast.ImportFrom) else ""
    bound = {each.asname or each.name: f"{dots}{full}" for each, full in zip(node.names, modules_of(node), strict=True)}
    return {name: full for name, full in bound.items() if "." not in name}


def full_name(name: str, names: Mapping[str, str]) -> str:
    """Return the full dotted name, by the module's imports or the package's usual alias."""
    first, dot, rest = name.partition(".")
    return names.get(first, _USUAL.get(first, first)) + dot + rest


def _is_lost(name: str, *, imported: bool = False) -> bool:
    """Return whether a package removed a name, or Python did from a module that is ``imported``."""
    gone = lost(name)
    return name in _ONCE or (gone is not None and (imported or gone.package != "python"))


def _of_a_name(name: str) -> Iterator[tuple[str, str]]:
    """Look a dotted name up, as an import or an attribute has it."""
    sign, top = _NAMES.get(name), name
    while top and not sign:
        sign, top = _BELOW.get(top), top.rpartition(".")[0]
    if sign is None and name.startswith("trl.") and name.endswith("Trainer"):
        sign = "torchrun"
    if sign is not None:
        yield sign, name


def variable_key(node: ast.AST | None) -> ast.expr | None:
    """Return ``"STEPS"`` of ``environ["STEPS"]``, ``environ.get("STEPS", 3)`` and ``"STEPS" in environ``."""
    match node:
        case ast.Call(func=func, args=[key, *_]) if dotted(func).endswith(("environ.get", "getenv")):
            return key
        case ast.Subscript(value=table, slice=key, ctx=ast.Load()) if last_name(table) == "environ":
            return key
        case ast.Compare(left=key, ops=[ast.In()], comparators=[table]) if last_name(table) == "environ":
            return key
    return None


def assigned_variables(node: ast.AST) -> dict[str, str]:
    """Return name → value of ``os.environ["KERAS_BACKEND"] = "jax"``, or of setdefault; {} for other nodes."""
    if isinstance(node, ast.Call) and dotted(node.func).endswith("environ.setdefault"):
        pairs: list[list[ast.expr]] = [node.args]
    elif isinstance(node, ast.Assign):
        keyed = (each for each in node.targets if isinstance(each, ast.Subscript))
        pairs = [[each.slice, node.value] for each in keyed if last_name(each.value) == "environ"]
    else:
        return {}
    texts = [[text for each in pair if (text := literal(each)) is not None] for pair in pairs]
    return dict(pair for pair in texts if len(pair) == 2)


def host_path(node: ast.AST) -> str | None:
    """Return a literal path that may lie outside of the project, such as ``../data/train.csv``, or None."""
    text = literal(node)
    if text is None or len(text) > _LONGEST_PATH or not text.isprintable():
        return None
    absolute = text.startswith("/") and text.count("/") > 1 and not text.startswith(("/../", "/./"))
    return text if text.startswith("../") or (absolute and text.strip("/")) else None


#: Data folders of machines and of notebook hosts; drives of Windows.
_OF_MACHINES = regex(TABLES["patterns"]["of-machines"])
#: With a tracker behind it, the name of a setting by which transformers' trainer reports.
REPORT_TO = "transformers.report_to."
#: What a user must replace: ``<your project id>``, ``/path/to/data``, ``YOUR_API_KEY``; not ``<pad>``.
PLACEHOLDER = regex(r"<[^<>]*\b([Yy]our|[Pp]ath|[Ii]nsert|[Ee]nter)\b[^<>]*>|(^|/)path/to/|(^|/)your[_-]\w|YOUR_[A-Z]")
#: Names on the Hugging Face Hub whose files need a login, by their owners and families.
GATED = regex(TABLES["patterns"]["gated"])
#: The beginning of an absolute path of Windows, which Linux takes for a relative one.
WINDOWS = regex(r"[A-Za-z]:[\\/]")


def of_a_machine(text: object) -> bool:
    """Return whether a text is a path of one machine: ``/home/me/data``, ``D:\\data``."""
    return isinstance(text, str) and text.isprintable() and _OF_MACHINES.fullmatch(text[:_LONGEST_PATH]) is not None


#: Calls whose arguments are paths of files, and keywords for them; of other calls an argument may be a key or a route.
_READS = regex(
    r"open|read_\w+|load\w*|register_\w*(?:coco|data|instances|set)\w*|\w*(?:Folder|Dataset)|Path|join|listdir|i?glob|chdir"
)
_FOR_PATHS = regex(r"default|root|(?!\w*(?:cache|out|log|save|result))\w*(?:dir|path|folder|file)")
#: Paths that are nothing else; calls that show, change or check them alone.
_PATHS_ALONE = regex(r"[C-Z]:[\\/]|/(content|home|kaggle|Users)/")
_USES_NOTHING = regex(TABLES["patterns"]["uses-nothing"])


def used_paths(node: ast.AST, typed: Collection[str]) -> Iterator[tuple[str, str | None]]:
    """Yield (a machine's path, of a longer text its folder; option); ``typed``: given options, without dashes."""
    values: list[tuple[ast.expr, bool]] = []  # whether each can be nothing but a path
    option = None
    if isinstance(node, ast.Assign) and not any(isinstance(each, ast.Subscript) for each in node.targets):
        values = [(node.value, True)]
    elif isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        values = [(value, _FOR_PATHS.fullmatch(literal(key) or "") is not None) for key, value in pairs]
    elif isinstance(node, ast.Call) and not _USES_NOTHING.fullmatch(last := last_name(node.func)):
        given = {name: value for name, value in keywords(node).items() if name and _FOR_PATHS.fullmatch(name)}
        names = [*(each for each in _constants(node.args) if isinstance(each, str)), *given]
        option = next((each for each in names if each.startswith("-")), None)
        if last.startswith("DEFINE_") and names:
            option = f"--{names[0]}"
        by_place = "default" in given and option is None
        is_typed = by_place or any(name.lstrip("-").startswith(word) for name in names for word in typed)
        values = [(each, True) for each in given.values() if not is_typed]
        values += [(each, _READS.fullmatch(last) is not None) for each in node.args if not (option and is_typed)]
    for value, is_path in ((inner, is_path) for each, is_path in values for inner in getattr(each, "elts", [each])):
        whole = value.left if isinstance(value, ast.BinOp) else value
        first = next(iter(whole.values), None) if isinstance(whole, ast.JoinedStr) else whole
        text = literal(first) or ""
        path = text if first is value else text[: text.rfind("/") + 1]
        if of_a_machine(path) and (is_path or _PATHS_ALONE.match(path)):
            yield path, option


def _of_a_call(node: ast.Call) -> Iterator[tuple[str, str]]:
    called = dotted(node.func)
    last = called.rpartition(".")[2]
    if called == "get_ipython":
        yield "notebook", "get_ipython"
    if called in ("Trainer", "pl.Trainer", "pytorch_lightning.Trainer", "lightning.Trainer", "L.Trainer"):
        strategy = keywords(node).get("strategy")
        of_1 = {*_TRAINER_OF_1, *["strategy"] * is_constant(getattr(strategy, "orelse", strategy), None)}
        yield from (("lightning-1", f"Trainer({each.arg}=…)") for each in node.keywords if each.arg in of_1)
    if called.endswith("Trainer.from_argparse_args"):
        yield "lightning-1", called
    if called in _IGNITE and _is_set("backend", node, first=True):  # without one it makes no group of them
        yield "torchrun", called
    if sign := _CALLS.get(called) or _CALLS.get(last):
        yield sign, called if sign == "workers" or sign.startswith(NAMED) else last
    elif last in _SPAWNS and (called in _SPAWNS or called.split(".")[-2] in ("mp", "multiprocessing")):
        yield "spawn", called
    if called == "yaml.load" and len(node.args) == 1 and not node.keywords:
        yield f"{NAMED}yaml.load", "yaml.load(…)"
    first = getattr(node.args[0], "value", None) if node.args else None
    if called in SETS["prompts"] or (called == "open" and first in ("/dev/stdin", 0) and first is not False):
        yield "input", called
    if last in _NEEDS_RANKS:  # unless who takes part is named; an init_method other than env:// may do so, too
        ranks = next((each for each in node.keywords if each.arg in {*_GIVES_RANKS, "init_method"}), None)
        if ranks is None or (ranks.arg == "init_method" and literal(ranks.value) == "env://"):
            yield "needs-ranks", last
    if last in ("add_argument", "option"):
        yield from (("rank-option", word) for word in RANK_OPTIONS if word in _constants(node.args))
    if last == "add_argument" and "store_true" in _constants([each.value for each in node.keywords]):
        yield from (("compile-flag", word) for word in _constants(node.args) if word in _COMPILE_FLAGS)
    if last == "setdefault" and "RANK" in _constants(node.args):
        yield "sets-ranks", "RANK"
    given = keywords(node)
    if "device_map" in given and (spreads := _spreads(given["device_map"])) is not False:
        yield ("one-process" if spreads else "perhaps-one-process"), "device_map"
    if last in ("Parallel", "spawn") and _is_set("nproc_per_node", node):
        yield "spawn", called
    for name in ("token", "use_auth_token", "push_to_hub", "torch_compile"):
        if is_constant(given.get(name), True):
            yield ("torch-compile" if name == "torch_compile" else "hub-token"), f"{name}=True"
    if literal(given.get("attn_implementation")) == "flex_attention":
        yield "compiler", "flex_attention"
    if _is_set("cuda_sources", node):
        yield "cuda-source", f"{called}(cuda_sources=…)"


def _spreads(device_map: ast.expr) -> bool | None:
    """Return whether it spreads over GPUs, as ``auto`` does (huggingface.co/docs/accelerate); None: a variable."""
    if isinstance(device_map, ast.Constant):
        return device_map.value in ("auto", "balanced", "balanced_low_0", "sequential")
    return False if isinstance(device_map, ast.Dict) else None


def started_file(node: ast.AST) -> ast.expr | None:
    """Return the Python file that a text or a list starts: ``python train.py --lr``, ``[sys.executable, script]``."""
    parts: list[Any] = node.elts if isinstance(node, ast.List | ast.Tuple) else [node]
    values = ["python" if dotted(each) == "sys.executable" else literal(each) or "" for each in parts]
    text = " ".join(values)
    if ".py" in text and (found := _STARTED.search(text)):
        return ast.Constant(found[1])
    if values[:1] != ["python"] or not {"-c", "-m"}.isdisjoint(values):
        return None
    first = next((part for part, text in zip(parts[1:], values[1:], strict=True) if text[:1] != "-"), None)
    return first if literal(first) is None else None


def started_program(node: ast.Call, names: Mapping[str, str], assigned: Mapping[str, list[ast.expr | None]]) -> str:
    """Return ``git`` of ``sh.git.log()``, ``run(["git", "log"])``, ``os.system(x)`` as ``assigned``; else ""."""

    def values(each: ast.AST | None) -> list[ast.expr | None]:
        return assigned.get(each.id, []) if isinstance(each, ast.Name) else [each]  # type: ignore[list-item]

    if (full := full_name(dotted(node.func), names)).startswith("sh.") and dotted(node.func).split(".")[0] in names:
        return full.split(".")[1]
    given = values([*node.args, keywords(node).get("args")][0]) if full in SETS["starters"] else []
    firsts = (first for each in given for few in getattr(each, "elts", [each])[:1] for first in values(few) if first)
    return next((text for each in firsts for text in texts_of(each)), "").partition(" ")[0]


def modules_of(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Return the names that an import names: ``torch.utils.tensorboard`` of ``from torch.utils import tensorboard``."""
    names = [alias.name for alias in node.names]
    return names if isinstance(node, ast.Import) else [f"{node.module or ''}.{name}" for name in names]


def tops_of(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the top-level names of the modules that the imports among these nodes name."""
    imports = (each for each in nodes if isinstance(each, ast.Import | ast.ImportFrom))
    return {name.partition(".")[0] for each in imports for name in modules_of(each)}


def texts_of(node: ast.AST) -> list[str]:
    """Return texts in an expression; the parts of ``join(here, "a", "b")`` and ``here / "a" / "b"`` as one, ``a/b``."""
    if isinstance(node, ast.Call) and last_name(node.func) == "join":
        parts = [text for each in node.args for text in texts_of(each)]
        return ["/".join(parts)] if parts else []
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        parts = [*texts_of(node.left), *texts_of(node.right)]
        return ["/".join(parts)] if parts else []
    if isinstance(node, ast.Constant):
        return list(filter(None, [literal(node)]))
    return [text for each in ast.iter_child_nodes(node) for text in texts_of(each)]


def last_name(node: ast.AST) -> str:
    """Return ``c`` of ``a.b.c``, or of ``c`` alone; "" where no name stands."""
    return dotted(node).rpartition(".")[2]


def dotted(node: ast.AST) -> str:
    """Return ``a.b.c`` of a chain of names; of one that starts from anything else only the last names, or ""."""
    if isinstance(node, ast.Name):  # most are
        return node.id
    parts: list[str] = []
    while isinstance(node, ast.Attribute) and len(parts) < MOST_PARTS:
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
    elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "super":
        parts.append("super")
    return ".".join(reversed(parts))


def literal(node: ast.AST | None) -> str | None:
    """Return a text that stands in the source as it is; None for anything else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def keywords(call: ast.Call) -> dict[str | None, ast.expr]:
    """Return keyword → its value, None → the value of ``**arguments``."""
    return {each.arg: each.value for each in call.keywords}


def _constants(nodes: Sequence[ast.expr]) -> list[object]:
    return [each.value for each in nodes if isinstance(each, ast.Constant)]


def _is_set(name: str, call: ast.Call, *, first: bool = False) -> bool:
    """Return whether an argument is given, and not None; ``first``: it may be the first one."""
    given = [*call.args[:first], *(each.value for each in call.keywords if each.arg == name)]
    return any(not is_constant(value, None) for value in given)


def is_constant(node: ast.AST | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


#: PyTorch's allocator reads each of these. Source: docs.pytorch.org/docs/stable/notes/cuda.html, "Optimizing memory
#: usage with PYTORCH_CUDA_ALLOC_CONF"; PYTORCH_ALLOC_CONF since 2.9.
_PYTORCH = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
#: Source: www.tensorflow.org/guide/gpu, "Limiting GPU memory growth".
_TENSORFLOW = "TF_FORCE_GPU_ALLOW_GROWTH"

LIMIT = "seatrial run … --gpu-memory 4GB"


def memory_note(name: str, value: str) -> str | None:
    """Return what a variable with this value does, where it may be taken for a limit; else None."""
    if name in _PYTORCH and "max_split_size_mb" in value:
        return "no memory limit: PyTorch does not split larger free blocks, against fragmentation"
    if name == _TENSORFLOW and value.strip().lower() in ("true", "1"):
        return "no memory limit: TensorFlow takes memory as it needs it, not nearly all of the GPU's at its start"
    return None
