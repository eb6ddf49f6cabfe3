"""A TF_CONFIG that the user sets: whole, empty, or half."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.errors import UsageError
from seatrial.job.model import Job, Target
from seatrial.job.script import ScriptFacts
from seatrial.planning.launcher import refuse_half_set, what_is_wrong
from seatrial.system.host import Host

CLUSTER = '"cluster": {"worker": ["a:1", "b:1"]}'


@pytest.mark.parametrize(
    "whole",
    [
        "",
        "{}",
        f'{{{CLUSTER}, "task": {{"type": "worker", "index": 1}}}}',
        f'{{{CLUSTER}, "task": {{"type": "worker", "index": "0"}}}}',
        f'{{{CLUSTER}, "task": {{"type": "evaluator", "index": 0}}}}',
        '{"cluster": {"chief": ["a:1"], "worker": {"1": "b:2"}}, "task": {"type": "chief", "index": 0}}',
    ],
)
def test_what_tensorflow_takes(whole: str) -> None:
    assert what_is_wrong(whole) is None


@pytest.mark.parametrize(
    ("half", "words"),
    [
        ("{'cluster': 1}", "it is not JSON"),
        ("[]", "not a JSON object"),
        ('{"task": {"type": "worker", "index": 1}}', "it has no cluster"),
        ('{"cluster": {}, "task": {"type": "worker", "index": 1}}', "it has no cluster"),
        ('{"cluster": {"worker": "a:1"}, "task": {"type": "worker", "index": 0}}', "cluster.worker is not a list"),
        ('{"cluster": {"worker": ["a"]}, "task": {"type": "worker", "index": 0}}', "is not a list of HOST:PORT"),
        ('{"cluster": {"worker": []}, "task": {"type": "worker", "index": 0}}', "is not a list of HOST:PORT"),
        (f"{{{CLUSTER}}}", "it has no task"),
        (f'{{{CLUSTER}, "task": {{"index": 1}}}}', "its task has no type"),
        (f'{{{CLUSTER}, "task": {{"type": "worker"}}}}', "its task has no index"),
        (f'{{{CLUSTER}, "task": {{"type": "chief", "index": 0}}}}', "of type 'chief', and the cluster has worker"),
        (f'{{{CLUSTER}, "task": {{"type": "worker", "index": 2}}}}', "index is 2, and the cluster has 2"),
        (f'{{{CLUSTER}, "task": {{"type": "worker", "index": -1}}}}', "index is -1"),
    ],
)
def test_half_of_it_is_one_sentence_and_the_next_command(half: str, words: str, tmp_path: Path) -> None:
    assert words in str(what_is_wrong(half))
    job = Job(project=tmp_path, target=Target(kind="script", value="t.py"), env={"TF_CONFIG": half})
    with pytest.raises(UsageError, match="TF_CONFIG is half set") as refused:
        refuse_half_set(job, ScriptFacts(framework="tensorflow"), Host({}), inherits=False)
    assert refused.value.run and "--nodes" in refused.value.run
    refuse_half_set(job, ScriptFacts(framework="torch"), Host({}), inherits=False)


def test_it_may_come_from_a_file_or_the_shell(tmp_path: Path) -> None:
    (tmp_path / "env").write_text(f"TF_CONFIG={{{CLUSTER}}}\n")
    script = ScriptFacts(framework="tensorflow")
    job = Job(project=tmp_path, target=Target(kind="script", value="t.py"), env_files=(tmp_path / "env",))
    with pytest.raises(UsageError, match="it has no task"):
        refuse_half_set(job, script, Host({}), inherits=False)
    job = job.model_copy(update={"env_files": ()})
    shell = {"TF_CONFIG": "{]"}
    refuse_half_set(job, script, Host(shell), inherits=False)
    with pytest.raises(UsageError, match="TF_CONFIG of this shell is half set"):
        refuse_half_set(job, script, Host(shell), inherits=True)
