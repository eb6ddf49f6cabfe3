"""A run without a key or token: trackers are offline, and the plan shows where this machine has one."""

import os
from pathlib import Path

import pytest

from seatrial.images.requirements.project import project_needs
from seatrial.job.gpu_request import GpuRequest
from seatrial.job.keys import Mount
from seatrial.job.model import Job, Target
from seatrial.job.script import ScriptFacts, script_facts
from seatrial.planning.container.env import without_login, without_models, without_variables
from seatrial.planning.secrets import check_secrets
from seatrial.system.host import Host
from seatrial.system.names import names_of

WANDB = ScriptFacts(where={"wandb": "train.py:3"})
HUB = ScriptFacts(where={"transformers": "train.py:1"}, hub_evidence="train.py:2 token=True")
NETRC = "machine github.com login me password other\nmachine api.wandb.ai\n  login user\n  password 0123456789abcdef\n"
TOKEN = "hf_abcdefghijkl"


def job(tmp_path: Path, *secrets: str) -> Job:
    return Job(project=tmp_path, target=Target(kind="script", value="train.py"), secrets=secrets)


@pytest.fixture
def machine(tmp_path: Path) -> Host:
    """A user who has logged in at both."""
    (tmp_path / ".netrc").write_text(NETRC)
    (tmp_path / ".cache/huggingface").mkdir(parents=True)
    (tmp_path / ".cache/huggingface/token").write_text(f"{TOKEN}\n")
    return Host({"HOME": str(tmp_path)})


def test_without_a_key_wandb_is_offline_and_the_plan_shows_it(tmp_path: Path) -> None:
    env, [choice] = without_login(job(tmp_path), WANDB, {}, Host({}))
    assert env == {"WANDB_MODE": "offline"}
    assert choice.reason.startswith("train.py:3 imports wandb, and the run has no key: export WANDB_API_KEY=…, and")


def test_the_plan_names_the_login_of_this_machine(tmp_path: Path, machine: Host) -> None:
    _, [choice] = without_login(job(tmp_path), WANDB, {}, machine)
    assert f"--secret WANDB_API_KEY gives it yours, of {tmp_path}/.netrc" in choice.reason
    _, [hub] = without_login(job(tmp_path), HUB, {}, machine)
    assert hub.reason.startswith(
        "train.py:2 token=True takes one, and the run has none: --secret HF_TOKEN gives it yours"
    )
    assert hub.reason.endswith("/.cache/huggingface/token")
    assert TOKEN not in hub.reason and "0123456789abcdef" not in choice.reason


@pytest.mark.parametrize(
    ("name", "value"), [("WANDB_API_KEY", "0123456789abcdef"), ("HF_TOKEN", TOKEN)], ids=["netrc", "token file"]
)
def test_a_login_of_this_machine_is_a_secret_by_its_variables_name(
    tmp_path: Path, machine: Host, name: str, value: str
) -> None:
    check_secrets(job(tmp_path, name), machine)
    assert machine.secret(name) == value
    assert Host({**machine.env, name: "from the environment"}).secret(name) == "from the environment"
    assert value in names_of(machine, secrets=[name]).secrets and value not in names_of(machine).secrets


@pytest.mark.parametrize(
    "text",
    ["machine api.wandb.ai login", "machine github.com login me password x", "# machine api.wandb.ai password x", "\0"],
)
def test_a_file_without_the_login_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / ".netrc").write_text(text)
    assert Host({"HOME": str(tmp_path)}).secret("WANDB_API_KEY") == ""


def test_a_login_of_a_server_whose_address_is_no_url_is_none(machine: Host) -> None:
    assert Host({**machine.env, "WANDB_BASE_URL": "http://[x"}).secret("WANDB_API_KEY") == ""


def test_a_pipe_in_place_of_a_login_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".netrc")
    os.mkfifo(tmp_path / "token")
    machine = Host({"HOME": str(tmp_path), "HF_TOKEN_PATH": str(tmp_path / "token")})
    assert machine.secret("WANDB_API_KEY") == machine.secret("HF_TOKEN") == ""


@pytest.mark.parametrize("name", ["WANDB_API_KEY", "WANDB_MODE"])
def test_a_mode_or_key_of_the_users_is_left_alone(tmp_path: Path, machine: Host, name: str) -> None:
    assert without_login(job(tmp_path), WANDB, {name: "x"}, machine) == ({}, [])
    assert without_login(job(tmp_path, "WANDB_API_KEY", "HF_TOKEN"), HUB, {}, machine) == ({}, [])


@pytest.mark.parametrize(("client", "folder"), [("google.cloud.storage", ".config/gcloud"), ("remote.s3", ".aws")])
def test_a_store_without_a_login_is_named_with_the_mount_that_gives_one(
    tmp_path: Path, client: str, folder: str
) -> None:
    script = ScriptFacts(modules={client: "train.py:1"})
    _, [choice] = without_login(job(tmp_path), script, {}, Host({}))
    assert f"--mount ~/{folder}:/home/seatrial/{folder}" in choice.reason
    given = {"GOOGLE_APPLICATION_CREDENTIALS": "/k.json", "AWS_PROFILE": "me"}
    mounted = job(tmp_path).changed(mounts=(Mount(source=tmp_path, target=f"/home/seatrial/{folder}"),))
    assert without_login(job(tmp_path), script, given, Host({})) == without_login(mounted, script, {}, Host({}))


def test_a_program_that_wants_a_login_is_named_as_one_that_runs(tmp_path: Path) -> None:
    script = ScriptFacts(modules={"subprocess.aws": "fetch.py:7"})
    _, [choice] = without_login(job(tmp_path), script, {}, Host({}))
    assert (choice.what, choice.reason[:36]) == ("AWS", "fetch.py:7 runs aws, and the run has")


def test_a_script_without_trackers_gets_no_variable(tmp_path: Path) -> None:
    assert without_login(job(tmp_path), ScriptFacts(), {}, Host({})) == ({}, [])


@pytest.mark.parametrize(
    "line",
    [
        "m = transformers.AutoModel.from_pretrained('x', token=True)",
        "m = transformers.AutoModel.from_pretrained('x', use_auth_token=True)",
        "from huggingface_hub import login",
        "token = os.environ.get('HF_TOKEN')",
        "m = transformers.AutoModel.from_pretrained('meta-llama/Llama-2-7b-hf')",
    ],
)
def test_what_takes_a_token_is_found_in_the_code(tmp_path: Path, line: str) -> None:
    (tmp_path / "train.py").write_text(f"import os, transformers\n{line}\n")
    found = script_facts(Target(kind="script", value="train.py"), tmp_path)
    assert found.hub_evidence is not None and found.hub_evidence.startswith("train.py:2 ")


def test_a_typed_model_that_needs_a_login_is_named(tmp_path: Path) -> None:
    typed = job(tmp_path).changed(
        target=Target(kind="script", value="train.py", args=("--model=google/gemma-3-4b-it",))
    )
    open_to_all = job(tmp_path).changed(target=Target(kind="script", value="train.py", args=("--model", "gpt2")))
    hub = ScriptFacts(where={"transformers": "train.py:1"})
    [[choice], none] = [without_login(each, hub, {}, Host({}))[1] for each in (typed, open_to_all)]
    assert choice.reason.startswith("google/gemma-3-4b-it takes one, and the run has none: export HF_TOKEN")
    assert none == []


@pytest.mark.parametrize(("locked", "offline"), [("wandb==0.17.0", True), ("six==1.0", False), ("", True)])
def test_wandb_is_named_where_the_image_may_have_it(tmp_path: Path, locked: str, offline: bool) -> None:
    texts = {"packages/requirements.txt": f"torch\n{locked} --hash=sha256:0\n" if locked else "torch\n"}
    env, choices = without_login(job(tmp_path), WANDB, {}, Host({}), texts)
    assert (env == {"WANDB_MODE": "offline"}) == bool(choices) == offline


@pytest.mark.parametrize(
    ("line", "variables", "words"),
    [
        ("import clearml", {"CLEARML_OFFLINE_MODE": "1"}, "--mount ~/clearml.conf:/home/seatrial/clearml.conf"),
        ("import comet_ml", {"COMET_AUTO_LOG_DISABLE": "1"}, "export COMET_API_KEY=…, and --secret COMET_API_KEY"),
        ("import neptune", {"NEPTUNE_MODE": "offline"}, "later: neptune sync"),
        ("import swanlab", {"SWANLAB_MODE": "offline"}, "--secret SWANLAB_API_KEY"),
        (
            "from lightning.pytorch.loggers import WandbLogger",
            {"WANDB_MODE": "offline"},
            "WandbLogger, and the run has",
        ),
        (
            "import wandb\nx = Run().use_artifact('d:v0')",
            {"WANDB_MODE": "offline"},
            "train.py:2 use_artifact fails offline",
        ),
        ("import wandb\napi = wandb.Api()", {"WANDB_MODE": "offline"}, "imports wandb, train.py:2 wandb.Api fails"),
        ("import wandb, os\nif os.name:\n    wandb.restore('a')", {"WANDB_MODE": "offline"}, "3 wandb.restore fails"),
        ("import kaggle", {}, "imports kaggle, and the run has no login"),
        ("from PyQt6.QtWidgets import QApplication", {"QT_QPA_PLATFORM": "offscreen"}, "no display"),
        ("import pygame", {"SDL_VIDEODRIVER": "dummy"}, "imports pygame, and the run has no display"),
        ("import mujoco\nmujoco.Renderer(m)", {}, "train.py:2 mujoco.Renderer draws with MuJoCo, and the run has no"),
        ("import mujoco\nenv.render(m)", {}, "-e MUJOCO_GL=egl --gpus capabilities=compute,utility,graphics draws"),
        ("import mujoco\nmujoco.MjModel(m)", None, ""),
        (
            "from mujoco_playground import registry",
            {},
            "clones its models with git into its own folder, and the run has",
        ),
        ("import matplotlib\nmatplotlib.use('TkAgg')", {}, "train.py:2 matplotlib.use needs one"),
        ("import cv2\ncv2.imshow('a', b)", {}, "train.py:2 cv2.imshow needs one"),
        ("import wandb\nwandb.login(key='0123456789')", None, ""),
        ("import wandb, os\nos.environ['WANDB_MODE'] = 'disabled'", None, ""),
        (
            "import wandb, os\nif os.name:\n    os.environ['WANDB_MODE'] = 'disabled'",
            {"WANDB_MODE": "offline"},
            "no key",
        ),
        ("import comet_ml\ncomet_ml.Experiment(api_key='0123456789')", None, ""),
        ("import comet_ml\ncomet_ml.Experiment(api_key='YOUR_API_KEY')", {"COMET_AUTO_LOG_DISABLE": "1"}, "no key"),
        ("import matplotlib\nmatplotlib.use('Agg')", None, ""),
        ("import cv2\ndef show(b):\n    cv2.imshow('a', b)", None, ""),
    ],
)
def test_what_a_container_lacks_is_read_from_the_code(
    tmp_path: Path, line: str, variables: dict[str, str] | None, words: str
) -> None:
    (tmp_path / "train.py").write_text(f"{line}\n")
    script = script_facts(Target(kind="script", value="train.py"), tmp_path)
    env, choices = without_login(job(tmp_path), script, {}, Host({}))
    assert env == (variables or {}) and len(choices) == (variables is not None)
    assert all(words in each.reason for each in choices)


def test_a_pod_is_offered_no_folder_of_this_machine(tmp_path: Path) -> None:
    script = ScriptFacts(where={"PyQt6": "train.py:1", "clearml": "train.py:2", "cv2.imshow": "train.py:3"})
    for backend, mounts in ("docker", 3), ("k8s", 0):
        env, choices = without_login(job(tmp_path).changed(backend=backend), script, {}, Host({}))
        assert env == {"QT_QPA_PLATFORM": "offscreen", "CLEARML_OFFLINE_MODE": "1"}
        assert sum("--mount" in each.reason for each in choices) == mounts and len(choices) == 3


@pytest.mark.parametrize(
    ("pins", "words"),
    [
        ("wandb==0.31.0\ntransformers==4.57.0", ["transformers.Trainer, which reports to it by default"]),
        ("kaggle==1.6.0\ntransformers==4.57.0", []),
        ("wandb==0.31.0\ntransformers==5.1.0", []),
        ("", []),
    ],
)
def test_a_trainer_reports_to_the_trackers_in_its_image(tmp_path: Path, pins: str, words: list[str]) -> None:
    script = ScriptFacts(modules={"transformers.Trainer": "train.py:1"})
    _, choices = without_login(job(tmp_path), script, {}, Host({}), {"requirements.txt": pins})
    assert [each.reason.partition(" imports ")[2].partition(", and")[0] for each in choices] == words


@pytest.mark.parametrize(
    ("text", "args", "where"),
    [
        ('{\n  "report_to": ["tensorboard", "wandb"]\n}\n', ("c.json",), "c.json:2"),
        ("lr: 1\nreport_to:\n  - wandb\n", ("c.yaml",), "c.yaml:2"),
        (
            "import accelerate\naccelerate.Accelerator(log_with='wandb')\n",
            ("train.py",),
            "train.py:2 accelerate.Accelerator(…)",
        ),
        ("", ("--report_to", "tensorboard", "wandb"), "--report_to"),
        ("report_to: wandb\n", ("c.yaml", "--report_to", "none"), None),
        ("# report_to: wandb\nlr: 1  # no report_to: wandb\n", ("c.yaml",), None),
    ],
)
def test_a_tracker_that_the_configuration_names_is_offline_without_a_key(
    tmp_path: Path, text: str, args: tuple[str, ...], where: str | None
) -> None:
    (tmp_path / "train.py").write_text("import transformers\n")
    (tmp_path / args[0]).write_text(text)
    script = script_facts(Target(kind="script", value="train.py", args=args), tmp_path)
    env, choices = without_login(job(tmp_path), script, {}, Host({}))
    assert env == ({"WANDB_MODE": "offline"} if where else {})
    assert [each.reason.partition(", and")[0] for each in choices] == [f"{where} reports to it"] * bool(where)
    needs = project_needs(tmp_path, script, tmp_path)  # whose names have to be in the package
    assert not [each for each in needs.names if "report_to" in each]
    assert ("wandb" in needs.requirements.lines) is bool(where)


def test_an_offline_script_without_its_model_is_warned_of_with_the_next_command(tmp_path: Path) -> None:
    lines = 'import os, transformers\nos.environ.setdefault("HF_HUB_OFFLINE", "1")\n'
    (tmp_path / "train.py").write_text(f"{lines}transformers.AutoModel.from_pretrained('me/net')\n")
    script = script_facts(Target(kind="script", value="train.py"), tmp_path)
    cache, own = tmp_path / "cache", tmp_path / "own"
    mounts, env = [Mount(source=cache, target="/c")], {"HF_HOME": "/c/huggingface"}

    def warnings(**given: str) -> list[str]:
        return list(without_models(script, {**env, **given}, mounts, Host({"HF_HOME": str(own)})))

    [warning] = warnings()
    assert warning.startswith("train.py:2 forbids downloads, and the run's cache lacks me/net (train.py:3); ")
    assert warning.endswith(f"HF_HOME={cache}/huggingface hf download me/net")
    (own / "hub/models--me--net").mkdir(parents=True)
    assert warnings()[0].endswith(f"--mount {own}:/c/huggingface")
    assert warnings(HF_HUB_CACHE="/elsewhere") == []
    (cache / "huggingface/hub/models--me--net").mkdir(parents=True)
    assert warnings() == []


def test_a_variable_of_this_machine_that_the_script_reads_is_named_unless_it_is_passed(tmp_path: Path) -> None:
    lines = 'import os\nSTEPS = os.environ.get("STEPS", 40)\nKEY = os.getenv("MY_API_KEY")\nHOME = os.environ["HOME"]\n'
    (tmp_path / "train.py").write_text(f'{lines}os.environ["OUT"] = "out"\nprint(os.environ["OUT"])\n')
    script = script_facts(Target(kind="script", value="train.py"), tmp_path)
    host = Host(dict.fromkeys(("STEPS", "MY_API_KEY", "HOME", "OUT", "OTHER"), "1"))
    [warning] = without_variables(job(tmp_path), script, {}, host)
    assert warning.startswith("the target reads STEPS (train.py:2), MY_API_KEY (train.py:3), set on this machine but")
    assert "-e STEPS --secret MY_API_KEY" in warning and "OUT" not in warning and "HOME" not in warning
    assert not [*without_variables(job(tmp_path, "MY_API_KEY"), script, {"STEPS": "1"}, host)]


def test_a_variable_that_every_run_needs_and_nothing_sets_is_named(tmp_path: Path) -> None:
    lines = [
        "import os, helper",
        "ROOT = os.environ['DATA_ROOT']",
        "RANK, ME = int(os.environ['RANK']), os.environ['USER']",
        "A = os.environ['A'] if 'A' in os.environ else 1",
        "try:\n    B = os.environ['B']\nexcept KeyError:\n    B = 1",
        "C, D, E = os.environ['C'], os.environ.get('D'), os.environ['E']",
        "def never():\n    return os.environ['F']",
        "print(int(os.environ['SLURM_PROCID']))",
    ]
    (tmp_path / "train.py").write_text("\n".join(lines))
    (tmp_path / "helper.py").write_text("import os\nos.environ.setdefault('C', '1')\nos.environ['E'] = '2'\n")
    script = script_facts(Target(kind="script", value="train.py"), tmp_path)
    found = sorted(without_variables(job(tmp_path), script, {}, Host({})))
    assert [each.partition(" needs the variable ")[2].partition(",")[0] for each in found] == [
        "SLURM_PROCID",
        "DATA_ROOT",
    ]
    assert found[0].endswith("not set: srun sets it for each rank; torchrun sets RANK and WORLD_SIZE")
    assert found[1] == "train.py:2 needs the variable DATA_ROOT, which is not set: -e DATA_ROOT=VALUE"
    set_there = {"DATA_ROOT": "/d", "SLURM_PROCID": "0"}
    assert not [*without_variables(job(tmp_path), script, set_there, Host({}))]
    sets = ("from dotenv import load_dotenv\nload_dotenv('.env')\n", "import os\nos.environ[f'{x}_ROOT'] = y\n")
    for code in (*sets, "import rootutils\nrootutils.setup_root(__file__, dotenv=True)\n"):
        (tmp_path / "helper.py").write_text(code)
        script = script_facts(Target(kind="script", value="train.py"), tmp_path)
        assert not [*without_variables(job(tmp_path), script, {}, Host({}))], code


@pytest.mark.parametrize(
    ("code", "needed"),
    [
        ("ROOT = os.environ.get('ROOT_DIR')\nif ROOT is None or not ROOT:\n    raise ValueError('no root')\n", True),
        ("def of(name):\n    path = os.getenv(name)\n    assert path is not None\nof('ROOT_DIR')\n", True),
        ("assert len(sys.argv) == 1 and os.getenv('ROOT_DIR')\n", True),
        ("if 'ROOT_DIR' not in os.environ:\n    sys.exit('no root')\n", True),
        ("if os.getenv('ROOT_DIR', 'data') is None:\n    raise ValueError('no root')\n", False),
        ("assert not os.getenv('ROOT_DIR')\n", False),
        ("C = {'root': os.getenv('ROOT_DIR')}\nprint(C['root'])\n", False),
        ("if os.getenv('ROOT_DIR') is None and len(sys.argv) < 2:\n    sys.exit('no root')\n", False),
        ("if os.getenv('ROOT_DIR') is None:\n    print('no root')\n", False),
        ("ROOT = os.getenv('ROOT_DIR')\nopen(os.path.join(ROOT, 'a'))\n", True),
        ("os.path.join(os.environ.get('ROOT_DIR', '.'), 'a')\n", False),
        ("ROOT = os.getenv('ROOT_DIR')\nif ROOT:\n    os.path.join(ROOT, 'a')\n", False),
        ("os.listdir(os.getenv('ROOT_DIR'))\n", False),
        ("threading.Thread().join(os.getenv('ROOT_DIR'))\n", False),
        ("class Client:\n    def open(self, key): ...\nClient().open(os.getenv('ROOT_DIR'))\n", False),
        ("open('a', 'w', 1, os.getenv('ROOT_DIR'))\n", False),
        ("def f():\n    int(os.getenv('ROOT_DIR'))\ntry:\n    f()\nexcept TypeError:\n    pass\n", False),
        ("for x in ['ROOT_DIR']:\n    os.environ.setdefault(x, '1')\nint(os.getenv('ROOT_DIR'))\n", False),
        ("from dotenv import load_dotenv\nload_dotenv(override=True)\nint(os.getenv('ROOT_DIR'))\n", True),
        ("from dotenv import load_dotenv\nload_dotenv()\nint(os.getenv('SET_DIR'))\n", False),
        ("import dotenv\ndotenv.load_dotenv('conf/.env')\nint(os.getenv('ROOT_DIR'))\n", False),
    ],
)
def test_a_variable_without_which_a_check_of_every_run_fails_is_named(tmp_path: Path, code: str, needed: bool) -> None:
    (tmp_path / "train.py").write_text(f"import os, sys\n{code}")
    (tmp_path / ".env").write_text("SET_DIR=data\n")
    script = script_facts(Target(kind="script", value="train.py"), tmp_path)
    found = [*without_variables(job(tmp_path), script, {}, Host({}))]
    assert [" needs the variable ROOT_DIR, which is not set: -e ROOT_DIR=VALUE" in each for each in found] == [
        True
    ] * needed


def test_a_needed_variable_with_a_secret_is_passed_without_its_value_and_one_of_no_name_is_none(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os\nkey = os.environ['MY_API_KEY']\nos.environ['A(B'], os.environ['']\n")
    script = script_facts(Target(kind="script", value="train.py"), tmp_path)
    found = [*without_variables(job(tmp_path), script, {}, Host({}))]
    assert found == ["train.py:2 needs the variable MY_API_KEY, which is not set: --secret MY_API_KEY"]


def test_a_variable_of_this_machine_that_an_imported_library_reads_is_named_with_the_library(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch, wandb\n")
    script = script_facts(Target(kind="script", value="train.py"), tmp_path)
    host = Host(dict.fromkeys(("WANDB_TAGS", "NCCL_DEBUG", "NCCL_VERSION", "KERAS_BACKEND", "WANDB_DIR"), "1"))
    [warning] = without_variables(job(tmp_path), script, {"NCCL_DEBUG": "1"}, host)
    assert warning.startswith("the target reads WANDB_TAGS (wandb), set on this machine") and warning.endswith("TAGS")


def test_several_gpus_that_the_shell_lists_are_named_unless_the_run_asks_for_some(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    script = script_facts(Target(kind="script", value="train.py"), tmp_path)
    host, two = Host({"CUDA_VISIBLE_DEVICES": "1,3"}), GpuRequest.parse("2")
    [warning] = without_variables(job(tmp_path), script, {}, host)
    assert warning.endswith("--gpus device=1,3")
    assert not [*without_variables(job(tmp_path).changed(gpus=two), script, {}, host)]
    assert not [*without_variables(job(tmp_path), script, {}, Host({"CUDA_VISIBLE_DEVICES": "1"}))]


@pytest.mark.parametrize(
    ("code", "args", "value", "words"),
    [
        (
            "wandb.init(mode='online')",
            "",
            "stops without a key",
            "train.py:4 sets its mode; in online mode, a run without",
        ),
        (
            "wandb.init(mode='online' if a.log else 'disabled')",
            "--log",
            "stops without a key",
            "--secret WANDB_API_KEY",
        ),
        ("wandb.init(mode='online' if a.log else 'disabled')", "", "disabled", "train.py:4 runs it disabled"),
        (
            "wandb.init(mode=os.environ.get('WANDB_MODE', 'online'))",
            "",
            "offline, in ./wandb",
            "4 runs it offline; lat",
        ),
        (
            "wandb.init(mode=unknown(), dir=os.sep + unknown())",
            "",
            "by its mode",
            "4 sets its mode; in online mode",
        ),
        ("wandb.init(dir='out')", "", "offline, in out/wandb", "no key: export WANDB_API_KEY=…, and --secret"),
        ("wandb.init(dir='out')", "", "offline, in out/wandb", "later: wandb sync out/wandb/offline-run-*"),
        ("wandb.init(dir='a b')", "", "offline, in a b/wandb", r"later: wandb sync a\ b/wandb/offline-run-*"),
        ("wandb.init(dir=unknown())", "", "offline, in …/wandb", "--secret WANDB_API_KEY"),
        ("wandb.init(mode=None)", "", "offline, in ./wandb", "imports wandb"),
        ("wandb.login()", "", "offline, in ./wandb", "imports wandb"),
        ("loggers.WandbLogger(offline=True, save_dir='logs')", "", "offline, in logs/wandb", "4 runs it offline"),
        ("loggers.WandbLogger(offline=a.log)", "", "offline, in ./wandb", "imports wandb"),
        ("if a.log:\n    wandb.init(mode='online')", "", "offline, in ./wandb", "imports wandb"),
    ],
)
def test_a_mode_or_folder_that_code_gives_goes_before_the_variable(
    tmp_path: Path, code: str, args: str, value: str, words: str
) -> None:
    options = "p = argparse.ArgumentParser(); p.add_argument('--log', action='store_true'); a = p.parse_args()"
    imports = "import argparse, os, wandb\nfrom lightning.pytorch import loggers"
    (tmp_path / "train.py").write_text(f"{imports}\n{options}\n{code}\n")
    script = script_facts(Target(kind="script", value="train.py", args=tuple(args.split())), tmp_path)
    env, [choice] = without_login(job(tmp_path), script, {}, Host({}))
    assert env == {"WANDB_MODE": "offline"}
    assert choice.value == value and words in choice.reason


def test_an_offline_variable_does_not_hide_a_mode_that_needs_a_key(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import wandb\nwandb.init(mode='online')\n")
    script = script_facts(Target(kind="script", value="train.py"), tmp_path)
    _, [choice] = without_login(job(tmp_path), script, {"WANDB_MODE": "offline"}, Host({}))
    assert choice.value == "stops without a key"
    assert without_login(job(tmp_path, "WANDB_API_KEY"), script, {}, Host({})) == ({}, [])


@pytest.mark.parametrize(
    ("pins", "driver"),
    [
        ("gym==0.22.0\npygame==2.1.2", True),
        ("gym==1\npygame-ce==2.5.7", True),
        ("gym==1", False),
        ("pygame-x==1", False),
    ],
)
def test_environments_draw_nowhere_where_the_image_has_pygame(tmp_path: Path, pins: str, driver: bool) -> None:
    script = ScriptFacts(where={"gym": "train.py:1"})
    env, choices = without_login(job(tmp_path), script, {}, Host({}), {"requirements.txt": pins})
    assert env == ({"SDL_VIDEODRIVER": "dummy"} if driver else {}) and len(choices) == driver
    assert without_login(job(tmp_path), script, {"SDL_VIDEODRIVER": "x11"}, Host({}), {"r": pins}) == ({}, [])


@pytest.mark.parametrize(
    ("code", "address"),
    [
        (
            "from pymongo import MongoClient\nMongoClient(os.getenv('DB', 'mongodb://me:pw@localhost:27017/a'))",
            "localhost:27017",
        ),
        ("import redis\nredis.Redis(host='127.0.0.1', port=6379)", "127.0.0.1"),
        ("import redis\nredis.Redis()", "localhost"),
        ("import mlflow\nif sys.argv[1:]:\n    mlflow.set_tracking_uri('http://localhost:5000')", ""),
        ("import sqlalchemy\ndef unused():\n    sqlalchemy.create_engine('mysql://localhost/a')", ""),
        ("import sqlalchemy\nsqlalchemy.create_engine('sqlite:///localhost.db')", ""),
        ("import redis\nredis.Redis(host='localhost.example.org')", ""),
        ("from settings import Own\nimport pymongo\npymongo.MongoClient(Own().uri)", "localhost:1"),
        ("import redis, subprocess\nsubprocess.Popen(['redis-server'])\nredis.Redis()", ""),
        ("import mlflow\nos.system('mlflow server &')\nmlflow.set_tracking_uri('http://localhost:5000')", ""),
    ],
)
def test_a_service_of_this_machine_is_not_in_the_container(tmp_path: Path, code: str, address: str) -> None:
    settings = (
        "from pydantic_settings import BaseSettings\nclass Own(BaseSettings):\n    uri: str = 'mongodb://localhost:1'\n"
    )
    (tmp_path / "settings.py").write_text(settings)
    (tmp_path / "train.py").write_text(f"import os, sys\n{code}\n")
    script = script_facts(Target(kind="script", value="train.py"), tmp_path)
    found = [*without_variables(job(tmp_path), script, {}, Host({}))]
    words = f" connects to {address}, the container itself, not the host: use --network host or the service's address"
    assert [each.partition(" connects")[1:] for each in found] == [tuple(words.partition(" connects")[1:])] * bool(
        address
    )
    for change in ({"network": "host"}, {"network": "container:db"}, {"env": {"DB": "mongodb://db:1"}}):
        assert not [*without_variables(job(tmp_path).changed(**change), script, {}, Host({}))]
    (tmp_path / ".env").touch()
    script = script_facts(Target(kind="script", value="train.py"), tmp_path)
    assert bool([*without_variables(job(tmp_path), script, {}, Host({}))]) == ("import redis" in code and bool(address))
