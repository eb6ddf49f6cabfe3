"""Changes around the model: autocast at its call, its layout and its compilation behind its move to the device."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import libcst as cst

from seatrial.tuning.arguments import with_arguments
from seatrial.tuning.edits import Edits
from seatrial.tuning.source import Source, last_name
from seatrial.tuning.top import need_torch

_AUTOCAST = 'torch.autocast("cuda", dtype=torch.bfloat16)'

#: Losses that torch refuses under autocast. Source: pytorch.org/docs/stable/amp.html
_UNSAFE = re.compile(r"binary_cross_entropy\(|BCELoss\(")

#: Names of models, as people write them.
_LIKELY = re.compile(r"(^|[._])((model|net|network|module|transformer|unet|ddp|vae|gpt|bert)\d?|[DG]|net[DG]|self)$")


def edit_autocast(edits: Edits, line: int, outputs: Sequence[str]) -> str | None:
    """The model's call under autocast, its outputs in float32 again, as it was measured. Returns why not."""
    source = edits.source
    found = model_call(source, line)
    if found is None:
        return "the model's call there is in no statement of its own"
    call, statement = found
    around_it = [outer for outer in source.above(call) if isinstance(outer, cst.With)]
    if any("autocast" in source.code(item.item) for outer in around_it for item in outer.items):
        return None
    small = statement.body[0] if len(statement.body) == 1 else None
    whole = getattr(small, "value", None) is call
    if list(outputs) == ["tensor"]:
        edits.call(call, lambda made: cst.Call(cst.Attribute(made, cst.Name("float"))))
    elif list(outputs) == ["tensors"] and whole and (names := _targets(small)):
        each = f"{names} = (each.float() for each in ({names}))"
        edits.behind(statement, [each])
    elif list(outputs) == ["tensors"]:
        return "the model gives several tensors, and they go straight on"
    if not whole and _UNSAFE.search(source.module.code):
        return "its loss, which bf16 autocast refuses, is computed in the same statement"
    need_torch(edits)
    header = cst.WithItem(cst.parse_expression(_AUTOCAST))

    def around(made: cst.SimpleStatementLine) -> cst.With:
        bare = made.with_changes(leading_lines=[])
        return cst.With([header], cst.IndentedBlock([bare]), leading_lines=made.leading_lines)

    edits.around(statement, around)
    return None


def _targets(small: Any) -> str:
    """``a, b`` of ``a, b = …``, where they are names; else empty."""
    if not isinstance(small, cst.Assign) or len(small.targets) != 1:
        return ""
    target = small.targets[0].target
    if not isinstance(target, cst.Tuple) or not all(isinstance(item.value, cst.Name) for item in target.elements):
        return ""
    return ", ".join(item.value.value for item in target.elements if isinstance(item.value, cst.Name))


def model_call(source: Source, line: int) -> tuple[cst.Call, cst.SimpleStatementLine] | None:
    """The model's call at a line, and its statement: a call of what is trained elsewhere in the file, or named so."""
    names = _module_names(source)
    calls = [call for call in source.calls_at(line) if source.statement(call) is not None]
    known = [call for call in calls if source.code(call.func) in names]
    if not known:
        known = [call for call in calls if _LIKELY.search(source.code(call.func))]
    if not known:
        return None
    statement = source.statement(known[0])
    return (known[0], statement) if statement is not None else None


def _module_names(source: Source) -> set[str]:
    """Names of modules, by what is asked of them: ``x.train()``, ``x.parameters()`` …"""
    found: set[str] = set()
    for call in source.of(cst.Call):
        if last_name(call.func) in ("train", "eval", "parameters", "state_dict") and isinstance(
            call.func, cst.Attribute
        ):
            found.add(source.code(call.func.value))
    return found


def edit_behind_move(edits: Edits, key: str, value: Any, moves: Sequence[int], calls: Sequence[int]) -> str | None:
    """``model.compile()``, or channels_last, behind the line that moves the model, or makes it. Returns why not."""
    source = edits.source
    found = next((made for line in moves if (made := _move(source, line)) is not None), None)
    if found is None:
        found = next((made for line in calls if (made := _making(source, line)) is not None), None)
    if found is None:
        return "no line that moves the model to its device by name is known"
    name, statement = found
    if key == "compile_forward":  # of torch's own classes, whose compile() does nothing (agent/hook/module_calls.py)
        mode = "" if value == "default" else f', mode="{value}"'
        lines = [
            f"{name}.forward = torch.compile({name}.forward{mode})  # {name}.compile() passes over torch's classes"
        ]
        there = f"torch.compile({name}.forward"
        need_torch(edits)
    elif key == "compile":
        mode = "" if value == "default" else f'mode="{value}"'
        lines = [f"{name}.compile({mode})  # in place: names in state_dict stay"]
        there = f"{name}.compile("
    else:
        lines = [f"{name} = {name}.to(memory_format=torch.channels_last)"]
        there = "memory_format=torch.channels_last"
        need_torch(edits)
    if there not in source.module.code:
        edits.behind(statement, lines)
    return None


def _move(source: Source, line: int) -> tuple[str, cst.SimpleStatementLine] | None:
    """The model's name and the statement, of ``model = X(…).to(device)``, ``model.cuda()`` and the like."""
    for call in source.calls_at(line):
        statement = source.statement(call)
        if last_name(call.func) not in ("to", "cuda") or statement is None or len(statement.body) != 1:
            continue
        small = statement.body[0]
        assert isinstance(call.func, cst.Attribute)
        if isinstance(small, cst.Assign) and small.value is call and len(small.targets) == 1:
            target = small.targets[0].target
            if isinstance(target, (cst.Name, cst.Attribute)):
                return source.code(target), statement
        named = isinstance(call.func.value, (cst.Name, cst.Attribute))
        if isinstance(small, cst.Expr) and small.value is call and named:
            return source.code(call.func.value), statement
    return None


def _making(source: Source, line: int) -> tuple[str, cst.SimpleStatementLine] | None:
    """The only assignment of the name that is called at the line."""
    found = model_call(source, line)
    if found is None:
        return None
    name = source.code(found[0].func)
    made = [
        statement
        for assign in source.of(cst.Assign)
        if [source.code(target.target) for target in assign.targets] == [name]
        and isinstance(assign.value, cst.Call)
        and (statement := source.statement(assign)) is not None
    ]
    return (name, made[0]) if len(made) == 1 else None


def edit_pictures(edits: Edits, line: int, positions: Sequence[str]) -> None:
    """The model's 4-D inputs laid out as its weights; where the call is not clear, its first layer does it."""
    found = model_call(edits.source, line)
    if found is None or list(positions) != ["0"] or not found[0].args:
        return
    first = found[0].args[0]
    if first.keyword is not None or first.star or not isinstance(first.value, cst.Name):
        return

    def laid_out(call: cst.Call) -> cst.Call:
        inner = cst.parse_expression(f"{edits.source.code(first.value)}.to(memory_format=torch.channels_last)")
        return call.with_changes(args=[call.args[0].with_changes(value=inner), *call.args[1:]])

    edits.call_first(found[0], laid_out)


def edit_copies(edits: Edits, line: int) -> str | None:
    """``.to(device)`` and ``.cuda()`` at the line get non_blocking=True. Returns why not."""
    source = edits.source
    calls = [call for call in source.calls_at(line) if last_name(call.func) in ("to", "cuda")]
    if not calls:
        return "no .to() or .cuda() stands there"
    for call in calls:
        if any(arg.keyword is not None and arg.keyword.value == "non_blocking" for arg in call.args):
            continue
        edits.call(call, _not_blocking)
    return None


def _not_blocking(call: cst.Call) -> cst.Call:
    return with_arguments(call, {"non_blocking": "True"})
