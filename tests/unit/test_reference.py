"""The reference pages that the site generates name every verb, option, key, finding, check and event."""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from pathlib import Path
from types import ModuleType

import click
import pytest

from seatrial import api
from seatrial.cli import VERBS
from seatrial.cli.completion import find_command
from seatrial.cli.options import Root
from seatrial.doctor.examine import CHAIN
from seatrial.events import schema
from seatrial.findings.catalogue import entries
from seatrial.job.model import json_schema
from seatrial.receipt.model import Receipt

DOCS = Path(__file__).parents[2] / "docs"


@cache
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_reference", DOCS / "reference" / "generate.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def page(name: str) -> str:
    return str(generator().PAGES[name]())


def test_commands_name_every_verb_and_option() -> None:
    text = page("cli.md")
    for verb in VERBS:
        command = find_command(Root(), [verb])
        below = command.commands if isinstance(command, click.Group) else {"": command}
        for name, each in below.items():
            assert each.hidden is (f"\n## {f'{verb} {name}'.strip()}\n" not in text)
            assert each.hidden or all(
                f"`{option.opts[0]}`" in text for option in each.params if option.opts[0][0] == "-"
            )


def test_project_file_names_every_table_and_key() -> None:
    text = page("seatrial-toml.md")
    schema = json_schema()
    for table in (schema, *schema["$defs"].values()):
        assert all(f"| `{key}` |" in text for key in table.get("properties", {})), table.get("title")
    assert json.loads(page("seatrial.schema.json")) == schema


def test_receipt_names_every_key() -> None:
    text = page("receipt.md")
    assert all(f"| `{key}` |" in text for key in Receipt.model_json_schema(mode="serialization")["properties"])


def test_findings_have_a_heading_a_cause_and_a_fix_each() -> None:
    sections = {part.partition("`")[0]: part for part in page("findings.md").split("\n### `")[1:]}
    assert set(sections) == {entry.id for entry in entries()}
    assert all("- Cause: " in part and "- Fix: `" in part for part in sections.values())


def test_checks_name_every_check_and_link_its_findings() -> None:
    text = page("checks.md")
    for check in (check for layer in CHAIN for check in layer.checks):
        assert f"| `{check.id}` |" in text
        assert all(f"(findings.md#{id})" in text for id in check.finds)


def test_events_name_every_kind_and_key() -> None:
    text = page("events.md")
    for name, kind in schema.KINDS.items():
        assert f"\n## `{name}`\n" in text
        if kind is not schema.Step:
            assert all(f"| `{key}` |" in text for key in kind.__annotations__), name


def test_python_names_the_whole_interface() -> None:
    text = page("python.md")
    assert all(f" {name}\n" in text or f".{name}\n" in text for name in api.__all__)
    assert all(f"\n## seatrial.train.{name}\n" in page("train.md") for name in ("Step", "Test", "batches", "fit"))


@pytest.mark.parametrize("name", [name for name in generator().PAGES if name.endswith(".md")])
def test_page_is_not_committed(name: str) -> None:
    assert not (DOCS / "reference" / name).exists(), "the site generates it: docs/site_hooks.py"
