"""The target's variables."""

from seatrial.agent.target import target_environment
from seatrial.common.contract.agent_plan import AgentPlan


def plan(**keys):
    return AgentPlan(run_id="r1", argv=["true"], workdir="/", run_dir="/seatrial/run", **keys)


def test_cpu_runs_see_no_gpu_and_gpu_runs_keep_the_images_own():
    base = {"CUDA_VISIBLE_DEVICES": "all", "PATH": "/bin"}
    assert target_environment(plan(), base, {})["CUDA_VISIBLE_DEVICES"] == ""
    assert target_environment(plan(gpu_mode="auto-cpu"), base, {})["CUDA_VISIBLE_DEVICES"] == ""
    assert target_environment(plan(gpu_mode="required"), base, {})["CUDA_VISIBLE_DEVICES"] == "all"


def test_order_of_precedence_and_what_is_always_there():
    env = target_environment(plan(env={"A": "plan", "B": "plan"}), {"A": "image", "C": "image"}, {"B": "secret"})
    assert (env["A"], env["B"], env["C"]) == ("plan", "secret", "image")
    assert env["SEATRIAL_EVENTS"] == "/seatrial/run/events.jsonl" and env["SEATRIAL_RUN_ID"] == "r1"
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID" and env["PYTHONUNBUFFERED"] == "1"


def test_torchruns_arguments_are_ours_and_not_the_operators():
    """What Kubeflow's operators put into their pods, and torchrun warns of where another rendezvous is used."""
    base = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "run-master-0", "PET_MASTER_PORT": "29500"}
    kept = {"RANK": "1", "MASTER_ADDR": "run-master-0", "PET_LOG_DIR": "/tmp/logs"}
    env = target_environment(plan(launcher="torchrun"), {**base, **kept}, {})
    assert not base.keys() & env.keys() and kept.items() <= env.items()
    env = target_environment(plan(launcher="none"), {**base, **kept}, {})
    assert base.items() <= env.items(), "a script that starts torchrun itself may count on them"
