"""A check, a criterion and a verb: at most two files each, added to a copy of the source and used from there."""

from __future__ import annotations

import json
from pathlib import Path

from own_tree import Tree

VERB = '''"""``seatrial hello``: says so."""

from seatrial.cli.options import command, option


@command()
@option("--name", default="you")
def hello(name: str) -> int:
    print(f"hello {name}")
    return 0
'''

CHECK = """@HARDWARE.check("odd", "Nothing is odd", "no-gpu-on-bus", needs="")
def _odd(machine: Machine) -> Verdict:
    return found("no-gpu-on-bus", ["made by a test"], severity="warning")


"""

CRITERION = """def _lucky(run: RunEvidence) -> Judgement:
    wanted = run.plan.job.criteria.lucky_digit
    return Judgement("pass" if wanted in run.plan.run_id else "fail", f"wanted {wanted}")


"""

SECTION = '''"""The age of the run's events."""

from seatrial.receipt.section import Criterion, Record, Row, Rows, Section


class AgeRecord(Record):
    lines: int


class Age(Section):
    title = "Age"

    def read(self, run):
        return {"age": AgeRecord(lines=len(run.evidence.moments))}

    def judge(self, run):
        return [Criterion(id="of-age", title="Of age", verdict="pass", evidence="it has events", asked=False)]

    def blocks(self, receipt):
        return [Rows([Row("events", f"{receipt.age.lines} of any age")])]
'''


def test_a_verb_is_its_file_and_a_row(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.add("cli/hello.py", VERB)
    tree.put("cli/verbs.py", '    "hello": ("hello:hello", "", "Say hello."),\n', after="VERBS:")
    project = tree.project()
    assert "Say hello." in project.cli("--help").stdout
    assert project.cli("hello", "--name", "sea").stdout == "hello sea\n"
    assert len(tree.touched) == 2


def test_check_is_one_function_in_the_file_of_its_layer(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.put("doctor/checks/hardware.py", CHECK, before='@HARDWARE.check("peer-path"')
    ended = tree.project().cli("doctor", "--on", "local", "--host-only", "--json", exit_code=None)
    results = {result["id"]: result for result in json.loads(ended.stdout)["checks"]}
    assert results["hardware.odd"]["status"] == "warning"
    assert len(tree.touched) == 1


def test_a_receipt_section_is_its_file_and_a_line(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.add("receipt/sections/age.py", SECTION)
    model = "receipt/model.py"
    tree.put(
        model, "from seatrial.receipt.sections.age import Age, AgeRecord\n", before="from seatrial.receipt.sections."
    )
    tree.put(model, "    Age(),\n", after="SECTIONS:")
    tree.put(model, "    age: AgeRecord | None = None\n", after="    tune: TuneRecord")
    project = tree.project()
    project.write("train.py", "print('ready')\n")
    shown = project.run("train.py", "--gpus", "none", "--verbose").stdout
    assert "\nAge\n" in shown and "[✓] Of age" in shown
    receipt = project.receipt()
    words = f"{receipt['age']['lines']} of any age"
    place = next(project.folder.rglob("receipt.json")).parent
    assert all(words in (place / f"receipt.{kind}").read_text() for kind in ("md", "html")) and words in shown
    assert len(tree.touched) == 2


def test_a_criterion_is_its_option_and_a_row(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.put("job/model.py", '    lucky_digit: str = "2"\n', after="    metrics:")
    tree.put("receipt/sections/criteria.py", CRITERION, before="def as_criterion")
    row = '            ("lucky", "A lucky run", _lucky),\n'
    tree.put("receipt/sections/criteria.py", row, after="        judges: list")
    project = tree.project()
    project.write("train.py", "print('ready')\n")
    project.run("train.py", "--gpus", "none")
    judged = {criterion["id"]: criterion for criterion in project.receipt()["criteria"]}
    assert judged["lucky"]["title"] == "A lucky run" and judged["lucky"]["verdict"] == "pass"
    assert len(tree.touched) == 2


def test_an_option_is_its_row_and_a_field_of_the_job(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    row = '    {"key": "lucky_digit", "names": "--lucky", "help": "A digit.", "metavar": "N", "needs": "container"},\n'
    tree.put("job/flags.json", row, after='  "Container": [')
    field = '    lucky_digit: str | None = Field(default=None, description="A digit.")\n'
    tree.put("job/model.py", field, after="class Requests(KeyTable):")
    project = tree.project()
    project.write("train.py", "print('ready')\n")
    assert "--lucky N" in project.cli("plan", "--help").stdout
    refused = project.cli("plan", "train.py", "--on", "local", "--lucky", "7", exit_code=2).stderr
    assert "--lucky needs a container" in refused.replace("Needs", "needs")
    assert "lucky_digit" in project.cli("init", "--schema").stdout
    assert len(tree.touched) == 2
