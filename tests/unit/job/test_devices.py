"""The device that a script chooses with its arguments, and the inputs that it reads and does not have."""

from __future__ import annotations

from pathlib import Path
from time import process_time

import pytest

from seatrial.job.host_paths import missing_folders, missing_inputs, mlflow_paths, not_found
from seatrial.job.model import Job, Target
from seatrial.job.reading.devices import verdicts
from seatrial.job.script import script_facts
from tables import cases

HEAD = "import argparse, os, yaml\nimport torch\np = argparse.ArgumentParser()\n"
_A = "p.add_argument('--a', default='z'); a = p.parse_args()"


def target_of(folder: Path, source: str, *args: str) -> Target:
    (folder / "train.py").write_text(HEAD + source)
    return Target(kind="script", value="train.py", args=args)


def found(folder: Path, source: str, *args: str, gpus: int = 1) -> list[str]:
    facts = script_facts(target_of(folder, source, *args), folder)
    return [f"{'!' * each.refused}{each.words} | {each.change}" for each in verdicts(facts.devices, gpus)]


@cases("source", "words", "change")
def test_a_run_on_the_cpu_is_certain(tmp_path: Path, source: str, words: str, change: str) -> None:
    (tmp_path / "c.yaml").write_text("model:\n  device: cpu  # or cuda\n")
    first = next(iter(found(tmp_path, source)))
    assert first.startswith("!") and words in first and first.endswith(change)


@cases("source", "words", "args")
def test_a_gpu_that_may_be_missing_is_warned_of(
    tmp_path: Path, source: str, words: str, args: tuple[str, ...] | None
) -> None:
    first = next(iter(found(tmp_path, source, *(args or ()))))
    assert not first.startswith("!") and words in first


@pytest.mark.parametrize("accelerator", ["gpu", "cpu", "tpu"])
@pytest.mark.parametrize(
    "line",
    [
        "lightning.Trainer(max_epochs=1, **c['trainer'])",
        "lightning.Trainer(devices=c['trainer']['devices'], accelerator=c['trainer']['accelerator'])",
        "def fit(t):\n    lightning.Trainer(**t)\nfit(c['trainer'])",
        "from hydra.utils import instantiate\ninstantiate(c['trainer'])",
        "from lightning.pytorch.cli import LightningCLI\nLightningCLI()",
    ],
)
def test_a_trainers_settings_in_a_file_count(tmp_path: Path, line: str, accelerator: str) -> None:
    (tmp_path / "c.yaml").write_text(f"trainer:\n  accelerator: {accelerator}\n  devices: 2\n")
    [words] = found(tmp_path, f"import lightning\nc = yaml.safe_load(open('c.yaml'))\n{line}\n")
    first = {
        "gpu": "c.yaml:3 devices=2 asks for 2 GPUs, but",
        "cpu": "!the script runs on the CPU: c.yaml:2 sets accelerator to cpu",
        "tpu": "uses tpu, Google's: the run has NVIDIA's alone",
    }[accelerator]
    assert first in words and (accelerator == "tpu" or words.startswith(first))


@cases("source", "words")
def test_a_device_of_another_maker_is_named(tmp_path: Path, source: str, words: str) -> None:
    assert words in next(iter(found(tmp_path, source)))


@cases("args", "words", "everywhere")
def test_options_that_name_gpus_are_compared_with_the_run(
    tmp_path: Path, args: tuple[str, ...], words: str, everywhere: bool | None
) -> None:
    given = found(tmp_path, "net.cuda()\n", *args)
    assert words in given[0] if words else not given
    assert bool(found(tmp_path, "net.cuda()\n", *args, gpus=4)) is bool(everywhere)


@cases("text", "words", "args")
def test_gpus_of_a_trainer_in_a_configuration_are_compared_with_the_run(
    tmp_path: Path, text: str, words: str | None, args: tuple[str, ...] | None
) -> None:
    (tmp_path / "c.yaml").write_text(text)
    source = "from lightning.pytorch.cli import LightningCLI\nLightningCLI(Net)\n"
    said = found(tmp_path, source, "fit", "-c", "c.yaml", *(args or ()))
    assert [words in each for each in said] == [True] if words else not said


@pytest.mark.parametrize("devices", ["devices=1", "devices=1, **c['trainer']"])
def test_gpus_that_the_code_sets_are_not_those_of_a_file(tmp_path: Path, devices: str) -> None:
    (tmp_path / "c.yaml").write_text("trainer:\n  devices: 4\n")
    assert not found(tmp_path, f"import lightning\nc = yaml.safe_load(open('c.yaml'))\nlightning.Trainer({devices})\n")


@pytest.mark.parametrize(("ids", "words"), [("[0, 1]", "device_ids=[0,1] names GPU 1, but the run"), ("[0]", "")])
def test_gpus_in_a_configuration_that_become_an_argument_are_compared_with_the_run(
    tmp_path: Path, ids: str, words: str
) -> None:
    (tmp_path / "hyps.yaml").write_text(f"epochs: 2\ndevice_ids: {ids}\n")
    source = "p.add_argument('--hyps')\na = p.parse_args()\nh = yaml.safe_load(open(a.hyps))\n"
    source += (
        "def fit(device_ids):\n    torch.nn.DataParallel(net.cuda(), device_ids=device_ids)\nfit(h['device_ids'])\n"
    )
    said = found(tmp_path, source, "--hyps", "hyps.yaml")
    assert [words in each for each in said] == [True] * bool(words)


@cases("source", "args")
def test_a_run_on_the_gpu_is_left_alone(tmp_path: Path, source: str, args: tuple[str, ...] | None) -> None:
    (tmp_path / "c.yaml").write_text("device: auto\n")
    (tmp_path / "zero.json").write_text('{"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}')
    assert found(tmp_path, source, *(args or ())) == []


@pytest.mark.parametrize("reader", ["jax", "torch", ""])
def test_gpus_are_hidden_from_tensorflow_unless_it_only_reads_data(tmp_path: Path, reader: str) -> None:
    lines = f"import {reader or 'numpy'}, tensorflow as tf\ntf.config.set_visible_devices([], 'GPU')\n"
    (tmp_path / "train.py").write_text(lines)
    facts = script_facts(Target(kind="script", value="train.py"), tmp_path)
    hidden = [each.words for each in verdicts(facts.devices, 1) if "hides every GPU" in each.words]
    wanted = "train.py:2 calls set_visible_devices([]), which hides every GPU: the run has 1 GPU, numbered from 0"
    assert hidden == ([] if reader else [wanted])


def test_an_option_of_a_program_that_is_only_imported_keeps_nothing_on_the_cpu(tmp_path: Path) -> None:
    other = "import click\n@click.command()\n@click.option('--use-cuda', type=bool)\ndef main(use_cuda):\n"
    other += "    if use_cuda and torch.cuda.is_available():\n        net.cuda()\n"
    (tmp_path / "cli.py").write_text(f"import torch\n{other}")
    assert found(tmp_path, "import cli\nnet.fit()") == []
    [own] = found(tmp_path, other)
    assert "--use-cuda is None by default (train.py:6)" in own


@pytest.mark.parametrize(
    ("default", "choice"),
    [("None", "device or 'cuda'"), ("''", "device if len(device) > 0 else 'cuda'")],
)
def test_an_unset_device_that_means_the_gpu_is_not_warned_of(tmp_path: Path, default: str, choice: str) -> None:
    source = f"class Net:\n    def __init__(self, device):\n        self.device = {choice}\n"
    source += "        net.to(self.device)\n"
    source += f"p.add_argument('--device', default={default})\nargs = p.parse_args()\nNet(device=args.device)\n"
    assert found(tmp_path, source) == []
    assert "on the CPU" in found(tmp_path, source.replace("'cuda'", "'cpu'"))[0]


def test_more_gpus_make_numbers_valid(tmp_path: Path) -> None:
    source = 'os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"\ntorch.zeros(1).to("cuda:1")\n'
    assert found(tmp_path, source, gpus=2) == []
    assert "sees 2" in found(tmp_path, source, gpus=4)[0]
    assert 'to "0,1", but the run has 1 GPU' in found(tmp_path, source)[0]


@pytest.mark.parametrize(
    ("shown", "machine", "words"),
    [("5", 1, "hides every GPU: the machine has 1"), ("5", 8, ""), ("", 8, "hides"), ("0", 8, "")],
)
def test_without_a_container_a_variable_counts_the_gpus_of_the_machine(
    tmp_path: Path, shown: str, machine: int, words: str
) -> None:
    target = target_of(tmp_path, f"os.environ['CUDA_VISIBLE_DEVICES'] = '{shown}'\nnet.to('cuda:2')\n")
    given = [each.words for each in verdicts(script_facts(target, tmp_path).devices, 1, machine)]
    assert words in given[0] if words else not given


@cases("source", "only")
def test_an_option_is_read_however_a_library_declares_it(tmp_path: Path, source: str, only: str | None) -> None:
    for args, path in (((), "d/x.json"), (("--data", "d/other.json"), "d/other.json")):
        target = target_of(tmp_path, source, *args)
        found = [*missing_inputs(Job(project=tmp_path, target=target), script_facts(target, tmp_path).reads)]
        assert [path in each for each in found] == ([] if only and not args else [True])


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("mlflow.log_model(m, 'm')", ["mlruns/0"]),
        ("mlflow.set_experiment('cifar')\nmlflow.autolog()", ["mlruns/1"]),
        ("mlflow.set_experiment('new')\nmlflow.autolog()", []),
        ("mlflow.log_metric('x', 1)", []),
        ("mlflow.set_tracking_uri('http://x')\nmlflow.autolog()", []),
    ],
)
def test_an_experiment_of_another_machine_is_named_where_the_code_uses_it(
    tmp_path: Path, code: str, names: list[str]
) -> None:
    for number, place, name in (("0", "/home/nobody/mlruns/0", "Default"), ("1", "/C:/Users/n/mlruns/1", "cifar")):
        (tmp_path / "mlruns" / number).mkdir(parents=True)
        (tmp_path / "mlruns" / number / "meta.yaml").write_text(f"artifact_location: file://{place}\nname: {name}\n")
    job = Job(project=tmp_path, target=target_of(tmp_path, f"import mlflow\n{code}\n"))
    assert [each.partition("/meta.yaml ")[0] for each in mlflow_paths(job, ["train.py"])] == names


def test_a_call_without_its_required_argument_and_a_number_in_the_environment_are_warned_of(tmp_path: Path) -> None:
    source = "with torch.amp.autocast():\n    pass\n"
    [found] = script_facts(target_of(tmp_path, source), tmp_path).misfits
    assert found == "train.py:4 calls torch.amp.autocast() without device_type: a run that reaches this line fails"
    assert not script_facts(target_of(tmp_path, source.replace("()", "('cuda')")), tmp_path).misfits
    source = "import os\nos.environ['A'] = os.environ['B'] = '1'\nos.environ['CUDA_LAUNCH_BLOCKING'] = 1\n"
    [found] = script_facts(target_of(tmp_path, source), tmp_path).misfits
    assert "os.environ['CUDA_LAUNCH_BLOCKING'] = 1 sets a variable to a value that is not a string: a run that" in found


@cases("source", "words", "args")
def test_a_missing_input_is_named_with_its_place(
    tmp_path: Path, source: str, words: str, args: tuple[str, ...] | None
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "x.csv").touch()
    (tmp_path / "sub" / "z.csv").mkdir()
    (tmp_path / "link").symlink_to("/nobody/data")
    (tmp_path / "blank.yaml").write_text("data path: data/x\n")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / ".gitkeep").touch()
    (tmp_path / "conf_full.yaml").write_text("data:\n  path: data/x\nlog:\n  path: log/x\n")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "Game.x86_64").touch()
    (tmp_path / "w.pth").write_text("version https://git-lfs.github.com/spec/v1\n")
    (tmp_path / "prepare.py").write_text('open("made.csv", "w")\nopen("last_z.csv", "w")\n')
    (tmp_path / "hp.py").write_text("class H:\n    mode = '3d'\n    root = 'd/train'\n")
    target = target_of(tmp_path, source, *(args or ()))
    [sentence] = missing_inputs(Job(project=tmp_path, target=target), script_facts(target, tmp_path).reads)
    assert words in sentence


def test_the_line_that_reads_a_file_or_compares_does_not_create_it(tmp_path: Path) -> None:
    (tmp_path / "ask.py").write_text("p = 'w/y.pt' if len(a) > 1 or b >= 2 else c  # c -> p, 2>&1\n")
    (tmp_path / "export.py").write_text("torch.load(save_at + 'y.pt')\nsize('w/dump/y.pt')\ngz_read('y.pt', to_cpu)\n")
    target = target_of(tmp_path, "p.add_argument('--save', default='w')\na = p.parse_args()\nopen(a.save + '/y.pt')\n")
    job, reads = Job(project=tmp_path, target=target), script_facts(target, tmp_path).reads
    assert not next(missing_inputs(job, reads)).endswith("may create it")
    (tmp_path / "first.py").write_text("torch.save(net, 'w/y.pt')\n")
    assert next(missing_inputs(job, reads)).endswith("; first.py:1 may create it")


def test_a_name_of_detectron2s_model_zoo_is_no_file_of_the_project(tmp_path: Path) -> None:
    target = target_of(
        tmp_path, "cfg.merge_from_file(zoo.get_config_file('COCO/mask.yaml'))\nf(cfg='COCO-Detection/a.yaml')\n"
    )
    facts = script_facts(target, tmp_path)
    assert (facts.reads, facts.inputs) == ((), ())


def test_a_suffix_that_the_code_adds_where_it_lacks_is_part_of_the_file(tmp_path: Path) -> None:
    source = "p.add_argument('-c')\na = p.parse_args()\n"
    source += 'open(f\'conf/{a.c if a.c.endswith(".yaml") else a.c + ".yaml"}\')\n'
    for typed in ("small", "small.yaml"):
        target = target_of(tmp_path, source, "-c", typed)
        facts = script_facts(target, tmp_path)
        assert {each.path for each in (*facts.reads, *facts.inputs)} == {"conf/small.yaml"}


def test_a_missing_file_has_what_is_like_it_and_no_longer_name_in_a_line(tmp_path: Path) -> None:
    target = target_of(tmp_path, "open('y.csv')\nopen('y.json')\nopen('data/v1/z.csv')\n")
    (tmp_path / "prepare.py").write_text('open("last_y.csv", "w")\n# open("y.csv", "w")\n')
    (tmp_path / "y.json.sample").touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "data/v1.dvc").write_text("outs:\n- path: v1\n")
    reads = script_facts(target, tmp_path).reads
    table, settings, tracked = (next(missing_inputs(Job(project=tmp_path, target=target), [each])) for each in reads)
    assert table.endswith("y.csv, which the project does not have")
    assert settings.endswith("; next to it: y.json.sample")
    assert tracked.endswith("; v1.dvc points to it, but .dvc/config names no remote")
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc/config").write_text("['remote \"store\"']\n    url = s3://models\n")
    assert next(missing_inputs(Job(project=tmp_path, target=target), [reads[2]])).endswith("points to it: dvc pull")


@pytest.mark.parametrize(
    "source",
    [
        "def f(x):\n    if not os.path.exists(x):\n        print(1)\n        return\n    open(x)\nf('d/w')\ntrain()\n",
        "def f(root='./d/a/b'):\n    os.listdir(root)\nf(root=p.parse_args().root)\n",
        "class C:\n    def __init__(self):\n        self.d = 'd'\n        self.d += f()\n        open(self.d)\nC()\n",
    ],
    ids=["a helper returns", "a default that no call takes", "a path that grows"],
)
def test_what_a_run_may_do_without_is_no_missing_input(tmp_path: Path, source: str) -> None:
    target = target_of(tmp_path, f"import os\n{source}")
    facts = script_facts(target, tmp_path)
    assert (facts.reads, facts.inputs) == ((), ())


@pytest.mark.parametrize(
    "source",
    [
        "class C:\n    def __init__(self):\n        self.x = __file__\n        self.load()\n        self.x = 'a'\n"
        "    def load(self):\n        open(self.x)\nC()\n",
        "class C:\n    def __init__(self):\n        self.x = __file__\n        if f():\n            self.load()\n"
        "        self.x = 'a'\n    def load(self):\n        open(self.x)\nC()\n",
        "def main():\n    if not os.path.exists('a'):\n        train()\n        return\n    open('a')\nmain()\n",
        "if not os.path.exists('a'):\n    train()\n    sys.exit()\nopen('a')\n",
    ],
)
def test_what_a_run_perhaps_does_not_read_is_not_missing_for_certain(tmp_path: Path, source: str) -> None:
    facts = script_facts(target_of(tmp_path, f"import os, sys\nfrom glob import glob\n{source}"), tmp_path)
    assert facts.reads == ()


@pytest.mark.parametrize(("use", "named"), [("x.startswith(PARTS)", False), ("open(PARTS[0])", True)])
def test_a_text_that_others_begin_with_is_no_path(tmp_path: Path, use: str, named: bool) -> None:
    target = target_of(tmp_path, f"PARTS = ('/storage/v1/object/sign/',)\n{use}")
    assert bool(script_facts(target, tmp_path).reads) is named


@pytest.mark.parametrize(
    ("folder", "files"), [("checkpoints", [".gitkeep"]), ("data", [".gitkeep", "x.csv"]), ("data", [])]
)
def test_a_folder_for_results_or_with_a_file_of_its_own_may_be_read(
    tmp_path: Path, folder: str, files: list[str]
) -> None:
    (tmp_path / folder).mkdir()
    for name in files:
        (tmp_path / folder / name).touch()
    target = target_of(tmp_path, f"os.listdir({folder!r})\n")
    reads = script_facts(target, tmp_path).reads
    assert [each.path for each in reads] == [folder]
    assert not [*missing_inputs(Job(project=tmp_path, target=target), reads)]


@pytest.mark.parametrize(
    ("end", "missed"),
    [
        ("start(a.config)", True),
        ("if os.path.exists(a.config):\n    start(a.config)", False),
        ("start(open('etc/' + a.config))", False),
        ("start(a.config_out)", False),
        ("if a.mode == 'test':\n    start(a.config)", False),
        ("if a.mode == 'train':\n    start(a.config)", True),
        ("for each in (a.config, a.mode):\n    os.makedirs(each)\nstart(a.config)", False),
        ("", False),
    ],
)
def test_a_configuration_that_an_option_names_by_default_is_missed(tmp_path: Path, end: str, missed: bool) -> None:
    source = f"p.add_argument('--config{'_out' * ('_out' in end)}', default='conf/c.yaml')\n"
    source += f"p.add_argument('--mode', default='train')\na = p.parse_args()\nfrom etc import start\n{end}\n"
    (tmp_path / "etc/conf").mkdir(parents=True)
    (tmp_path / "etc/conf/c.yaml").touch()
    target = target_of(tmp_path, source)
    found = [*not_found(Job(project=tmp_path, target=target), script_facts(target, tmp_path).inputs, ())]
    named = "Not found on this machine: conf/c.yaml (train.py:4)"
    assert [each.partition(". If")[0] for each in found] == [named] * missed


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("try:\n    f('photos/*.png')\nexcept Exception:\n    pass\n", "photos (etc.py:3)"),
        ("study.optimize(g)\n", "my data/x (etc.py:5)"),
        ("parser.set_defaults(g=g)\n", ""),
        ("try:\n    f('outputs/*.pt')\nexcept Exception:\n    pass\n", ""),
    ],
    ids=["a listed folder below try", "in a function that another calls", "in a command", "of results"],
)
def test_a_folder_that_the_run_may_list_is_missed(tmp_path: Path, source: str, named: str) -> None:
    etc = "from glob import glob\ndef f(p):\n    glob(p)\ndef g(t):\n    glob('./my data/x')\n"
    (tmp_path / "etc.py").write_text(etc)
    target = target_of(tmp_path, f"from etc import f, g\n{source}")
    found = [*not_found(Job(project=tmp_path, target=target), script_facts(target, tmp_path).inputs, ())]
    assert [each.partition(". If")[0] for each in found] == [f"Not found on this machine: {named}"] * bool(named)


@pytest.mark.parametrize(
    ("between", "named"),
    [
        ("np.save('data/y.npy', x)\n", True),
        ("prepare('data')\n", False),
        ("np.save(name, x)\n", False),
        ("open('data/x.csv', 'w')\n", False),
        ("if os.path.exists('data/x.csv'):\n    print(1)\n", False),
    ],
)
def test_a_file_that_nothing_writes_in_a_folder_that_is_made_is_missed(
    tmp_path: Path, between: str, named: bool
) -> None:
    target = target_of(tmp_path, f"os.makedirs('data')\n{between}open('data/x.csv')\n")
    found = [*not_found(Job(project=tmp_path, target=target), script_facts(target, tmp_path).inputs, ())]
    assert ["data/x.csv" in each for each in found] == [True] * named


_KINDS = """
p.add_argument("--kind", default="cat_1")
a = p.parse_args()
if "cat" in a.kind:
    np.load("sets/cats/{}.npy".format(a.kind.split("_")[1]))
elif "dog" in a.kind:
    np.load("sets/dogs/all.npy")
"""
_LOADED = """
def load(name):
    path = os.path.join("a/b", name + ".npy")
    if os.path.isfile(path):
        return np.load(path)
s = load(random.choice(names))
if {}:
    raise ValueError
"""


_ARCHIVE = """
ROOT = Path(__file__).parent
def found(path):
    path = Path(path)
    if not path.is_absolute():
        whole = ROOT / path
    else:
        whole = path
    return whole
def unpack(root, archive):
    if root.exists():
        return
    if archive is not None and archive.is_file():
        root.parent.mkdir()
        zipfile.ZipFile(archive).extractall(root.parent)
    if not root.exists():
        raise OSError
p.add_argument('--data_dir', default='sets/own')
p.add_argument('--data_zip', default='sets/own.zip')
a = p.parse_args()
unpack(found(a.data_dir), found(a.data_zip) if a.data_zip else None)
"""


@pytest.mark.parametrize(
    ("source", "words", "named"),
    [
        (
            "class C:\n    d = os.environ.get('D', '.')\n    train = os.path.join(d, 'sets/x/*')\nf(C.train)\n",
            "",
            "sets/x",
        ),
        ("d = 'b/'\nclass C:\n    d = 'a/'\n    def f(self, x=d + 'c/y'):\n        open(x)\nC().f()\n", "", "a/c/y"),
        ("class C:\n    d = 'a/'\nd = 'b/'\nf(train=d + 'c/y')\n", "", "b/c/y"),
        ("f()\n", "task.dataset_path=data/x", "data/x"),
        ("f()\n", "--model=owner/model", ""),
        ("register_coco_instances('x', {}, 'd/x.json', 'd/x')\n", "", "d/x.json"),
        ("register_route('/api/v1/train.csv')\n", "", ""),
        ("f()\n", "--kind=data/out", ""),
        ("class C:\n    root = '/own/sets'\nf(C.root)\n", "--gin_bindings=C.root = 'a/b'", "a/b"),
        ("class C:\n    root = '/own/sets'\nf(C.root)\n", "", "/own/sets"),
        ("f(data_dir='/lab/projects/sets/x')\n", "", "/lab/projects/sets/x"),
        ("f(data_dir='/lab/sets/results')\n", "", ""),
        (_LOADED.format("s is None"), "", "a/b"),
        (_LOADED.format("s is not None"), "", ""),
        (_LOADED.format("s == 3"), "", ""),
        (
            f"def g(a):\n    if a == 'x':\n        f(root='../x/y')\nif 1:\n    {_A}\nelse:\n    {_A}\ng(a.a)",
            "--a=x",
            "../x/y",
        ),
        (
            f"def g(a):\n    if a == 'x':\n        f(root='../x/y')\nif 1:\n    {_A}\nelse:\n    {_A}\ng(a.a)",
            "--a=y",
            "",
        ),
        (
            f"def g(a):\n    if a == 'z':\n        f(root='../x/y')\nif 1:\n    {_A}\nelse:\n    {_A}\ng(a.a)",
            "",
            "../x/y",
        ),
        ("p.add_argument('-d', '--dir')\na = p.parse_args()\nopen(a.dir)\n", "-d=sets", "sets"),
        ("d = {}\nd['a'] = 'x/a.csv'\nopen(d['a'])\n", "", "x/a.csv"),
        ("d = {'a': 'x/a.csv', 'b': 'x/b.csv'}\nk = 'b'\nopen(d[k])\n", "", "x/b.csv"),
        ("images = []\nfor n in open(__file__):\n    images.append(os.path.join('x/y/z', n))\n", "", "x/y/z"),
        ("torch.load('a.pt')\ntorch.save({}, 'a.pt')\n", "", "a.pt"),
        ("torch.save({}, 'a.pt')\ntorch.load('a.pt')\n", "", ""),
        ("f(data_dir='/export/own/sets')\n", "", "/export/own/sets"),
        (_ARCHIVE, "", "sets/own "),
        (_ARCHIVE.replace("a = ", "fetch('sets/own.zip')\na = "), "", ""),
        (_KINDS, "", "sets/cats,"),
        (_KINDS, "--kind=a_dog", "sets/dogs/all.npy,"),
        (_KINDS, "--kind=bird", ""),
        (_KINDS.replace("default=", "nargs='+', default="), "--kind=cat", ""),
        (_KINDS.replace("in a.kind", "in a.kind.split(',')"), "", ""),
    ],
)
def test_a_path_that_a_class_a_word_or_a_condition_gives_is_missed(
    tmp_path: Path, source: str, words: str, named: str
) -> None:
    target = target_of(tmp_path, source, *filter(None, [words]))
    facts, job = script_facts(target, tmp_path), Job(project=tmp_path, target=target)
    certain = [*missing_inputs(job, facts.reads)]
    found = [*certain, *not_found(job, facts.inputs, certain)]
    assert len(found) == bool(named)
    assert all(f" {named}" in each for each in found)


_OF_SETS = """
class Cats:
    def __init__(self, root="x"):
        open(root + "/cats.csv")
class Dogs(Cats):
    def __init__(self, root="x"):
        open(root + "/dogs.csv")
class Birds:
    def __init__(self):
        open("x/birds.csv")
SETS = {"cats": Cats, "dogs": Dogs}
p.add_argument("--set", default="cats")
p.add_argument("--root")
a = p.parse_args()
"""

_MAKES = """
class Base:
    def listdir(self):
        pass
class Own(Base):
    def listdir(self):
        os.mkdir(a.root)
"""


@pytest.mark.parametrize(
    ("source", "words", "read"),
    [
        ("SETS[a.set](root='y')\n", "", "y/cats.csv"),
        ("own = SETS.get(a.set)\nown(**{'root': 'z'})\n", "--set=dogs", "z/dogs.csv"),
        ("def make(kind, **how):\n    return kind(**how)\nmake(Birds)\n", "", "x/birds.csv"),
        ("if os.cpu_count() > 3:\n    Birds()\nelse:\n    Birds()\n", "", "x/birds.csv"),
        ("if os.cpu_count() > 3:\n    Birds()\n", "", ""),
        (f"{_MAKES}os.listdir(a.root)\n", "--root=z", "z"),
        (f"{_MAKES}Own().listdir()\nos.listdir(a.root)\n", "--root=z", ""),
    ],
)
def test_what_a_table_or_a_parameter_names_or_both_branches_call_is_read(
    tmp_path: Path, source: str, words: str, read: str
) -> None:
    target = target_of(tmp_path, _OF_SETS + source, *filter(None, [words]))
    assert [each.path for each in script_facts(target, tmp_path).reads] == [read] * bool(read)


def test_an_undefined_name_in_what_this_run_does_not_call_is_passed_over(tmp_path: Path) -> None:
    nets = "class Net:\n    def a(self):\n        pass\n    def b(self):\n        return Activation()\n"
    nets += "    def __init__(self, kind):\n        if kind == 'a':\n            self.a()\n"
    nets += "        else:\n            self.b()\n"
    (tmp_path / "nets.py").write_text(nets)
    for kind in "ab":
        facts = script_facts(target_of(tmp_path, f"from nets import Net\nNet('{kind}')\n"), tmp_path)
        assert [each.partition(",")[0] for each in facts.misfits] == ["nets.py:5 uses Activation"] * (kind == "b")


def test_a_configuration_next_to_the_script_is_missed_where_the_script_downloads_its_data(tmp_path: Path) -> None:
    (tmp_path / "sub" / "conf").mkdir(parents=True)
    (tmp_path / "sub" / "conf" / "c.yaml").touch()
    source = "from urllib.request import urlretrieve\nopen('conf/c.yaml')\nurlretrieve('http://x', p)\nopen('x.csv')\n"
    (tmp_path / "sub" / "train.py").write_text(source)
    target = Target(kind="script", value="sub/train.py")
    [sentence] = missing_inputs(Job(project=tmp_path, target=target), script_facts(target, tmp_path).reads)
    assert "reads conf/c.yaml, which is below sub" in sentence
    assert sentence.endswith("--workdir sub")


def test_a_typed_configuration_that_lies_in_a_folder_is_to_be_typed_with_it(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "c.yaml").touch()
    target = target_of(tmp_path, "p.add_argument('--c')\na = p.parse_args()\nopen(a.c)\n", "--c", "c.yaml")
    [sentence] = missing_inputs(Job(project=tmp_path, target=target), script_facts(target, tmp_path).reads)
    assert sentence.endswith("the project has conf/c.yaml: -- --c conf/c.yaml")


def test_a_typed_path_is_read_by_the_branch_that_the_arguments_take_alone(tmp_path: Path) -> None:
    source = """
p.add_argument("--root")
p.add_argument("--kind")
a = p.parse_args()
if a.kind == "shapes":
    open(a.root + "/shapes.txt")
elif a.kind == "models":
    open(a.root + "/models.txt")
"""
    target = target_of(tmp_path, source, "--root", "data", "--kind", "models")
    assert [each.path for each in script_facts(target, tmp_path).reads] == ["data/models.txt"]


@pytest.mark.parametrize(
    "source",
    [
        'if os.path.exists("x.csv"):\n    open("x.csv")\n',
        'open("x.csv", "w")\nopen("x.csv")\n',
        'try:\n    open("x.csv")\nexcept OSError:\n    pass\n',
        'from urllib.request import urlretrieve\nurlretrieve("http://x", p)\nopen("x.csv")\n',
        'np.memmap("x.csv", mode="w+")\n',
        'if not os.path.exists("x.csv") and not os.path.exists("y.csv"):\n    raise OSError\n',
        'os.makedirs("x")\nif not os.path.exists("x"):\n    raise OSError\n',
        'open("x/y", "w")\nif not os.path.exists("x"):\n    raise OSError\n',
        'os.makedirs("data", exist_ok=True)\nopen("data/x.csv")\n',
        'os.chdir(p)\nopen("x.csv")\n',
        'try:\n    open("x.csv")\nexcept OSError:\n    if late:\n        return\n    raise\n',
        'while 1:\n    try:\n        open("x.csv")\n    except E:\n        if n:\n            break\n        raise\n',
        'import hydra\nhydra.initialize("gone")\nhydra.compose("c.yaml")\n',
        'import hydra\nhydra.initialize_config_module("seatrial_gone")\nhydra.compose(config_name="c")\n',
        'if late:\n    open("x.csv")\n',
        'def fit():\n    Trainer(output_dir="r")\nfit()\nassert os.path.isdir("r/x")\n',
        'def make(path):\n    np.ones(3).tofile(path)\nmake("x/y")\nif not os.path.exists("x/y"):\n    raise OSError\n',
        'shutil.copytree("job", "x")\nif not os.path.exists("x/y"):\n    raise OSError\n',
        'datasets.MNIST("data", download=True)\nopen("data/x.csv")\n',
        'from urllib.request import urlretrieve\nurlretrieve("http://x", "d/x.zip")\nopen("d/x.csv")\n',
        'zipfile.ZipFile("w.zip").extractall()\nopen("d/x.csv")\n',
        'def download():\n    fetch()\ndownload()\nopen("d/x.csv")\n',
        'make("x.npy")\nif os.path.exists("x.npy"):\n    pass\nelse:\n    open("d/x.csv")\n',
        'np.save("x.npy", x)\nif not os.path.exists("x.npy"):\n    open("d/x.csv")\n',
        'def f(p):\n    if os.path.exists(p):\n        open(p)\n    else:\n        f(p)\nf("d/x.csv")\n',
        'if a:\n    open("d/x.csv")\nelif b:\n    open("d/x.csv")\n',
        'if a:\n    path = "d/x.csv"\n    open(path)\nelse:\n    path = "c.yaml"\n    open(path)\n',
        'c = yaml.safe_load(open("c.yaml"))\nif c["resume"] != "None":\n    torch.load(c["resume"])\n',
    ],
)
def test_an_input_that_may_come_is_not_missed(tmp_path: Path, source: str) -> None:
    (tmp_path / "c.yaml").write_text("resume: 'None'\n")
    assert not [each for each in script_facts(target_of(tmp_path, source), tmp_path).reads if each.path != "c.yaml"]


@pytest.mark.parametrize(
    ("source", "certain", "perhaps"),
    [
        ("open('d/x.csv')\nurlretrieve(u, p)\n", ["d/x.csv"], []),
        ("urlretrieve(data_url, p)\ntorch.load('w/vgg.pth')\n", [], ["w/vgg.pth"]),
        ("urlretrieve(data_url, p)\ntorch.load('processed/train.pt')\n", [], []),
        ("urlretrieve(u, p)\ntorch.load('w/vgg.pth')\n", [], []),
        ("urlretrieve(data_url, p)\ntorch.load('w/vgg.pth') if os.cpu_count() > 3 else None\n", [], []),
        ("urlretrieve(u, 'w/' + name)\ntorch.load('w/vgg.pth')\n", [], []),
        ("os.system('wget http://x/vgg.pth -P data')\ntorch.load('w/vgg.pth')\n", [], []),
        ("os.system('wget http://x/data.tgz && tar xf data.tgz')\ntorch.load('w/vgg.pth')\n", [], ["w/vgg.pth"]),
        ("def fetch():\n    urlretrieve(VGG_WEIGHTS, p)\nfetch()\ntorch.load('w/vgg.pth')\n", [], []),
        ("subprocess.run(['python', 'prepare.py'])\ntorch.load('w/vgg.pth')\n", [], []),
        ("os.system('./data.sh')\nopen('d/x.csv')\n", [], []),
        ("api.dataset_download_files('owner/name', path='d')\nopen('d/x.csv')\n", [], []),
        ("urlretrieve(u, 'a/x')\n" * 250 + "urlretrieve(u, p)\nopen('d/x.csv')\n", [], []),
        ("class D:\n    def __getitem__(self, at):\n        open('d/x.csv')\nd = D()\nurlretrieve(u, p)\n", [], []),
    ],
)
def test_a_download_silences_the_reads_alone_that_it_may_make(
    tmp_path: Path, source: str, certain: list[str], perhaps: list[str]
) -> None:
    head = "import subprocess\nfrom urllib.request import urlretrieve\n"
    facts = script_facts(target_of(tmp_path, head + source), tmp_path)
    assert [each.path for each in facts.reads] == certain
    assert [*dict.fromkeys(each.path for each in facts.inputs if each.path not in certain)] == perhaps


@pytest.mark.parametrize(("mode", "read"), [("r", True), ("rb", True), ("w", False), ("r+", False)])
def test_a_file_is_read_whose_callers_all_pass_a_mode_that_reads(tmp_path: Path, mode: str, read: bool) -> None:
    source = f"def load(path, mode='r'):\n    return opened(path, mode=mode)\nload('d/x.csv', mode='{mode}')\n"
    source = f"def opened(path, mode):\n    return open(path, mode=mode)\n{source}"
    assert [each.path for each in script_facts(target_of(tmp_path, source), tmp_path).reads] == ["d/x.csv"] * read


def test_a_setting_of_a_tokenizers_folder_that_git_ignores_is_an_input(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("tokenizer:\n  tokenizer_dir: tokenizers/bpe\n")
    (tmp_path / ".gitignore").write_text("tokenizers/\n")
    source = "cfg = yaml.safe_load(open('c.yaml'))\nAutoTokenizer.from_pretrained(cfg['tokenizer']['tokenizer_dir'])\n"
    assert {each.path for each in script_facts(target_of(tmp_path, source), tmp_path).inputs} == {"tokenizers/bpe"}


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def keep(n):\n    torch.save(w, f'ckpt/{n}.pt')\nif late:\n    keep(1)\n", "train.py:5 may write ckpt/*.pt,"),
        ("open('ckpt/log', 'w')\n", "and nothing creates that folder: mkdir -p ckpt"),
        ("open('ckpt/log', 'w')\nos.makedirs(p)\n", "and nothing creates that folder: mkdir -p ckpt"),
        ("os.makedirs(p)\nopen('ckpt/log', 'w')\n", ""),
        ("os.makedirs('ckpt')\nopen('ckpt/log', 'w')\n", ""),
        ("os.makedirs(config.out)\nopen('ckpt/log', 'w')\n", "nothing creates that folder: mkdir -p ckpt"),
        ("os.makedirs(config.top)\nopen('ckpt/log', 'w')\n", ""),
        ("for name in names:\n    os.makedirs(name)\nopen('ckpt/log', 'w')\n", ""),
        ("open('made/log', 'w')\nopen('sub/log', 'w')\nopen('log', 'w')\n", ""),
        ("open('ckpt/log', 'w') if late else open('log', 'w')\n", "nothing creates that folder: mkdir -p ckpt"),
        ("late = 0\nopen('ckpt/log', 'w') if late else open('log', 'w')\n", ""),
        ("open('./ckpt/log', 'w') if Path('ckpt').is_dir() else open('log', 'w')\n", ""),
        ("if isdir('ckpt'):\n    open('ckpt/log', 'w')\n", ""),
        (
            "if isdir('ckpt'):\n    pass\nelse:\n    open('ckpt/log', 'w')\n",
            "nothing creates that folder: mkdir -p ckpt",
        ),
        ("open('ckpt/log', 'w')\n", "train.py:4 writes ckpt/log,"),
        ("os.mkdir('a/b')\n", "train.py:4 writes a/b, and nothing creates the folder above it: mkdir -p a"),
        ("os.mkdir('a')\nos.mkdir('a/b')\nopen('a/b/log', 'w')\n", ""),
        ("os.mkdir('a')\nopen('a/b/log', 'w')\n", "mkdir -p a/b"),
        ("pathlib.Path('a/b').mkdir(parents=True)\nopen('a/b/log', 'w')\n", ""),
        ("try:\n    os.mkdir('a/b')\nexcept OSError:\n    pass\n", ""),
        ("tf.gfile.MakeDirs('a/b')\nopen('a/b/log', 'w')\n", ""),
        ("def main(_):\n    open('a/log', 'w')\nimport tensorflow as tf\ntf.app.run()\n", "writes a/log,"),
        (
            "def keep(to):\n    with to.open('w') as f:\n        f.write('')\nkeep(Path('sub/x'))\nkeep(Path('a/x'))\n",
            "a/x",
        ),
        ("prepare('a')\nopen('a/log', 'w')\n", ""),
        ("shutil.copy('train.py', 'a/train.py')\n", "train.py:4 writes a/train.py,"),
        ("logging.basicConfig(filename='a/log')\n", "train.py:4 writes a/log,"),
        ("def make(p=None):\n    os.makedirs(p or '/tmp/c')\nmake()\nopen('a/log', 'w')\n", "writes a/log,"),
        ("def save_model(p):\n    torch.save(w, p)\nif late:\n    save_model('a/w.pt')\n", ":5 may write a/w.pt,"),
        ("D = 'a'\nif late:\n    rmtree(D)\n    os.mkdir(D)\nopen('a/log', 'w')\n", "train.py:8 writes a/log,"),
        ("D = 'a'\nif os.path.exists(D):\n    rmtree(D)\nos.mkdir(D)\nopen('a/log', 'w')\n", ""),
        ("D = 'a'\nrmtree(D, ignore_errors=True)\nos.mkdir(D)\nopen('a/log', 'w')\n", ""),
        ('"""Needs a path to download the a files."""\nopen("a/log", "w")\n', "writes a/log,"),
        ("open('csv/log', 'w')\n", "nothing creates that folder: mkdir -p csv"),
    ],
)
def test_a_folder_that_nothing_makes_is_named(tmp_path: Path, source: str, words: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "prepare.sh").write_text("mkdir -p made\n")
    (tmp_path / "page.py").write_text("st.download_button('Save', csv, file_name='x.txt')\n")
    target = target_of(tmp_path, source, "out=results")
    found = [*missing_folders(Job(project=tmp_path, target=target), script_facts(target, tmp_path).unmade)]
    assert [words in each for each in found] == [True] * bool(words)


@pytest.mark.parametrize(
    ("at", "way"), [("kept", "start the script in its folder, --workdir sub"), ("no", "mkdir -p ../no")]
)
def test_a_folder_outside_that_nothing_makes_is_named_on_this_machine(tmp_path: Path, at: str, way: str) -> None:
    for name in ("kept", "sub"):
        (tmp_path / "project" / name).mkdir(parents=True)
    (tmp_path / "project" / "sub" / "train.py").write_text(f"open('../{at}/log', 'w')\n")
    job = Job(project=tmp_path / "project", target=Target(kind="script", value="sub/train.py"), backend="local")
    [sentence] = missing_folders(job, script_facts(job.target, job.project).unmade)
    assert sentence == f"sub/train.py:1 writes ../{at}/log, and nothing creates that folder: {way}"


def test_a_typed_folder_may_lack_what_the_code_looks_for_and_not_its_model(tmp_path: Path) -> None:
    source = """p.add_argument("--model")
a = p.parse_args()
if os.path.isfile(os.path.join(a.model, "optimizer.pt")):
    torch.load(os.path.join(a.model, "optimizer.pt"))
AutoModel.from_pretrained(a.model)
"""
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / ".gitkeep").touch()
    target = target_of(tmp_path, source, "--model", "bert")
    assert [each.path for each in script_facts(target, tmp_path).reads] == ["bert/config.json"]
    (tmp_path / "bert" / "config.json").touch()
    assert script_facts(target, tmp_path).reads == ()


@pytest.mark.parametrize(
    ("code", "places"),
    [
        ("open(cfg.path)", ("train.py:5",)),
        ("open(os.path.join(cfg['root'], 'a.csv'))", ("train.py:5",)),
        ("open(cfg.path, 'w')", ()),
        ("for each in names:\n    open(each)", ()),
        ("if os.path.exists(cfg.path):\n    open(cfg.path)", ()),
        ("def unused():\n    open(cfg.path)", ()),
    ],
)
def test_a_read_is_called_unchecked_where_a_setting_without_a_value_is_its_path(
    tmp_path: Path, code: str, places: tuple[str, ...]
) -> None:
    assert script_facts(target_of(tmp_path, f"cfg = unknown()\n{code}\n"), tmp_path).unchecked == places


@pytest.mark.parametrize(
    ("code", "reads"),
    [
        ("for each in cfg.names:\n    np.load(each)", ["train.py:5 np.load(each)"]),
        ("p.add_argument('--data')\na = p.parse_args()\nopen(a.data)", ["train.py:6 open(a.data) by --data"]),
        ("class Data:\n    def read(self):\n        open(cfg.a)\ncfg.kind.read()", ["train.py:6 open(cfg.a)"]),
        ("if cfg.kind == 'text':\n    open(cfg.a)", ["train.py:5 open(cfg.a)"]),
        ("open(cfg.a)\nopen('sets/there.csv')", []),
        ("p.add_argument('--data', default='sets/there.csv')\na = p.parse_args()\nf(a.data)\nopen(cfg.a)", []),
        ("class Data:\n    def read(self):\n        open(cfg.a)\ncfg.kind.read({'a': 'sets/there.csv'})", []),
        ("load_dataset('squad')\nopen(cfg.a)", []),
        ("import kagglehub\nroot = kagglehub.dataset_download('a/b')\nImageFolder(root)", []),
        ("MNIST(cfg.root, download=True)\nopen(cfg.a)", []),
        ("from urllib.request import urlretrieve\nurlretrieve(cfg.a, cfg.b)\nopen(cfg.b)", []),
        ("open(cfg.a, 'w')\nopen(cfg.a)", []),
        ("if os.path.exists(cfg.a):\n    open(cfg.a)", []),
        ("open(os.path.join(os.path.dirname(__file__), cfg.a))", []),
        ("def restore():\n    open(cfg.a)\nrestore()", []),
        ("torch.load(cfg.a)", []),
        ("def unused():\n    open(cfg.a)", []),
        ("pd.read_csv(io.StringIO('a,b'))\nImage.open(BytesIO(get(cfg.a)))\npd.read_csv(url)", []),
    ],
)
def test_reads_by_unknown_paths_are_named_where_no_input_is_known(tmp_path: Path, code: str, reads: list[str]) -> None:
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets/there.csv").touch()
    target = target_of(tmp_path, f"{code}\n")
    facts = script_facts(target, tmp_path)
    assert [*facts.unknown] == reads
    found = [*not_found(Job(project=tmp_path, target=target), (), (), facts.unknown)]
    assert [each.partition(". If a file")[0] for each in found] == [
        f"Inputs whose paths are known only in a run: {each}" for each in reads
    ]


COMMANDS = """import scipy
class Store:
    def __init__(self, root):
        os.mkdir(os.path.join(root, "cache"))
def prepare(a):
    Store(a.base)
    import seaborn
    pd.read_csv(unknown())
def fit(a):
    Store(a.base)
    open(other())
commands = p.add_subparsers()
p.add_argument("--base")
one = commands.add_parser("prepare")
one.set_defaults(func=prepare)
two = commands.add_parser("train", aliases=["t"])
two.set_defaults(func=fit)
a = p.parse_args()
a.func(a)
"""


@pytest.mark.parametrize(("word", "line"), [("train", "14 open(other())"), ("t", "14 "), ("prepare", "11 pd.read")])
def test_what_other_sub_commands_read_and_import_is_not_named(tmp_path: Path, word: str, line: str) -> None:
    target = target_of(tmp_path, COMMANDS, "--base", "out", word)
    facts = script_facts(target, tmp_path)
    assert [each.startswith(f"train.py:{line}") for each in facts.unknown] == [True]
    assert ("seaborn" in facts.imports) is (word == "prepare")
    assert [str(each) for each in facts.unmade] == ["train.py:7 writes out/cache"]


def test_a_function_behind_several_star_imports_is_followed(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/__init__.py").write_text("from .one import *\nfrom .two import *\n")
    (tmp_path / "tools/one.py").write_text("def load(p):\n    pass\n")
    (tmp_path / "tools/two.py").write_text("def keep(p):\n    open(p, 'w')\n")
    facts = script_facts(target_of(tmp_path, "from tools import keep\nkeep('a/x')\n"), tmp_path)
    assert [str(each) for each in facts.unmade] == ["tools/two.py:2 writes a/x"]


LONG, ROWS = "a" * 300, range(2500)
ITEMS = "".join(f"d['k{at}'] = 'data/{at}.csv'\n" for at in ROWS)


@pytest.mark.parametrize(
    ("source", "unmade"),
    [
        ("f = g\ng = f\nf = h\nh = f\nh = g\nf()\nopen('a/x', 'w')\n", "train.py:10 writes a/x"),
        ("a = b\nb = a\nopen(a['x'])\nopen('a/x', 'w')\n", "train.py:7 writes a/x"),
        ("def f(c):\n    c['a']['b']()\n    f(c)\n    open('a/x', 'w')\nf(1)\n", "train.py:7 writes a/x"),
        (f"open('{LONG}/x', 'w')\n", f"train.py:4 writes {LONG[:99]}"),
        (f"from transformers import AutoModel\nAutoModel.from_pretrained('{LONG}')\nopen('a/x', 'w')\n", "train.py:6 "),
    ],
)
def test_names_in_a_circle_and_names_too_long_for_a_file_are_read(tmp_path: Path, source: str, unmade: str) -> None:
    facts = script_facts(target_of(tmp_path, source), tmp_path)
    assert [str(each).startswith(unmade) for each in facts.unmade] == [True]


def test_many_items_set_later_are_read_in_time(tmp_path: Path) -> None:
    source = f"d = {{}}\n{ITEMS}{''.join(f'open(d[{key!r}])' + chr(10) for key in [f'k{at}' for at in ROWS[:200]])}"
    begun = process_time()
    assert len(script_facts(target_of(tmp_path, source), tmp_path).inputs) == 200
    assert process_time() - begun < 5  # seconds; copying the items at each of them took 10


def test_the_prefix_of_a_tensorflow_checkpoint_is_there(tmp_path: Path) -> None:
    target = target_of(tmp_path, "p.add_argument('--init')\na = p.parse_args()\n", "--init", "bert/model.ckpt")
    inputs, job = script_facts(target, tmp_path).inputs, Job(project=tmp_path, target=target)
    assert "bert/model.ckpt" in "".join(not_found(job, inputs, ()))
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert/model.ckpt.index").touch()
    assert [*not_found(job, inputs, ())] == []


def test_a_path_of_hundreds_of_terms_ends_no_plan(tmp_path: Path) -> None:
    target = target_of(tmp_path, f"np.load({'+'.join(['cfg.a'] * 400)})\n")
    assert script_facts(target, tmp_path).reads == ()


def test_a_class_that_a_package_passes_on_by_a_star_is_followed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/__init__.py").write_text("from .sets import *\n")
    (tmp_path / "data/sets.py").write_text("class Set:\n    def of(path):\n        open(path)\n")
    target = target_of(tmp_path, "from data import *\nSet.of('a.csv')\n")
    assert [each.path for each in script_facts(target, tmp_path).reads] == ["a.csv"]


@pytest.mark.parametrize(
    "code",
    [
        "def check(path):\n    return os.path.exists(path)\ncheck('a.csv')\nopen('a.csv')",
        "p.add_argument('--load', type=str, default=False)\na = p.parse_args()\nif a.load:\n    open('a.csv')",
        "def made():\n    path = 'a.csv'\n    unknown(path)\n    return path\nopen(made())",
    ],
    ids=["checked before", "an option that is off", "perhaps made by what returns it"],
)
def test_a_file_that_a_run_can_do_without_is_not_missing(tmp_path: Path, code: str) -> None:
    target = target_of(tmp_path, code)
    assert not [*missing_inputs(Job(project=tmp_path, target=target), script_facts(target, tmp_path).reads)]


@pytest.mark.parametrize(
    ("code", "args", "missing"),
    [
        ("C.PATH = 'a.csv'\nopen(C.PATH)", (), "a.csv"),
        ("C.PATH = 'a.csv'\nC.merge_from_list(argv)\nopen(C.PATH)", ("PATH", "b.csv"), "b.csv"),
        ("C.PATH = 'a.csv'\nC.merge_from_file(unknown())\nopen(C.PATH)", (), ""),
        ("C.PATH = 'a.csv'\nC.update(unknown())\nopen(C.PATH)", (), ""),
        ("C.PATH = 'a.csv'\nsetattr(C, *unknown())\nopen(C.PATH)", (), ""),
        ("if unknown():\n    C.PATH = 'a.csv'\nopen(C.PATH)", (), ""),
        ("C.PATH = 'a.csv'\nother = unknown()\nopen(other.PATH)", (), ""),
    ],
    ids=["alone", "typed", "a file", "another table", "any", "by a condition", "of another object"],
)
def test_a_setting_of_code_counts_where_nothing_unknown_replaces_it(
    tmp_path: Path, code: str, args: tuple[str, ...], missing: str
) -> None:
    source = f"from yacs.config import CfgNode\nC = CfgNode()\n{code}\n"
    facts = script_facts(target_of(tmp_path, source, *args), tmp_path)
    assert [each.path for each in facts.reads] == [missing] * bool(missing)


def test_reads_behind_many_checks_take_no_time_for_each_pair(tmp_path: Path) -> None:
    lines = [f"os.path.exists('e/{each}')" for each in range(3000)] + [f"open('d/{each}')" for each in range(500)]
    target, before = target_of(tmp_path, "\n".join(lines)), process_time()
    assert len(script_facts(target, tmp_path).reads) == 500
    assert process_time() - before < 5


@pytest.mark.parametrize(
    ("ignored", "value", "named"),
    [
        ("/models/*\n", "models/Qwen3-0.6B", True),
        ("models\n", "models/Qwen3-0.6B", True),
        ("*.pt\n", "models/Qwen3-0.6B", False),
        ("/models/*\n", "Qwen/Qwen3-0.6B", False),
        ("/models/*\n", "gpt2", False),
        ("", "nets/Qwen3-0.6B", True),  # a folder of the project
    ],
)
def test_a_model_below_a_local_folder_is_an_input_and_no_name_of_the_hub(
    tmp_path: Path, ignored: str, value: str, named: bool
) -> None:
    source = "from transformers import AutoModel\nclass Net:\n    def __init__(self, model_name):\n"
    source += "        self.net = AutoModel.from_pretrained(model_name)\np.add_argument('--config')\n"
    source += "c = yaml.safe_load(open(p.parse_args().config))\nNet(**c['params'])\n"
    (tmp_path / "nets").mkdir()
    (tmp_path / ".gitignore").write_text(ignored)
    (tmp_path / "c.yaml").write_text(f"params:\n  model_name: {value}\n")
    target = target_of(tmp_path, source, "--config", "c.yaml")
    found = "".join(not_found(Job(project=tmp_path, target=target), script_facts(target, tmp_path).inputs, ()))
    assert (value in found) == named


@pytest.mark.parametrize(("keyword", "named"), [("ckpt_path", True), ("last_path", False)])
def test_a_checkpoint_of_fit_is_read_although_the_run_writes_to_its_folder(
    tmp_path: Path, keyword: str, named: bool
) -> None:
    source = "from lightning.pytorch import Trainer, callbacks\n"
    source += "keep = callbacks.ModelCheckpoint(dirpath='/import/me/ckpt')\n"
    source += f"Trainer(callbacks=[keep]).fit(net, {keyword}='/import/me/ckpt/e9.ckpt')\n"
    reads = script_facts(target_of(tmp_path, source), tmp_path).reads
    assert [each.path for each in reads if each.path.endswith("e9.ckpt")] == ["/import/me/ckpt/e9.ckpt"] * named


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("lightgbm.LGBMClassifier(n_estimators=9)", "request no GPU: seatrial run --gpus none"),
        ("xgboost.XGBClassifier(n_estimators=9)", 'add device="cuda"'),
    ],
)
def test_boosted_trees_on_the_cpu_get_a_remedy_that_suffices(tmp_path: Path, line: str, remedy: str) -> None:
    (tmp_path / "train.py").write_text(f"import lightgbm, xgboost\nmodel = {line}\nmodel.fit(x, y)\n")
    [found] = verdicts(script_facts(Target(kind="script", value="train.py"), tmp_path).devices, 1)
    assert found.words.startswith("the script runs on the CPU: train.py:2 calls ") and found.change == remedy
