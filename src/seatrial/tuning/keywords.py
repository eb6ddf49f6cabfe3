"""Changes that are arguments of one call: the DataLoader's, the optimizer's, DistributedDataParallel's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import libcst as cst

from seatrial.tuning.arguments import CannotBeGivenError, with_arguments
from seatrial.tuning.edits import Edits
from seatrial.tuning.source import last_name


class Keyword(NamedTuple):
    """Attributes:

    name: of the argument. call: of what, in a sentence. matches: whether a function's last name is it.
    positions: names of its positional parameters.
    """

    name: str
    call: str
    matches: Callable[[str], bool]
    positions: tuple[str, ...] = ()


#: Source: the signatures of torch 2.13; they have been so since 1.13.
_LOADER = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn", "pin_memory")
_DDP = (
    "module",
    "device_ids",
    "output_device",
    "dim",
    "broadcast_buffers",
    "init_sync",
    "process_group",
    "bucket_cap_mb",
)


def _is_loader(name: str) -> bool:
    return name.endswith(("DataLoader", "Loader"))


def _is_optimizer(name: str) -> bool:
    return name in ("Adam", "AdamW", "SGD", "Adagrad")


def _is_ddp(name: str) -> bool:
    return name in ("DistributedDataParallel", "DDP")


KEYWORDS: Mapping[str, Keyword] = {
    "workers": Keyword("num_workers", "DataLoader", _is_loader, _LOADER),
    "persistent_workers": Keyword("persistent_workers", "DataLoader", _is_loader, _LOADER),
    "pin_memory": Keyword("pin_memory", "DataLoader", _is_loader, _LOADER),
    "prefetch_factor": Keyword("prefetch_factor", "DataLoader", _is_loader, _LOADER),
    "batch_size": Keyword("batch_size", "DataLoader", _is_loader, _LOADER),
    "fused_optimizer": Keyword("fused", "optimizer", _is_optimizer),
    "bucket_cap_mb": Keyword("bucket_cap_mb", "DistributedDataParallel", _is_ddp, _DDP),
    "gradient_as_bucket_view": Keyword("gradient_as_bucket_view", "DistributedDataParallel", _is_ddp),
}


def edit_keyword(edits: Edits, key: str, value: Any, line: int) -> str | None:
    """Give the call at ``line`` the argument. Returns why not."""
    keyword = KEYWORDS[key]
    source = edits.source
    aliases = {name: alias for alias, name in imported_as(source.module).items()}
    calls = [
        call
        for call in source.calls_at(line)
        if keyword.matches(aliases.get(last_name(call.func), last_name(call.func)))
    ]
    begun = [call for call in calls if source.lines(call)[0] == line]
    calls = begun or calls[:1]
    if not calls:
        return f"no {keyword.call} is called there by a name that is known"
    for call in calls:
        if (
            any(arg.keyword is not None and arg.keyword.value == "foreach" for arg in call.args)
            and key == "fused_optimizer"
        ):
            return "its foreach= would have to go"
        values = {keyword.name: repr(value)}
        try:
            with_arguments(call, values, keyword.positions)
        except CannotBeGivenError as error:
            return str(error)
        edits.call(call, lambda made, values=values: with_arguments(made, values, keyword.positions))  # type: ignore[misc]
    return None


def imported_as(module: cst.Module) -> dict[str, str]:
    """``from x import Name as Other``: Name → Other, for top-level imports."""
    found: dict[str, str] = {}
    for statement in module.body:
        if not isinstance(statement, cst.SimpleStatementLine):
            continue
        for small in statement.body:
            if isinstance(small, cst.ImportFrom) and not isinstance(small.names, cst.ImportStar):
                for alias in small.names:
                    if alias.asname is not None and isinstance(alias.asname.name, cst.Name):
                        found[last_name(alias.name)] = alias.asname.name.value
    return found
