"""Paths that a script or its arguments name and the container would not have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seatrial.errors import UsageError
from seatrial.job.host_paths import missing_inputs, not_found
from seatrial.job.keys import Mount
from seatrial.job.model import DataMount, Job, Target
from seatrial.job.reading.file_calls import Read, Write
from seatrial.job.script import ScriptFacts, script_facts
from seatrial.planning import process as process_parts
from seatrial.planning.container import outside
from seatrial.planning.container.outside import (
    refuse_lost_writes,
    warn_of_lost_writes,
    warn_of_outside,
    with_host_paths,
    with_models,
)
from tables import cases

TARGET = Target(kind="script", value="code/train.py")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for folder in ("project/code", "project/inside", "data", "models v2"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "data" / "x.csv").touch()
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "x").touch()
    (tmp_path / "project" / "inside" / "x").touch()
    return tmp_path / "project"


def read(project: Path, source: str, **job: Any) -> tuple[Job, ScriptFacts]:
    (project / "code" / "train.py").write_text(source)
    return Job(project=project, target=TARGET, **job), script_facts(TARGET, project)


def test_an_absolute_path(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = project.parent / "data"
    monkeypatch.setattr(outside, "IN_IMAGES", (str(data.parent / "inside"),))  # a test's folder may be under /tmp
    source = f"open('{data}/x.csv')\nopen('{data.parent}/inside/x')\n"
    [reported] = warn_of_outside(*read(project, source))
    assert reported.endswith(f"--mount {data}/x.csv:{data}/x.csv")


def test_data_set_in_no_mount_is_named(project: Path) -> None:
    def missing(source: str, **options: Any) -> list[str]:
        job, script = read(project, source, **options)
        return [*missing_inputs(job, script.reads)]

    source = "import torchvision\ntorchvision.datasets.MNIST(root='/input/MNIST', train=True)\n"
    [reported] = missing(source)
    assert reported.startswith("code/train.py:2 reads /input/MNIST")
    assert reported.endswith("--mount DIR:/input/MNIST")
    [reported] = missing("from torchvision import datasets\ndatasets.CIFAR10('/data', train=True)\n")
    assert reported.endswith("--data DIR")
    mount = Mount(source=project.parent / "data", target="/input")
    [reported] = missing(source, mounts=(mount,))
    assert reported.endswith(f"and the mounted folder has no {mount.source}/MNIST")
    (mount.source / "MNIST").touch()
    assert not missing(source, mounts=(mount,))
    [reported] = missing("import pandas\npandas.read_csv('/home/nobody/a.csv')\n")
    assert reported.endswith("--mount DIR:/home/nobody")


TRAIN_FILE = """import argparse
import unseen
parser = argparse.ArgumentParser()
parser.add_argument("--train_file")
args = parser.parse_args()
unseen.train(args)
"""
OPTION = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--root', default='/home/nobody/data')\n"


#: Texts like paths of a machine: of a choice, a guard, a key, a default, a note, or no drive of Windows.
NO_FOLDERS = (
    '"""/data/imagenet"""\n',
    "def f():\n    '/data/imagenet'\nf()\n",
    "p.add_argument('--d', help='/data/imagenet', metavar='/data/a', choices=['/data/a', '/data/b'])\n",
    "import os\nif os.path.exists('/kaggle/input'):\n    D = '/kaggle/input/x'\n",
    "import os\nD = '/kaggle/input/x' if os.path.exists('/kaggle/input/x') else 'data'\n",
    "import os\nif '/home/me' in os.getcwd() or os.getcwd().startswith('/home/me'):\n    pass\n",
    "x = 'a'.replace('/home/me/x', 'b')\n",
    "D = {'a': '/data1/x', 'b': '/mnt/y'}.get(hostname)\n",
    "f = h5py.File(name)\nx = f['/data/images']\nf.create_dataset('/data/x')\n",
    "@app.route('/data/x')\n@app.get(path='/data/y')\ndef f():\n    pass\n",
    "rospy.Subscriber('/scratch/x', int)\nprint('/data/x')\n",
    "import os\nos.environ.setdefault('TORCH_HOME', '/data/cache')\nos.environ['HF_HOME'] = '/data/cache'\n",
    "async def f(root='/data/x', *, other='/data/y'):\n    pass\n",
    "f = lambda root='/data/x': 0\n",
    "class A:\n    root: str = '/data/x'\n",
    "from absl import flags\nflags.DEFINE_string('root', '/data/x', '')\n",
    "try:\n    open('/data/x')\nexcept OSError:\n    pass\n",
    *(f"x = r'{text}'\n" for text in ("Q:\\n", "x:\\alpha", "A:\\d+", "a:/b", "T:/x", "D:/%s", "E:/x y")),
)


@pytest.mark.parametrize(
    ("source", "words", "end"),
    [
        (
            "ROOT = '/home/nobody/data'\nLIST = '/home/nobody/data/list.txt'\n",
            (),
            "to mount it: --mount DIR:/home/nobody/data",
        ),
        (
            "ROOT = 'D:\\\\data\\\\a'\n",
            (),
            "no container has one: edit code/train.py:1; --data DIR mounts /data, for example",
        ),
        ("def f(at):\n    pass\nf('/content/x')\n", (), "to mount it: --mount DIR:/content/x"),
        ("from absl import flags\nflags.DEFINE_string('d', '/content/x', '')\n", (), "DIR:/content/x, or give --d"),
        (OPTION, (), "to mount it: --mount DIR:/home/nobody/data, or give --root"),
        (OPTION, ("--root", "data"), ""),
        ("import os\nROOT = os.environ.get('DATA', '/data/raw')\n", (), ""),
        ("def load(root='/home/nobody/data'):\n    pass\n", (), ""),
        ("import os\nA = f'{os.getcwd()}/data/cats'\nB = os.getcwd() + '/data/cats'\n", (), ""),
        ("if debug:\n    ROOT = '/home/nobody/data'\n", (), ""),
        ("train(data_dir='/home/nobody/data')\n", (), "--mount DIR:/home/nobody/data"),
        ("D = f'/data/x/{n}'\n", (), "--mount DIR:/data/x"),
        ("D = '/data/x/%d' % 3\n", (), "--mount DIR:/data/x"),
        ("D = '/data/x/${name}'\n", (), "which this machine does not have"),
        (OPTION.replace("--root", "--root-dir"), ("--root", "x"), ""),
        (OPTION + "p.set_defaults(root='/data/x')\n", ("--root=x",), ""),
        *((source, (), "") for source in NO_FOLDERS),
        ("import sys\nsys.path.append('/home/nobody/lib/dist-packages')\n", (), ""),
        ("import os\nopen(os.path.expanduser('~/sets/x.csv'))\n", (), "--mount ~/sets:/home/seatrial/sets"),
        (TRAIN_FILE + "unseen.download(args.train_file)\n", ("--train_file", "data/t.csv"), ""),
        (TRAIN_FILE, ("--train_file", "hub/name"), ""),
        (TRAIN_FILE.replace("train_file", "data_files"), ("--data_files", "data/of_a_hub.jsonl"), ""),
        (TRAIN_FILE, ("--" + "val_" * 40, "./a/b"), ""),
        ("from keras.utils import get_file\nget_file('w.h5', 'https://e.org/w.h5')\nopen('data/x')\n", (), "have"),
    ],
)
def test_path_of_the_authors_machine_is_named(project: Path, source: str, words: tuple[str, ...], end: str) -> None:
    (project / "code" / "train.py").write_text(source)
    target = Target(kind="script", value=TARGET.value, args=words)
    found = [*missing_inputs(Job(project=project, target=target), script_facts(target, project).reads)]
    assert [each.endswith(end) for each in found] == [True] * bool(end)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--train_file", "data/t.csv"), "data/t.csv (--train_file)"),
        (("--dataset", "path/to/set"), "path/to/set (--dataset)"),
        (("--dataset=path/to/set", "--depth", "3"), "path/to/set (--dataset)"),
        (("--weights", "w/best.pth"), "w/best.pth (--weights)"),
        (("data.data_dir=sets",), "sets (data.data_dir)"),
        (("samples.txt",), "samples.txt"),
        (("--dataset", "organisation/name"), ""),
        (("--model_name", "organisation/name"), ""),
        (("--data_dir", "code"), ""),
        (("--out_dir", "runs/one/two"), ""),
        (("--save_dir", "../one/two", "--log-dir", "./logs/one"), ""),
        (("--resume", "", "--url", "https://e.org/a.csv", "--date", "2026/01/02"), ""),
        (("--data", "/tmp/a/b.csv", "--shm", "/dev/shm/x", "--glob", "a/*/b.csv"), ""),
    ],
)
def test_a_typed_path_that_is_nowhere_is_named_if_nothing_shows_its_reading(
    project: Path, words: tuple[str, ...], named: str
) -> None:
    assert absent(project, "import unseen\nunseen.train()\n", words) == (named or None)


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("unseen.train(args.train_h5)\n", "cache/target.h5 (code/train.py:3)"),
        ("os.makedirs('cache')\nunseen.train(args.train_h5)\n", None),
        ("unseen.download('http://e.org')\nunseen.train(args.train_h5)\n", None),
        ("torch.load(args.train_h5)\n", "reads cache/target.h5"),
    ],
)
def test_a_default_that_is_nowhere_is_named_unless_the_run_makes_it(
    project: Path, source: str, named: str | None
) -> None:
    declared = "import argparse, os, torch, unseen\np = argparse.ArgumentParser()\n"
    declared += "p.add_argument('--train_h5', default='cache/target.h5')\nargs = p.parse_args()\n"
    assert (absent(project, declared + source, ()) or "None").endswith(str(named))


@pytest.mark.parametrize(
    ("default", "source", "named"),
    [
        (
            r"sets\own\raw",
            "load(args.data_root)",
            r"code/train.py:3 names sets\own\raw; Linux needs sets/own/raw: -- --",
        ),
        (r"sets\own\raw", "load(args.data_root.replace('\\\\', '/'))", None),
        (r"\d+\w*", "load(args.data_root)", None),
        (
            "sets/own/raw",
            "load(args.data_root)",
            "machine: sets/own/raw (code/train.py:3). If the run reads it, put it",
        ),
        ("sets/own/raw", "load()", "machine: sets/own/raw (code/train.py:3), a/b/c (code/train.py:5). If the run"),
    ],
)
def test_the_default_of_an_option_goes_before_that_of_a_function(
    project: Path, default: str, source: str, named: str | None
) -> None:
    declared = "import argparse, unseen\np = argparse.ArgumentParser()\n"
    declared += f"p.add_argument('--data_root', default=r'{default}')\nargs = p.parse_args()\n"
    declared += "def load(data_root='a/b/c'):\n    unseen.train(data_root)\n"
    job, script = read(project, f"{declared}{source}\nunseen.show(args.data_root)\n")
    found = [*not_found(job, script.inputs, ())]
    assert [str(named) in each for each in found] == [True] * bool(named)


def test_an_absent_path_of_a_configuration_is_named_and_those_for_results_are_not(project: Path) -> None:
    (project / "c.yaml").write_text("data:\n  root_dir: sets/acdc/three\n  out_dir: sets/of/results\n  n: 3/4\n")
    source = "import yaml, unseen\nc = yaml.safe_load(open('c.yaml'))\nunseen.train(c['data']['root_dir'], c.out_dir)\n"
    assert absent(project, source, ()) == "sets/acdc/three (root_dir in c.yaml:2)"


FLAGS = "from absl import flags\nflags.DEFINE_string('root', 'x', '')\nflags.DEFINE_bool('download', {}, '')\n"


@pytest.mark.parametrize(("download", "named"), [("False", "path/to/set (--root)"), ("True", None)])
def test_a_folder_that_an_option_fills_by_download_is_named_if_the_option_is_off(
    project: Path, download: str, named: str | None
) -> None:
    source = "from torchvision import datasets\nF = flags.FLAGS\ndatasets.CIFAR10(F.root, download=F.download)\n"
    assert absent(project, FLAGS.format(download) + source, ("--root=path/to/set",)) == named


@pytest.mark.parametrize(
    ("call", "named"),
    [
        ("try:\n    f()\nexcept OSError:\n    pass\n", "sets/x/a.csv (code/train.py:3)"),
        ("if unseen.mode() == 'b':\n    f()\n", None),
    ],
)
def test_a_read_below_try_is_named_and_one_of_another_mode_is_not(project: Path, call: str, named: str | None) -> None:
    assert absent(project, f"import unseen\ndef f():\n    open('sets/x/a.csv')\n{call}", ()) == named


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("c = {'train_csv': './sets/a.csv'}\nunseen.train(c['train_csv'])\n", "sets/a.csv (code/train.py:2)"),
        ("DATA_DIR = './sets/a/b'\nunseen.train(DATA_DIR)\n", "sets/a/b (code/train.py:2)"),
        ("DATA_DIR = './sets/a/b'\nunseen.train()\n", None),
        ("DATA_DIR = './sets/a/b'\nos.makedirs(DATA_DIR)\nunseen.train(DATA_DIR)\n", None),
        ("DATA_DIR = './sets/a/b'\nunseen.download('http://e.org')\nunseen.train(DATA_DIR)\n", None),
        ("TEST_FILE = 'sets/a.csv'\nif os.path.exists(TEST_FILE):\n    unseen.train(TEST_FILE)\n", None),
        ("SAVE_PATH = './sets/a/b'\nunseen.train(SAVE_PATH)\n", None),
        ("def f(root='./sets/a/b'):\n    unseen.train(root)\nf()\n", "sets/a/b (code/train.py:2)"),
        ("def f(root='./sets/a/b'):\n    if os.path.exists(root):\n        unseen.train(root)\nf()\n", None),
        ("class A:\n    data_dir = './sets/a/b'\nunseen.train(A.data_dir)\n", "sets/a/b (code/train.py:3)"),
        (
            "class A:\n    data_dir = './sets/a/b'\nclass B(A):\n    data_dir = '.'\nB.data_dir\n",
            "sets/a/b (code/train.py:3)",
        ),
        ("class A:\n    data_dir = '.'\nclass B(A):\n    data_dir = './sets/a/b'\nA.data_dir\n", None),
        ("a = 'x'\nunseen.train(data_path='sets/%s/%s.csv' % (a, 'b'))\n", "sets/x/b.csv (code/train.py:3)"),
        ("a = 'x'\nunseen.train(data_path='./sets/{}/{:d}.csv'.format(a, 2))\n", "sets/x (code/train.py:3)"),
        ("unseen.train(data_dir=my.join('sets', 'x', 'y'))\n", "sets/x/y (code/train.py:2)"),
    ],
)
def test_a_string_is_reported_if_its_name_suggests_an_input_and_nothing_creates_it(
    project: Path, source: str, named: str | None
) -> None:
    assert absent(project, f"import os, unseen, my\n{source}", ()) == named


CELEBA = "import torchvision.datasets as dsets\ndsets.celeba.CelebA(root='sets/' + 'a', download={})\n"
COLAB = "try:\n    import google.colab\n    COLAB = True\nexcept ImportError:\n    COLAB = False\n"
LISTED = "if {}:\n    csv_files = ['sets/a.csv', 'sets/b.csv']\n    f(csv_files)\n"
CHECKED = "known = os.path.exists('sets/a.csv')\nif known and True:\n    f()\nelse:\n    {}\n"
CHOSEN = "P = {{'set': {!r}}}\ndef g(name):\n    if name == 'b':\n        open('sets/b.csv')\ng(P['set'])\n"


@pytest.mark.parametrize(
    ("source", "named"),
    [
        (CELEBA.format(False), "code/train.py:4 reads sets/a"),
        (CELEBA.format(True), None),
        ("from torchvision.datasets import SVHN\nSVHN('sets/a')\n", "code/train.py:4 reads sets/a"),
        ("from torchvision.datasets import SVHN\nSVHN('sets/a', 'train', None, None, True)\n", None),
        (COLAB + LISTED.format("not COLAB"), "sets/a.csv (code/train.py:9), sets/b.csv (code/train.py:9)"),
        (COLAB + LISTED.format("COLAB"), None),
        (CHECKED.format("sys.exit('no data')"), "code/train.py:3 reads sets/a.csv"),
        (CHECKED.format("make()"), None),
        (CHOSEN.format("b"), "code/train.py:6 reads sets/b.csv"),
        (CHOSEN.format("a"), None),
    ],
)
def test_an_input_is_named_if_no_download_gives_it_and_the_code_comes_there(
    project: Path, source: str, named: str | None
) -> None:
    assert absent(project, f"import os, sys\nfrom my import f, make\n{source}", ()) == named


@pytest.mark.parametrize(("second", "sentences"), [(" + open('sets/b.csv')", 1), ("\nopen('sets/b.csv')", 2)])
def test_inputs_of_one_line_are_one_sentence(project: Path, second: str, sentences: int) -> None:
    (project / "sets").mkdir()
    (project / "sets" / "c.csv").touch()
    job, script = read(project, f"open('sets/a.csv'){second}\n")
    assert len([*missing_inputs(job, script.reads)]) == sentences


@pytest.mark.parametrize(("text", "named"), [("input_path: 'sets/a.record'", "sets/a.record"), ("lr: 'sets/a'", None)])
def test_an_absent_path_in_protobufs_text_is_named(project: Path, text: str, named: str | None) -> None:
    (project / "a.config").write_text(f"reader {{\n  {text}\n}}\n")
    shown = f"{named} (input_path in a.config:2)" if named else None
    assert absent(project, "import unseen\nunseen.train()\n", ("--pipeline", "a.config")) == shown


@pytest.mark.parametrize(("option", "named"), [("--outdir", None), ("--data", "code/train.py:5 reads sets/a")])
def test_a_typed_output_folder_that_is_only_listed_if_it_exists_is_no_input(
    project: Path, option: str, named: str | None
) -> None:
    source = f"import argparse, os\np = argparse.ArgumentParser()\np.add_argument({option!r}, dest='a')\n"
    source += "a = p.parse_args().a\nbefore = os.listdir(a) if os.path.isdir(a) else []\n"
    assert absent(project, source, (option, "sets/a")) == named


def test_a_wrappers_option_is_read_and_a_longer_option_is_a_different_one(project: Path) -> None:
    source = "import unseen\nunseen.arg('--data', default='a')\nunseen.arg('--data_dir', default='sets')\n"
    source += "args = unseen.parse_args()\nunseen.train(data_path=unseen.join(args.data_dir, args.data, 'train'))\n"
    assert absent(project, source, ("--data", "cats")) == "sets/cats/train (code/train.py:5)"


def test_a_typed_configuration_of_another_folder_of_the_project_is_not_named(project: Path) -> None:
    (project / "package" / "conf").mkdir(parents=True)
    (project / "package" / "conf" / "a.yaml").touch()
    words = ("--spec", "conf/a.yaml")
    assert absent(project, "import unseen\nunseen.train()\n", words) is None
    assert absent(project, "import unseen\nunseen.train()\n", ("--spec", "conf/b.yaml")) == "conf/b.yaml (--spec)"


def test_a_folder_of_an_absent_path_is_not_named_again(project: Path) -> None:
    words = ("sets/a/b.csv", "sets/a", "./sets/c/", "sets/a/b.csv/d.csv")
    assert absent(project, "import unseen\nunseen.train()\n", words) == "sets/a/b.csv, sets/c"


def test_a_folder_whose_name_no_file_system_takes_is_named_as_absent(project: Path) -> None:
    word = f"{'a' * 260}/x.yaml"
    assert absent(project, "import unseen\nunseen.train()\n", (word,)) == word


@pytest.mark.parametrize(("words", "which"), [(("sets/a.csv",), "it"), (("sets/a.csv", "sets/b.csv"), "one")])
def test_one_absent_path_is_it_and_several_are_one_of_them(project: Path, words: tuple[str, ...], which: str) -> None:
    (project / "code" / "train.py").write_text("import unseen\nunseen.train()\n")
    target = Target(kind="script", value=TARGET.value, args=words)
    [sentence] = not_found(Job(project=project, target=target), script_facts(target, project).inputs, ())
    assert f". If the run reads {which}, put it there" in sentence


def absent(project: Path, source: str, words: tuple[str, ...]) -> str | None:
    """Return what is named as not found; or, for want of that, the sentence about a read."""
    (project / "code" / "train.py").write_text(source)
    target = Target(kind="script", value=TARGET.value, args=words)
    job, facts = Job(project=project, target=target), script_facts(target, project)
    proved = [*missing_inputs(job, facts.reads)]
    found = [
        each.partition(". If")[0].removeprefix("Not found on this machine: ")
        for each in not_found(job, facts.inputs, proved)
    ]
    return next(iter((*found, *(each.partition(",")[0] for each in proved))), None)


def test_file_of_the_home_folder_is_there_without_a_container(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(project.parent))
    job, script = read(project, "import os\nopen(os.path.expanduser('~/data/x.csv'))\n", backend="local")
    assert not [*missing_inputs(job, script.reads)]


def test_paths_of_equal_beginning_are_two(project: Path) -> None:
    (project / "code" / "train.py").write_text("A = '/home/nobody/data'\nB = '/home/nobody/data2'\n")
    assert len(script_facts(TARGET, project).reads) == 2


def lost(project: Path, source: str, *, build: bool = True, **job: Any) -> str:
    """The refusal's advice, or the warnings."""
    made, script = read(project, source, **job)
    made, _ = with_models(made, script)
    try:
        refuse_lost_writes(made, script, build=build)
    except UsageError as error:
        return f"refused: {error.run}"
    return "\n".join(warn_of_lost_writes(made, script))


@pytest.mark.parametrize(("copied", "parent"), [(".", ".."), ("src", ".")])
def test_a_folder_that_gets_a_copy_of_the_project_is_mounted_from_outside_it(
    project: Path, copied: str, parent: str
) -> None:
    source = "import os, shutil, time\nout = os.path.join('/runs/of', time.strftime('%Y-%m-%d'))\n"
    source += f"shutil.copytree('{copied}', os.path.join(out, 'code'))\nopen(os.path.join(out, 'a.txt'), 'w')\n"
    with pytest.raises(UsageError, match=r"writes /runs/of/20\*/") as refused:
        refuse_lost_writes(*read(project, source), build=True)
    assert str(refused.value.run).endswith(f"seatrial run … --mount {parent}/runs:/runs")


@cases("path", "mount")
def test_certain_write_outside_is_refused_with_its_mount(project: Path, path: str, mount: str) -> None:
    made = "mkdir -p ../weights && " if mount[0:2] == ".." else ""
    assert lost(project, f"torch.save(m, '{path}')") == f"refused: {made}seatrial run … --mount {mount}"


def test_a_file_next_to_the_scripts_folder_names_the_folder_to_start_in(project: Path) -> None:
    source = "open('../own.txt', 'w')"
    assert lost(project, source).endswith(", or start the script in its folder, --workdir code")
    assert not lost(project, source, workdir="code")
    in_folder = "def save(n):\n    open(f'../inside/{n}.txt', 'w')\nsave(name())"
    assert lost(project, in_folder).endswith("on this machine: start the script in its folder, --workdir code")
    assert not lost(project, f"import os\nos.chdir(os.path.dirname(__file__))\n{source}")


def test_a_file_at_the_root_of_the_container_is_a_warning_unless_the_root_is_writable(project: Path) -> None:
    warned = lost(project, "open('/sibling.txt', 'w')")
    assert warned.endswith(
        "a file at the container's root, which is read-only: edit code/train.py:1, or add --writable"
    )
    assert lost(project, "open('/sibling.txt', 'w')", writable=True) == ""
    assert lost(project, "open('/sibling.txt')") == ""


def test_write_to_read_only_data_is_a_warning(project: Path) -> None:
    source = "open('/data/a', 'w')"
    assert lost(project, source).endswith("--mount ./data:/data")
    data = DataMount(source=project / "inside", read_only=True)
    assert lost(project, source, data=data).endswith("--data DIR:rw")
    assert lost(project, source, data=data.model_copy(update={"read_only": False})) == ""


def test_models_is_mounted_where_the_script_writes_or_reads_it(project: Path) -> None:
    def models(source: str, **job: Any) -> tuple[DataMount | None, str]:
        made, choices = with_models(*read(project, source, **job))
        return made.models, choices[0].reason if choices else ""

    mounted = DataMount(source=project / "models", read_only=False)
    certain = models("torch.save(m, '/models/a.pt')")
    assert certain == (mounted, "code/train.py:1 writes /models/a.pt; another folder: --models DIR")
    assert models("if x:\n    torch.save(m, '/models/run/a.pt')")[0] == mounted
    assert models("torch.load('/models/a.pt')") == (None, "")
    (project / "models").mkdir()
    assert models("torch.load('/models/a.pt')")[0] == mounted
    assert models("torch.save(m, '/models2/a.pt')") == (None, "")
    own = DataMount(source=project / "inside", read_only=False)
    assert models("torch.save(m, '/models/a.pt')", models=own) == (own, "")
    mount = Mount(source=project / "inside", target="/models")
    assert models("torch.save(m, '/models/a.pt')", mounts=(mount,)) == (None, "")


def test_local_run_refuses_a_certain_write_where_the_user_cannot(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(source: str) -> None:
        process_parts._refuse_unwritable(read(project, source)[1])

    plan("open('/missing/folder/a', 'w')")
    monkeypatch.setattr(process_parts.os, "access", lambda path, mode: str(path) != "/")
    for source in ("open('/missing/folder/a', 'w')", "import os\nos.makedirs(f'/missing/folder/{x}')"):
        with pytest.raises(UsageError, match="this user cannot write to /:") as refused:
            plan(source)
        assert refused.value.run is not None and "/missing/folder " in refused.value.run
    plan("if x: open('/missing/folder/a', 'w')")
    plan(f"open('{project}/new/a', 'w')")


# ----------------------------------------------------- what the arguments name


def job_of(project: Path, *arguments: str, **fields: Any) -> Job:
    return Job(project=project, target=Target(kind="script", value="train.py", args=arguments), **fields)


def test_outside_is_read_only_and_inside_is_writable(tmp_path: Path) -> None:
    project, data = tmp_path / "project", tmp_path / "data"
    (project / "own").mkdir(parents=True)
    data.mkdir()
    named = job_of(project, "--data", str(data), "--out", str(project / "own"))
    job, choices, warnings = with_host_paths(named, ScriptFacts(), build=True)
    mounts = [(mount.target, mount.read_only) for mount in job.mounts]
    assert mounts == [(str(data), True), (str(project / "own"), False)]
    assert [choice.reason for choice in choices] == ["--data names it", "--out names it"]
    assert warnings == ()


def test_a_folder_for_results_outside_is_refused_with_the_option(tmp_path: Path) -> None:
    job = job_of(tmp_path, "--output_dir", "/mnt/results")
    with pytest.raises(UsageError, match="--output_dir /mnt/results is a folder for results") as refusal:
        with_host_paths(job, ScriptFacts(), build=True)
    assert refusal.value.run == "mkdir -p /mnt/results && seatrial run … --mount /mnt/results:/mnt/results"
    mounted = job.changed(mounts=({"source": "/mnt", "target": "/mnt/results", "read_only": False},))
    assert with_host_paths(mounted, ScriptFacts(), build=True)[0] == mounted


@pytest.mark.parametrize("option", ["--work_path", "--output_dir"])
def test_a_windows_path_is_never_to_be_mounted(tmp_path: Path, option: str) -> None:
    _, _, [warning] = with_host_paths(job_of(tmp_path, option, "E:/Project/data/"), ScriptFacts(), build=True)
    assert warning == f"{option} E:/Project/data/: no container has a Windows path"


def test_a_folder_for_results_in_tmp_is_named(tmp_path: Path) -> None:
    (project := tmp_path / "project").mkdir()
    (out := tmp_path / "out").mkdir()
    same, _, [warning] = with_host_paths(job_of(project, "--out", str(out)), ScriptFacts(), build=True)
    assert same.mounts == () and warning.endswith(f"--mount {out}:{out}")


def test_paths_of_another_machine_beyond_the_first_three_are_named_in_one_line(tmp_path: Path) -> None:
    lines = [f"path{number}: /root/autodl-tmp/set{number}" for number in range(8)]
    for count in (3, 8):
        (tmp_path / "o.yml").write_text("\n".join(lines[:count]))
        _, _, warnings = with_host_paths(job_of(tmp_path, "-opt", "o.yml"), ScriptFacts(), build=True)
        assert [each.endswith("this machine has no such file or folder") for each in warnings[:3]] == [True] * 3
        rest = ("o.yml:4 /root/autodl-tmp/set3", "o.yml:5 /root/autodl-tmp/set4", "o.yml:6 /root/autodl-tmp/set5")
        assert warnings[3:] == (f"not on this machine either: {', '.join(rest)} and 2 more",) * (count == 8)


def test_a_missing_path_is_named_and_paths_of_images_are_not(tmp_path: Path) -> None:
    job = job_of(
        tmp_path,
        "--data",
        "/nowhere/imagenet",
        "--sh",
        "/bin/sh",
        "--out",
        "/tmp/x",
        "--d",
        "/workspace/a",
        "--weight",
        "0.1",
    )
    same, choices, warnings = with_host_paths(job, ScriptFacts(), build=True)
    assert (same, choices) == (job, ())
    assert warnings == ("--data /nowhere/imagenet: this machine has no such file or folder",)
    read = Read("/nowhere/imagenet/a.csv", "train.py:3", "--data")  # which is named by itself
    assert with_host_paths(job, ScriptFacts(reads=(read,)), build=True) == (job, (), ())


# --------------------------------------------------------------------- trackers


def test_a_write_below_a_folder_that_an_option_names_asks_for_a_writable_mount(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = project.parent / "data"
    monkeypatch.setattr(outside, "IN_IMAGES", ())  # a test's folder may be under /tmp
    monkeypatch.setattr(outside, "WRITABLE", ())
    target = Target(kind="script", value="code/train.py", args=("--root", str(data)))
    write = Write(f"{data}/out/a.json", False, "train.py:3", False)
    _, _, [warning] = with_host_paths(Job(project=project, target=target), ScriptFacts(writes=(write,)), build=True)
    assert "mounted read-only" in warning and warning.endswith(f"--mount {data}:{data}")
    _, _, warnings = with_host_paths(Job(project=project, target=target), ScriptFacts(), build=True)
    assert not warnings
    there = Write(str(data), True, "train.py:2", True)  # making it again does no harm
    facts = ScriptFacts(writes=(write, there))
    assert with_host_paths(Job(project=project, target=target), facts, build=True)[2] == (warning,)
    facts = ScriptFacts(writes=(there, replace(write, certain=True)))
    with pytest.raises(UsageError, match=r"train.py:3 writes .*/data/out/a.json, and --root .* read-only") as refusal:
        with_host_paths(Job(project=project, target=target), facts, build=True)
    assert refusal.value.run == f"seatrial run … --mount {data}:{data}"


OF_FILE = "import configargparse\np = configargparse.ArgParser()\np.add('-c', '--config', is_config_file=True)\n"
OF_FILE += "p.add('--root', default='')\nargs = p.parse_args()\nopen(args.root + '.json')\n"
CAUGHT = """import argparse, os
p = argparse.ArgumentParser()
p.add_argument('--kind', default='cats')
args = p.parse_args()
def cats():
    open('./data/cats.csv')
def dogs():
    open('./data/dogs.csv')
try:
    if args.kind == 'cats':
        cats()
    else:
        dogs()
except Exception as error:
    print(error)
"""
TYPED = "import sys\npath = sys.argv[1] if len(sys.argv) > 1 else 'sets/a.csv'\nopen(path)\n"
PASSED = (
    "class H:\n    data = {'root': './sets/a.csv'}\nh = H()\ndef load(root=None):\n    open(root)\nload(**h.data)\n"
)


@pytest.mark.parametrize(
    ("source", "words", "named"),
    [
        ("A, B = 'sets/a.csv', 'sets/b.csv'\nboth = (A, B)\nopen(both[1])\n", (), "code/train.py:3 reads sets/b.csv"),
        (OF_FILE, ("-c", "no.yaml"), "code/train.py:3 reads no.yaml"),
        (OF_FILE, ("-c", "own.txt"), "code/train.py:6 reads sets/x.json"),
        (CAUGHT, (), "data/cats.csv (code/train.py:6)"),
        (PASSED, (), "code/train.py:5 reads sets/a.csv"),
        (PASSED.replace("load(**", "h.data['root'] = unseen()\nload(**"), (), "sets/a.csv (code/train.py:2)"),
        (PASSED.replace("load(**", "h.data.update(unseen())\nload(**"), (), "sets/a.csv (code/train.py:5)"),
        (PASSED.replace("'}", "', **unseen()}"), (), "sets/a.csv (code/train.py:5)"),
        (
            "table = {'a': 'sets/a.csv'}\nif unseen():\n    table = {}\nopen(table['a'])\n",
            (),
            "sets/a.csv (code/train.py:4)",
        ),
        (TYPED, (), "code/train.py:3 reads sets/a.csv"),
        (TYPED, ("no.csv",), "code/train.py:3 reads no.csv"),
        (TYPED.replace("path =", "sys.argv = unseen()\npath ="), ("no.csv",), "no.csv"),
        (TYPED.replace("len(sys.argv) > 1", "sys.argv[1] == 'b'"), ("no.csv",), "no.csv"),
        (
            "import sys\nopen('sets/a.csv' if sys.argv[1] == 'b' else 'own.txt')\n",
            ("b",),
            "sets/a.csv (code/train.py:2)",
        ),
        ("both = [*unseen(), 'sets/a.csv', 'sets/b.csv']\nopen(both[1])\n", (), None),
        ("import unseen\nunseen.train()\n", ("--config", "config.yaml"), "config.yaml (--config)"),
        ("import unseen\nunseen.train()\n", ("--market_path", "market_path"), "market_path (--market_path)"),
        ("import unseen\nunseen.train()\n", ("--model_path", "model_path"), None),
    ],
)
def test_an_absent_input_is_named_behind_a_tuple_a_file_of_options_a_try_and_a_table(
    project: Path, source: str, words: tuple[str, ...], named: str | None
) -> None:
    (project / "own.txt").write_text("root = sets/x\n")
    assert absent(project, source, words) == named


def test_a_word_of_another_sentence_hides_no_path(project: Path) -> None:
    reads = [Read("data/x.csv", "train.py:1", None)]
    job = Job(project=project, target=TARGET)
    assert [*not_found(job, reads, ("no data is there",))]
    assert not [*not_found(job, reads, ("train.py:1 reads data, which is missing",))]
