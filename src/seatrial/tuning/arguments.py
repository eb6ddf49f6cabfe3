"""Arguments of a call: giving one by name, in the way the call is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import libcst as cst


class CannotBeGivenError(Exception):
    """The call's arguments have a shape that is not edited; its text says which."""


def with_arguments(call: cst.Call, values: Mapping[str, str], positions: Sequence[str] = ()) -> cst.Call:
    """The call with arguments of these names; one that is there is replaced, in its place.

    Args:
        values: name → its value as code.
        positions: names of the call's positional parameters, in order.

    Raises CannotBeGivenError.
    """
    for name, value in values.items():
        call = _with_one(call, name, cst.parse_expression(value), positions)
    return call


def _with_one(call: cst.Call, name: str, value: cst.BaseExpression, positions: Sequence[str]) -> cst.Call:
    args = list(call.args)
    for at, arg in enumerate(args):
        if arg.keyword is not None and arg.keyword.value == name:
            args[at] = arg.with_changes(value=value)
            return call if arg.value.deep_equals(value) else call.with_changes(args=args)
    plain = [arg for arg in args if arg.keyword is None and not arg.star]
    if name in positions and positions.index(name) < len(plain):
        at = args.index(plain[positions.index(name)])
        if any(arg.star == "*" for arg in args[:at]):
            raise CannotBeGivenError("its arguments come from a list")
        args[at] = args[at].with_changes(value=value)
        return call.with_changes(args=args)
    if any(arg.star == "*" for arg in args) and name in positions:
        raise CannotBeGivenError("its arguments come from a list")
    spread = [at for at, arg in enumerate(args) if arg.star == "**"]
    if len(spread) > 1:
        raise CannotBeGivenError("its arguments come from several dictionaries")
    if spread:
        args[spread[0]] = _with_entry(args[spread[0]], name, value)
        return call.with_changes(args=args)
    return call.with_changes(args=_appended(call, args, cst.Arg(keyword=cst.Name(name), value=value, equal=_EQUAL)))


_EQUAL = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))


def _with_entry(arg: cst.Arg, name: str, value: cst.BaseExpression) -> cst.Arg:
    """``**settings`` → ``**{**settings, "name": value}``: what the dictionary has is known at run time only."""
    key = cst.SimpleString(f'"{name}"')
    inner = arg.value
    if isinstance(inner, cst.Dict):
        elements = list(inner.elements)
        for at, element in enumerate(elements):
            if isinstance(element, cst.DictElement) and element.key.deep_equals(key):
                elements[at] = element.with_changes(value=value)
                return arg.with_changes(value=inner.with_changes(elements=elements))
        last = (
            elements[-1].with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))) if elements else None
        )
        elements = [*elements[:-1], *([last] if last else []), cst.DictElement(key, value)]
        return arg.with_changes(value=inner.with_changes(elements=elements))
    first = cst.StarredDictElement(inner, comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
    return arg.with_changes(value=cst.Dict([first, cst.DictElement(key, value)]))


def _appended(call: cst.Call, args: list[cst.Arg], new: cst.Arg) -> list[cst.Arg]:
    """At the end, on a line of its own where the others are."""
    if not args:
        return [new]
    last = args[-1]
    between = _between(args)
    if isinstance(last.comma, cst.Comma):  # a comma behind the last one: the new one gets it, too
        behind = last.comma.whitespace_after
        commented = isinstance(behind, cst.ParenthesizedWhitespace) and behind.first_line.comment is not None
        if isinstance(between, cst.ParenthesizedWhitespace) and isinstance(behind, cst.ParenthesizedWhitespace):
            inner = behind.with_changes(last_line=between.last_line, indent=between.indent) if commented else between
            closing = behind.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=[])
            return [
                *args[:-1],
                last.with_changes(comma=last.comma.with_changes(whitespace_after=inner)),
                new.with_changes(comma=cst.Comma(whitespace_after=closing)),
            ]
        if commented:
            raise CannotBeGivenError("a comment stands behind its last argument")
        return [
            *args[:-1],
            last.with_changes(comma=cst.Comma(whitespace_after=between)),
            new.with_changes(comma=last.comma),
        ]
    return [
        *args[:-1],
        last.with_changes(comma=cst.Comma(whitespace_after=between), whitespace_after_arg=cst.SimpleWhitespace("")),
        new.with_changes(whitespace_after_arg=last.whitespace_after_arg),
    ]


def _between(args: list[cst.Arg]) -> cst.BaseParenthesizableWhitespace:
    """What stands between the last two arguments, without comments."""
    for arg in reversed(args[:-1]):
        if isinstance(arg.comma, cst.Comma):
            space = arg.comma.whitespace_after
            if isinstance(space, cst.ParenthesizedWhitespace):
                return space.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=[])
            return space
    last = args[-1].comma
    if isinstance(last, cst.Comma) and isinstance(last.whitespace_after, cst.ParenthesizedWhitespace):
        return last.whitespace_after.with_changes(
            first_line=cst.TrailingWhitespace(), empty_lines=[], last_line=cst.SimpleWhitespace("    ")
        )
    return cst.SimpleWhitespace(" ")
