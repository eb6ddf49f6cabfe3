"""Methods of a user's class that a server calls."""

from __future__ import annotations

import ast
from pathlib import Path

from seatrial.job.tables import CALLED, Serving

USER_CLASS = Path(__file__).parents[3] / "src/seatrial/serve/runners/user_class.py"


def test_the_methods_that_the_server_looks_for() -> None:
    calls = [node for node in ast.walk(ast.parse(USER_CLASS.read_text())) if isinstance(node, ast.Call)]
    names = [ast.unparse(each.args[1]) for each in calls if ast.unparse(each.func) == "getattr" and len(each.args) > 1]
    assert {"'load'", "'example'", "'predict'"} <= {*names} and {f"'{name}'" for name in CALLED} <= {*names}
    served = Serving(kind="code", model="serve.py:Model", name="Model")
    assert served.calls == ("Model", "Model.load", "Model.predict", "Model.example")
    assert Serving(kind="file", model="net.pt2", name="net").calls == ()
