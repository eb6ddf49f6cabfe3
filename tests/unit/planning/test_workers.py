"""TensorFlow and JAX scripts on several GPUs and nodes: one process a node, never torchrun."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cluster_plans import a_cluster_plan
from seatrial.agent import target
from seatrial.common.contract.agent_plan import AgentPlan
from seatrial.errors import UsageError
from seatrial.job.model import Job, Target
from seatrial.job.script import ScriptFacts, script_facts
from seatrial.planning.launcher import choose_launcher, instructions, meeting

SCRIPTS = {
    "mirrored": "import tensorflow as tf\nstrategy = tf.distribute.MirroredStrategy()",
    "workers": "import tensorflow as tf\nstrategy = tf.distribute.MultiWorkerMirroredStrategy()",
    "old workers": "import tensorflow as tf\nstrategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()",
    "sharded": "import jax\nfrom jax.sharding import Mesh, NamedSharding\n",
    "sharded by name": "import jax\nmesh = jax.sharding.Mesh(jax.devices(), ('x',))\n",
    "pmap": "import jax\nstep = jax.pmap(lambda x: x)",
    "made mesh": "import jax\nmesh = jax.make_mesh((2,), ('x',))",
    "keras": "import keras\nkeras.distribution.set_distribution(keras.distribution.DataParallel())",
    "jax processes": "import jax\njax.distributed.initialize()\nmesh = jax.make_mesh((2,), ('x',))",
    "plain": "import tensorflow as tf\nprint(tf.constant(1))",
}
JOINS = ("workers", "old workers", "jax processes")


def facts(tmp_path: Path, name: str) -> ScriptFacts:
    (tmp_path / "train.py").write_text(SCRIPTS[name])
    return script_facts(Target(kind="script", value="train.py"), tmp_path)


def job(tmp_path: Path, **keys: object) -> Job:
    return Job(project=tmp_path, target=Target(kind="script", value="train.py"), **keys)


@pytest.mark.parametrize("name", list(SCRIPTS))
def test_two_gpus_are_one_process(tmp_path: Path, name: str) -> None:
    script = facts(tmp_path, name)
    launcher, choice = choose_launcher(job(tmp_path), script, 2)
    assert (launcher, choice.value) == ("none", "none")
    assert (script.multi_gpu_evidence is None) == (name == "plain"), "--gpus auto takes them all where one is used"


@pytest.mark.parametrize("name", list(SCRIPTS))
def test_two_nodes_need_a_script_that_joins_the_other(tmp_path: Path, name: str) -> None:
    requested, script = job(tmp_path, nodes=2, hosts=("a", "b"), node_rank=1), facts(tmp_path, name)
    if name not in JOINS:
        with pytest.raises(UsageError, match="on 2 nodes independently") as refused:
            choose_launcher(requested, script, 1)
        assert "torchrun" not in str(refused.value.run), "the next command must not be torch's"
        return
    launcher, choice = choose_launcher(requested, script, 1)
    assert launcher == "none"
    assert ("JAX_COORDINATOR_ADDRESS" if "jax" in name else "TF_CONFIG") in choice.reason


def test_every_host_is_reported_of_all(tmp_path: Path) -> None:
    placed = meeting(job(tmp_path, nodes=3, hosts=("a", "b", "a"), node_rank=2))
    assert placed.workers == ("a:29400", "b:29400", "a:29401")
    plan = AgentPlan("id", [], "/", "/", nodes=3, node_rank=2, workers=list(placed.workers))
    reported = target.variables(plan)
    assert json.loads(reported["TF_CONFIG"]) == {
        "cluster": {"worker": ["a:29400", "b:29400", "a:29401"]},
        "task": {"type": "worker", "index": 2},
    }
    assert (reported["JAX_COORDINATOR_ADDRESS"], reported["JAX_NUM_PROCESSES"], reported["JAX_PROCESS_ID"]) == (
        "a:29400",
        "3",
        "2",
    )
    assert target.variables(plan._replace(workers=[])) == {}, "under torchrun it is that which tells"


def test_a_pytorchjob_has_names_for_one_alone(tmp_path: Path) -> None:
    project = tmp_path / "p"
    project.mkdir()
    with pytest.raises(UsageError, match="names to its first pod alone") as refused:
        a_cluster_plan(project, script=SCRIPTS["workers"], gpus="1", nodes=2, kubernetes={"kind": "pytorchjob"})
    assert "--kind job" in str(refused.value.run)


def test_what_to_type_is_not_torchruns(tmp_path: Path) -> None:
    requested = job(tmp_path, nodes=2, hosts=("a", "b"))
    words = ["run", "train.py", "--nodes", "a,b"]
    text = instructions(requested, words, facts(tmp_path, "workers"))
    assert "torchrun" not in text and '"task": {"type": "worker", "index": N}' in text
    text = instructions(requested, words, facts(tmp_path, "jax processes"))
    assert "torchrun" not in text and "JAX_COORDINATOR_ADDRESS=a:29400" in text
    assert "torchrun --nnodes 2" in instructions(requested, words, ScriptFacts())
