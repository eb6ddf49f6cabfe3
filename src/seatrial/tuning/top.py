"""Changes that are a line behind the imports, and ``import torch`` where a file lacks it."""

from __future__ import annotations

import libcst as cst

from seatrial.tuning.edits import Edits
from seatrial.tuning.source import Source

#: Key → the line.
LINES = {
    "tf32": 'torch.set_float32_matmul_precision("high")',
    "cudnn_benchmark": "torch.backends.cudnn.benchmark = True",
}


def edit_top(edits: Edits, key: str) -> str | None:
    """Write the line behind the imports. Returns why not."""
    source, line = edits.source, LINES[key]
    if line.replace("'", '"') in source.module.code.replace("'", '"'):
        return None
    place = _last_import(source)
    if place is None:
        return "no import stands at its top"
    need_torch(edits)
    edits.behind(place, [line])
    return None


def need_torch(edits: Edits) -> None:
    """Once: ``import torch``, where the file has not got the name."""
    source = edits.source
    if edits.torch_is_there or imports_torch(source.module):
        return
    place = _last_import(source)
    if place is not None:
        edits.first_behind(place, "import torch")
    edits.torch_is_there = True


def imports_torch(module: cst.Module) -> bool:
    """Whether the name ``torch`` is there: ``import torch``, or a part of it by its whole name."""
    for statement in module.body:
        for small in statement.body if isinstance(statement, cst.SimpleStatementLine) else ():
            if isinstance(small, cst.Import):
                for alias in small.names:
                    whole = alias.evaluated_name
                    if alias.asname is None and (whole == "torch" or whole.startswith("torch.")):
                        return True
    return False


def _last_import(source: Source) -> cst.SimpleStatementLine | None:
    """The last import of those at the top; what stands between them, in a ``try`` or an ``if``, is passed over."""
    last: cst.SimpleStatementLine | None = None
    for statement in source.module.body:
        if isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
            break
        if isinstance(statement, cst.SimpleStatementLine) and any(
            isinstance(small, (cst.Import, cst.ImportFrom)) for small in statement.body
        ):
            last = statement
    return last
