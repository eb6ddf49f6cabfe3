"""Generates the reference pages from the code while the site is built (docs/site_hooks.py). None is committed.

``python docs/reference/generate.py FOLDER`` writes the pages into FOLDER, to read them without the site.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import click

from seatrial import api, train
from seatrial.api import Examination
from seatrial.cli import VERBS
from seatrial.cli.completion import find_command
from seatrial.cli.options import Root
from seatrial.doctor.examine import CHAIN
from seatrial.errors import SeatrialError
from seatrial.events import schema
from seatrial.findings.catalogue import LAYERS, Known, entries
from seatrial.job.model import json_schema
from seatrial.receipt.model import SCHEMA_VERSION, Receipt, Series


def schema_text() -> str:
    """seatrial.schema.json."""
    return json.dumps(json_schema(), indent=2) + "\n"


def findings_text() -> str:
    """findings.md: the catalogue of known failures, layer by layer."""
    return "\n".join(_findings_lines()) + "\n"


def _findings_lines() -> Iterator[str]:
    yield "# Findings"
    yield ""
    yield f"The {len(entries())} failures that seatrial knows, from the host to the framework. Receipts and the agent"
    yield "name them by ID. In symptoms, … and {name} stand for any text."
    yield "Generated from `src/seatrial/findings/catalog/`."
    for layer in LAYERS:
        yield ""
        yield f"## {layer.capitalize()}"
        for entry in entries((layer,)):
            yield from _entry_lines(entry)


def _entry_lines(entry: Known) -> Iterator[str]:
    shown = entry.finding()
    yield ""
    yield f"### `{entry.id}`"
    yield ""
    yield f"{shown.message} ({entry.severity})."
    yield ""
    if entry.symptoms:
        yield "- Printed: " + " · ".join(f"`{symptom}`" for symptom in entry.symptoms)
    yield f"- Cause: {shown.cause}."
    yield f"- Fix: `{shown.fix}`"
    yield "- Source: " + ", ".join(entry.sources)


def checks_text() -> str:
    """checks.md: what doctor looks at, layer by layer."""
    return "\n".join(_checks_lines()) + "\n"


def _checks_lines() -> Iterator[str]:
    count = sum(len(layer.checks) for layer in CHAIN)
    yield "# Checks of doctor"
    yield ""
    yield f"The {count} links that `seatrial doctor` looks at, in the order in which a GPU needs them. A check whose"
    yield "needs are broken is not looked at: it is blocked by them. Each finding is reproduced in"
    yield "`tests/unit/doctor/test_breaks.py`. Generated from `src/seatrial/doctor/`."
    for layer in CHAIN:
        yield ""
        yield f"## {layer.title}"
        yield ""
        yield "| check | makes sure that | finds | needs |"
        yield "|---|---|---|---|"
        for check in layer.checks:
            finds = ", ".join(f"[`{id}`](findings.md#{id})" for id in check.finds)
            yield f"| `{check.id}` | {check.title} | {finds} | {', '.join(f'`{need}`' for need in check.needs)} |"


def events_text() -> str:
    """events.md: what stands in events.jsonl, kind by kind."""
    return "\n".join(_events_lines()) + "\n"


def _events_lines() -> Iterator[str]:
    yield "# Events"
    yield ""
    yield "events.jsonl is the evidence of a run: one JSON object a line, append-only. Generated from"
    yield "`src/seatrial/events/schema.py`."
    yield ""
    yield (schema.__doc__ or "").split("\n\n")[1].replace("``", "`")
    yield ""
    yield "Readers skip what they do not know; writers never change the meaning of a key."
    for type, kind in schema.KINDS.items():
        about, _, keys = (inspect.getdoc(kind) or "").partition("\n\n")
        yield from ("", f"## `{type}`", "", about, "")
        if kind is schema.Step:
            yield keys
        elif kind.__annotations__:
            yield from _table({key: _json_type(kind, key) for key in kind.__annotations__}, dict(_KEY.findall(keys)))
    yield from ("", "## Keys of a GPU's sample", "")
    yield "Of each entry of `sample.gpus`. A counter that the chip or driver does not have is null, never 0."
    yield ""
    yield from _table(dict.fromkeys(schema.GPU_SAMPLE, ""), schema.GPU_SAMPLE)


#: ``key: what it is``, which may go on in indented lines.
_KEY = re.compile(r"^(\w+): ((?:.|\n )+)", re.MULTILINE)


def _json_type(kind: type[schema.Event], key: str) -> str:
    """Return the JSON type of a key: ``integer or null``."""
    hint = get_type_hints(kind)[key]
    optional = NoneType in get_args(hint)
    inner = get_args(hint)[0] if optional else hint
    words = JSON_TYPES[get_origin(inner) or inner] + (" or null" if optional else "")
    return words + (", may be absent" if hasattr(kind, key) else "")


JSON_TYPES = {int: "integer", float: "number", str: "string", bool: "true or false", list: "array", dict: "object"}


def _table(types: Mapping[str, str], words: Mapping[str, str]) -> Iterator[str]:
    typed = any(types.values())
    yield "| key | type | |" if typed else "| key | |"
    yield "|---|---|---|" if typed else "|---|---|"
    for key, type in types.items():
        text = " ".join(words.get(key, "").split()).removesuffix(".")
        yield f"| `{key}` | {type} | {text} |" if typed else f"| `{key}` | {text} |"


def cli_text() -> str:
    """cli.md: every command, its examples and options, read from the commands themselves."""
    return "\n".join(_cli_lines()) + "\n"


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield each command by its words: ``run``, ``runs ls``."""
    for verb in VERBS:
        command = find_command(Root(), [verb])
        below = command.commands if isinstance(command, click.Group) else {"": command}
        yield from ((f"{verb} {name}".strip(), each) for name, each in below.items() if each and not each.hidden)


def _cli_lines() -> Iterator[str]:
    yield "# Commands"
    yield ""
    yield "Generated from the commands themselves; `seatrial COMMAND --help` prints the same."
    yield "What to type for a task: [Command by command](../how-to/index.md)."
    for name, command in commands():
        context = click.Context(command, info_name=f"seatrial {name}")
        parameters = command.get_params(context)
        arguments = [each for each in parameters if isinstance(each, click.Argument)]
        shown = " ".join(["seatrial", name, *(each.make_metavar(context) for each in arguments)])
        yield from ("", f"## {name}", "", f"`{shown}`", "", _prose((command.help or "").replace("\b", "").strip()), "")
        if examples := getattr(command, "examples", ()):
            yield from ("```console", *(f"$ {line}" for line in examples), "```", "")
        rows = [(f"`{each.make_metavar(context)}`", each.help) for each in arguments if each.help]
        rows += [
            _row(each, context) for each in parameters if isinstance(each, click.Option) and "--help" not in each.opts
        ]
        if rows:
            yield from ("| | |", "|---|---|", *(f"| {left} | {_cell(right)} |" for left, right in rows))


def _row(option: click.Option, context: click.Context) -> tuple[str, str]:
    """(names and value, help) of an option."""
    names = ", ".join(f"`{name}`" for name in sorted(option.opts, key=lambda name: (name.startswith("--"), name)))
    value = "" if option.is_flag else f" `{_cell(option.make_metavar(context))}`"
    return names + value, option.help or ""


def _prose(text: str) -> str:
    """Return paragraphs of help with angle brackets escaped."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n")).replace("<", "&lt;").replace("``", "`")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def toml_text() -> str:
    """seatrial-toml.md: the keys of seatrial.toml, table by table."""
    return "\n".join(_toml_lines()) + "\n"


def _toml_lines() -> Iterator[str]:
    schema = json_schema()
    yield "# seatrial.toml"
    yield ""
    yield "The keys of a project's file. Generated from [its schema](seatrial.schema.json), which editors read, too."
    yield from ("", "## The job", "")
    yield from _keys(schema["properties"])
    yield from _tables("", schema["properties"], schema["$defs"])


def _tables(above: str, properties: Mapping[str, Any], tables: Mapping[str, Any]) -> Iterator[str]:
    """Each table below these keys, and the tables in it."""
    for name, key in properties.items():
        many = [key.get("additionalProperties"), *key.get("patternProperties", {}).values()]
        for inner in (key, *key.get("anyOf", ()), *many):
            table = tables.get(str(inner.get("$ref", "")).rpartition("/")[2]) if isinstance(inner, dict) else None
            if table and table.get("properties"):
                named = f"{above}{name}" + (".NAME" if inner in many else "")
                yield from ("", f"## [{named}]", "", _prose(table.get("description", "")), "")
                yield from _keys(table["properties"])
                yield from _tables(f"{named}.", table["properties"], tables)


def _keys(properties: Mapping[str, Any]) -> Iterator[str]:
    yield from ("| key | default | |", "|---|---|---|")
    for name, key in properties.items():
        default = key.get("default")
        shown = (
            ""
            if default in (None, []) or isinstance(default, dict)
            else f"`{_cell(json.dumps(default, ensure_ascii=False))}`"
        )
        yield f"| `{name}` | {shown} | {_cell(key.get('description', ''))} |"


def receipt_text() -> str:
    """receipt.md: what stands in receipt.json."""
    return "\n".join(_receipt_lines()) + "\n"


def _receipt_lines() -> Iterator[str]:
    schema = Receipt.model_json_schema(mode="serialization")
    yield "# receipt.json"
    yield ""
    yield f"What every run ends with, as JSON; `schema_version` is {SCHEMA_VERSION}. Units are in the keys' names:"
    yield "`_s` seconds, `_bytes`, `_w` watts. From Python: [Python](../python.md)."
    yield "Generated from `src/seatrial/receipt/`."
    for name, table in {"receipt.json": schema, **schema.get("$defs", {})}.items():
        if not table.get("properties"):
            continue
        about, _, more = table.get("description", "").partition("Attributes:")
        yield from ("", f"## {'The whole' if name == 'receipt.json' else name}", "", _prose(about.strip()), "")
        yield from ("| key | type |", "|---|---|")
        yield from (f"| `{key}` | {_cell(_kind(value))} |" for key, value in table["properties"].items())
        if more.strip():
            yield from ("", _prose(more.strip()))


def _kind(key: Mapping[str, Any]) -> str:
    """The type of a key in JSON, with a link where it has a table of its own."""
    if reference := str(key.get("$ref", "")).rpartition("/")[2]:
        return f"[{reference}](#{reference.lower()})"
    if "anyOf" in key:
        return " or ".join(_kind(one) for one in key["anyOf"])
    if "enum" in key or "const" in key:
        return " or ".join(f"`{value}`" for value in key.get("enum", [key.get("const")]))
    if key.get("type") == "array" and isinstance(key.get("items"), dict):
        return f"array of {_kind(key['items'])}"
    return str(key.get("type", "any"))


#: Objects that the interface's functions give or raise. A receipt's fields are in receipt.md.
GIVEN = (api.Run, api.Receipt, Series, Examination, SeatrialError)


def python_text() -> str:
    """python.md: what ``import seatrial`` gives."""
    return "\n".join(_python_lines()) + "\n"


def _python_lines() -> Iterator[str]:
    yield "# Python API"
    yield ""
    yield "What `import seatrial` gives, from its signatures and docstrings. How to use it:"
    yield "[From Python](../python.md). Generated from `src/seatrial/api.py`."
    for name in api.__all__:
        given = getattr(api, name)
        if inspect.isfunction(given):
            yield from ("", f"## seatrial.{name}", "", *_signature(f"seatrial.{name}", given), *_doc(given))
    for kind in GIVEN:
        yield from ("", f"## {kind.__name__}", *_doc(kind))
        for name, member in vars(kind).items():
            function = member.fget if isinstance(member, property) else member
            if name.startswith("_") or not inspect.isfunction(function) or not inspect.getdoc(function):
                continue
            shown = (
                [f"`.{name}`: `{_returns(function)}`"] if function is not member else _signature(f".{name}", function)
            )
            yield from ("", f"### {kind.__name__}.{name}", "", *shown, *_doc(function))


#: What a script begins with; the rest of the library is what these take.
FIRST = ("Step", "Test", "batches", "fit")


def train_text() -> str:
    """train.md: what ``seatrial.train`` gives a script, read and not imported: that would need torch."""
    return "\n".join(_train_lines()) + "\n"


def _train_lines() -> Iterator[str]:
    yield "# Training library"
    yield ""
    yield "What `from seatrial.train import …` gives a script of yours, from its signatures and docstrings."
    yield "How to use it: [your own model](../training.md#your-own-model-in-the-fast-loop)."
    yield "Generated from `src/seatrial/train/`."
    for name in sorted(train._PLACES, key=lambda name: (name not in FIRST, name)):
        place = train._PLACES[name]
        file = Path(train.__path__[0], *place.split(".")).with_suffix(".py")
        file = file if file.is_file() else file.with_suffix("") / "__init__.py"
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
                methods = {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}
                called = node if isinstance(node, ast.FunctionDef) else methods["__init__"]
                yield from ("", f"## seatrial.train.{name}", "", *_called(name, called), *_doc(node))


def _called(name: str, function: ast.FunctionDef) -> Iterator[str]:
    """Return the call signature from the source."""
    given, keywords = function.args.args, function.args.kwonlyargs
    defaults = [*[None] * (len(given) - len(function.args.defaults)), *function.args.defaults]
    shown = [_parameter(*pair) for pair in zip(given, defaults, strict=True) if pair[0].arg != "self"]
    shown += ["*"] if keywords else []
    shown += [_parameter(*pair) for pair in zip(keywords, function.args.kw_defaults, strict=True)]
    shown += [f"**{function.args.kwarg.arg}"] if function.args.kwarg else []
    line = f"{name}({', '.join(shown)})"
    if len(line) > 100:
        line = "\n    ".join([f"{name}(", *(f"{one}," for one in shown)]) + "\n)"
    yield from ("```python", line, "```")


def _parameter(parameter: ast.arg, default: ast.expr | None) -> str:
    typed = f"{parameter.arg}: {ast.unparse(parameter.annotation)}" if parameter.annotation else parameter.arg
    return f"{typed} = {ast.unparse(default)}" if default else typed


def _signature(name: str, function: Callable[..., object]) -> Iterator[str]:
    """Return the signature as typed: types without quotes, a default function by its name."""
    signature = inspect.signature(function)
    shown = [str(one) for key, one in signature.parameters.items() if key != "self"]
    if any(one.kind is one.KEYWORD_ONLY for one in signature.parameters.values()):
        kinds = [one.kind for key, one in signature.parameters.items() if key != "self"]
        shown.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    line = f"{name}({', '.join(shown)}) -> {signature.return_annotation}"
    if len(line) > 100:
        line = "\n    ".join([f"{name}(", *(f"{one}," for one in shown)]) + f"\n) -> {signature.return_annotation}"
    line = re.sub(r"<function _?(\w+) at 0x\w+>", r"\1", re.sub(r": '([^']*)'", r": \1", line))
    yield from ("```python", line, "```")


def _returns(function: Callable[..., object]) -> str:
    return str(inspect.signature(function).return_annotation)


#: ``target, args: as for plan``, at the beginning of an entry.
_NAMES = re.compile(r"^([\w, ]+):")


def _doc(object: object) -> Iterator[str]:
    """A docstring: paragraphs as they are, entries below Args or Attributes as a list."""
    written = isinstance(object, ast.ClassDef | ast.FunctionDef)
    for part in ((ast.get_docstring(object) if written else inspect.getdoc(object)) or "").split("\n\n"):
        first, _, rest = part.partition("\n")
        if first in ("Args:", "Attributes:", "Raises:"):
            entries = inspect.cleandoc(rest).replace("\n    ", " ").splitlines()
            yield from ("", *("- " + _prose(_NAMES.sub(r"``\1``:", entry)) for entry in entries))
        else:
            yield from ("", _prose(part))


#: File → the function that generates it.
PAGES = {
    "cli.md": cli_text,
    "seatrial-toml.md": toml_text,
    "python.md": python_text,
    "train.md": train_text,
    "receipt.md": receipt_text,
    "findings.md": findings_text,
    "checks.md": checks_text,
    "events.md": events_text,
    "seatrial.schema.json": schema_text,
}

if __name__ == "__main__":
    folder = Path(sys.argv[1] if sys.argv[1:] else sys.exit("usage: generate.py FOLDER"))
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in PAGES.items():
        (folder / name).write_text(text(), encoding="utf-8")
