"""Which functions of a script run, under which conditions, and what has run before a line."""

from __future__ import annotations

import ast
from math import inf
from pathlib import Path

import pytest

from seatrial.job.reading.constants import ParsedCall
from seatrial.job.reading.flow import Flow
from seatrial.job.reading.parsed_modules import Module
from seatrial.job.reading.run_order import RunOrder
from seatrial.job.reading.signs import dotted

SCRIPT = Path("train.py")


def order_of(source: str) -> RunOrder:
    """Note every call of a function that the source defines; a name is true in this run if it is ``on``."""
    module = Module(SCRIPT, SCRIPT.name, Flow(ast.parse(source), main=True, provided=lambda _: True), source.encode())
    order = RunOrder((SCRIPT, ""), lambda _: module, {})
    order.truth = lambda test, _: {"on": True, "off": False}.get(dotted(test))
    for name in ("", *module.flow.functions):
        for seen in module.flow.walk(name):
            if isinstance(seen.node, ast.Call) and (called := dotted(seen.node.func)) in module.flow.functions:
                call = ParsedCall((SCRIPT, name), seen.node, seen.always, seen.tests)
                order.note_call(call, [(SCRIPT, called)])
    order.join_branches()
    order.settle(())
    return order


CALLS = """
def a(): b()
def b(): pass
def c(): pass
def d(): c()
{}
"""


@pytest.mark.parametrize(
    ("code", "reached", "may", "tried", "likely", "always"),
    [
        ("a()", "ab", "ab", "ab", "ab", "ab"),
        ("if on: a()", "ab", "ab", "ab", "ab", ""),
        ("if off: a()", "ab", "", "", "", ""),
        ("if unclear: a()", "ab", "ab", "ab", "", ""),
        ("if unclear: a()\nelse: a()", "ab", "ab", "ab", "ab", ""),
        ("try: a()\nexcept OSError: pass", "ab", "", "ab", "", ""),
        ("if off:\n  try: a()\n  except OSError: pass", "ab", "", "", "", ""),
        ("async def e(): a()\ne()", "", "", "", "", ""),
        ("def e(): yield a()\ne()", "abe", "abe", "abe", "abe", ""),
    ],
)
def test_what_a_script_runs(code: str, reached: str, may: str, tried: str, likely: str, always: str) -> None:
    order = order_of(CALLS.format(code))
    units = [(SCRIPT, name) for name in "abcde"]

    def names(which: set[tuple[Path, str]]) -> str:
        return "".join(name for _, name in units if (SCRIPT, name) in which)

    assert names(order.reached()) == reached
    assert names({each for each in units if order.may_run()(each, ())}) == may
    assert names({each for each in units if order.may_run(tried=True)(each, ())}) == tried
    assert names(order.reached(lambda unit, run: order.is_likely(unit, run.tests))) == likely
    assert names(order.reached(lambda _, run: run.always)) == always


def test_a_framework_calls_methods_of_an_object_that_the_script_makes() -> None:
    order = order_of("class Data:\n    def __init__(self): pass\n    def __getitem__(self, at): pass\n")
    made = ast.parse("Data()", mode="eval").body
    assert isinstance(made, ast.Call)
    order.note_call(ParsedCall((SCRIPT, ""), made, True, ()), [(SCRIPT, "Data.__init__")])
    assert (SCRIPT, "Data.__getitem__") in order.reached()


ORDERED = """
def save():
    write()
def write():
    pass
def check():
    pass
def later():
    check()
save()
check()
class Hook:
    def on_end(self): write()
"""


def test_what_ran_before_a_line_of_the_script() -> None:
    order = order_of(ORDERED)
    ran = order.ran_before((SCRIPT, ""), 10, at_any_time=False)
    assert ran == {(SCRIPT, ""): 10, (SCRIPT, "save"): inf, (SCRIPT, "write"): inf}


def test_what_ran_before_a_line_of_a_function_is_what_each_caller_ran_before() -> None:
    ran = order_of(ORDERED).ran_before((SCRIPT, "check"), 7, at_any_time=False)
    lines = {name: line for (_, name), line in ran.items()}
    assert lines == {"check": 7, "": 11, "later": 9, "save": inf, "write": inf}


def test_a_method_that_no_call_names_may_run_at_any_time_but_not_an_uncalled_function() -> None:
    ran = order_of(ORDERED).ran_before((SCRIPT, ""), 1, at_any_time=True)
    assert {name: line for (_, name), line in ran.items()} == {"": 1, "Hook.on_end": inf, "write": inf}
