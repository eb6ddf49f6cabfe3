"""Conditions on other packages' versions become specifiers."""

from __future__ import annotations

import ast

import pytest

from seatrial.job.reading.evidence import version_bounds
from seatrial.job.reading.flow import Flow

_NAMES = {"mmcv": "mmcv", "torch": "torch", "V": "packaging.version.parse", "check_min_version": "transformers.utils"}


@pytest.mark.parametrize(
    ("code", "bounds"),
    [
        ("M = '1.4.0'\nv = digit_version(mmcv.__version__)\nassert digit_version('1.3') <= v <= digit_version(M)",
         [">=1.3", "<=1.4.0"]),
        ("M = '1.4.0'\nassert (digit_version(mmcv.__version__) >= digit_version('1') and f())", [">=1"]),
        ("if parse(mmcv.__version__) > parse('2'):\n    raise ImportError", ["<=2"]),
        ("if not (parse(mmcv.__version__) < parse('2')):\n    raise ImportError", ["<2"]),
        ("assert tuple(map(int, torch.__version__.split('.')[:2])) >= (1, 8)", [">=1.8"]),
        ("assert int(torch.__version__.split('.')[0]) == 1", ["==1.*"]),
        ("assert mmcv.__version__ == '0.3.2'", ["==0.3.2"]),
        ("assert torch.__version__ >= '1.8'", []),  # letters: 1.13 comes before 1.8
        ("assert int(torch.__version__.split('.')[1]) >= 8", []),
        ("assert parse(mmcv.__version__) < parse('2') or f()", []),
        ("if parse(mmcv.__version__) < parse('2') and f():\n    raise ImportError", []),
        ("assert parse(mmcv.__version__) < parse(limit())", []),
        ("require_version('datasets>=1.8.0', 'see')", [">=1.8.0"]),
    ],
)  # fmt: skip
def test_version_bounds(code: str, bounds: list[str]) -> None:
    tree = ast.parse(code)
    values = Flow(tree, main=True, provided=lambda _: False).assigned("")
    last = tree.body[-1].value if isinstance(tree.body[-1], ast.Expr) else tree.body[-1]
    assert [bound for _, bound in version_bounds(last, values, _NAMES)] == bounds
