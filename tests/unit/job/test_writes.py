"""Writes of a script outside the project, found by reading it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from seatrial.job.model import Target
from seatrial.job.reading.constants import Text
from seatrial.job.reading.file_calls import Paths
from seatrial.job.script import script_facts
from tables import cases, constant

ARGPARSE = (
    "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('-o', '--output', default='/output')\n"
)

CERTAIN, PERHAPS, NOTHING = (constant(__file__, name) for name in ("CERTAIN", "PERHAPS", "NOTHING"))


def writes(folder: Path, source: str, *args: str) -> list[tuple[str, bool]]:
    (folder / "train.py").write_text(source)
    (folder / "sibling.py").write_text("OUT = '/models/sibling.pt'\ndef save(m):\n    torch.save(m, OUT)\n")
    facts = script_facts(Target(kind="script", value="train.py", args=args), folder)
    return [(write.path, write.certain) for write in facts.writes]


@pytest.mark.parametrize("source", [*CERTAIN, *PERHAPS])
def test_write_is_certain_where_it_runs_in_every_run(tmp_path: Path, source: str) -> None:
    assert ({**CERTAIN, **PERHAPS}[source], source in CERTAIN) in writes(tmp_path, source)


@pytest.mark.parametrize("source", NOTHING)
def test_read_or_relative_path_is_no_write(tmp_path: Path, source: str) -> None:
    assert writes(tmp_path, source) == []


def test_writes_of_a_class_count_if_it_is_instantiated_or_registered(tmp_path: Path) -> None:
    body = "    def parse(self):\n        os.makedirs('/{0}/here')\n"
    kinds = "".join(
        f"{head}:\n{body.format(name)}"
        for name, head in (
            ("made", "class Made"),
            ("kept", "class Kept"),
            ("listed", "@REGISTRY.add\nclass Listed"),
            ("idle", "class Idle"),
        )
    )
    (tmp_path / "parts.py").write_text(f"import os\n{kinds}KINDS = [Kept]\n")
    found = writes(tmp_path, "from parts import KINDS, Made\nMade().parse()\nKINDS[0]().parse()\n")
    assert sorted(path for path, _ in found) == ["/kept/here", "/listed/here", "/made/here"]


@cases("args", "expected")
def test_typed_option_wins_over_default(
    tmp_path: Path, args: tuple[str, ...], expected: tuple[tuple[str, bool], ...]
) -> None:
    source = ARGPARSE + "args = parser.parse_args()\nopen(args.output + '/a', 'w')\n"
    assert tuple(writes(tmp_path, source, *args)) == expected


def test_names_made_of_themselves_take_no_time(tmp_path: Path) -> None:
    grown = "path = path + '/a' + path\n" * 200
    source = f"path = '/output'\n{grown}open(path, 'w')\n" * 5
    began = time.process_time()
    assert all(not certain for _, certain in writes(tmp_path, source))
    assert time.process_time() - began < 5


def test_click_option_reaches_its_function(tmp_path: Path) -> None:
    source = (
        "import click\n@click.command()\n@click.option('--out', default='/output')\ndef main(out):\n"
        "    open(out + '/a', 'w')\nmain()\n"
    )
    assert ("/output/a", True) in writes(tmp_path, source)
    assert ("/results/a", True) in writes(tmp_path, source, "--out", "/results")


@pytest.mark.parametrize(
    ("then", "body", "expected"),
    [
        ("self.set()", "self.out = self.top + '/a'", ["/output/a/x"]),
        ("self.set()", "if top:\n            self.out = self.top + '/a'", []),
        ("self.other()\n        self.set()", "self.out = self.top + '/a'", []),
        ("pass", "self.out = self.top + '/a'", []),
        ("self.set()", "self.out = self.top + '/a'\nclass Other(Model):\n    def set(self):\n        pass", []),
    ],
    ids=["next", "in a branch", "after another", "never", "replaced"],
)
def test_an_attribute_has_the_value_of_the_method_that_the_constructor_calls_next(
    tmp_path: Path, then: str, body: str, expected: list[str]
) -> None:
    source = f"""class Model:
    def __init__(self, top="/output/"):
        self.top = top
        self.out = None
        {then}
    def fit(self):
        open(self.out + "/x", "w")
    def set(self):
        {body}
Model().fit()
"""
    assert [path.replace("//", "/") for path, _ in writes(tmp_path, source)] == expected


def test_an_option_that_the_script_joins_to_anothers_folder_is_written_there(tmp_path: Path) -> None:
    source = """import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--root")
parser.add_argument("--out")
opt = parser.parse_args()
if opt.root is not None:
    opt.out = opt.root / opt.out
with (opt.out / "opts.json").open("w") as file:
    file.write("")
"""
    assert ("/data/results/opts.json", False) in writes(tmp_path, source, "--root", "/data", "--out", "results")
    assert not writes(tmp_path, source, "--out", "results")


@pytest.mark.parametrize(("path", "option"), [("args.output + '/x'", "--output"), ("'/runs' + args.output", None)])
def test_an_option_moves_what_is_written_only_if_the_path_begins_with_it(
    tmp_path: Path, path: str, option: str | None
) -> None:
    (tmp_path / "train.py").write_text(f"{ARGPARSE}args = parser.parse_args()\nopen({path}, 'w')\n")
    found = script_facts(Target(kind="script", value="train.py"), tmp_path).writes
    assert next(each.option for each in found if each.path != "/output") == option


def test_a_folder_for_results_of_a_jsonnet_is_perhaps_written(tmp_path: Path) -> None:
    text = 'local output_path = "../runs/bert/";\nlocal base = "data/";\n{ trainer: { path: output_path, }, }\n'
    (tmp_path / "bert.jsonnet").write_text(text)
    assert writes(tmp_path, "import sys\n", "train", "bert.jsonnet") == [("../runs/bert/", False)]


def test_a_path_of_many_unknown_parts_is_compared_at_once() -> None:
    made, began_s = Paths([Text(f"ck/a{'_*' * 8}.pt", sure=True)]), time.process_time()
    assert "ck/a_1.pt" in made and f"ck/a{'_' * 60}/x.csv" not in made
    assert time.process_time() - began_s < 1
