"""Facts from reading a script: imports, framework, launcher, the Python and the Keras backend that it needs."""

from __future__ import annotations

import hashlib
import re
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from planning_sites import facts_of
from seatrial.errors import ConfigError, TargetError, UsageError
from seatrial.images.plan import plan_image
from seatrial.job.model import Job, Target
from seatrial.job.reading.keras_names import with_keras_backend
from seatrial.job.reading.modules import EVERYWHERE, STANDARD_MODULES
from seatrial.job.script import ScriptFacts, script_facts, source_digest, source_facts, why_useless
from tables import cases, constant


def test_imports_leave_out_the_standard_library_and_the_project(tmp_path: Path) -> None:
    source = "import os, torch.nn as nn\nfrom model import Net\nimport seatrial\n"
    found = facts_of(tmp_path, source, model="import numpy\n")
    assert found.imports == ("numpy", "torch")
    assert found.files == ("train.py", "model.py")
    assert found.framework == "torch"


def useless(project: Path, script: str) -> TargetError | None:
    job = Job(project=project, target=Target(kind="script", value=script))
    return next(why_useless(job, source_facts(job)), None)


@pytest.mark.parametrize(
    ("end", "refused"),
    [
        *((each, True) for each in ("", "LR = 0.1", "'a text'", "class Net: pass", "if __name__ == '__main__': pass")),
        *(
            (each, False)
            for each in (
                "train()",
                "if True: train()",
                "x = train()",
                "for x in train(): pass",
                "@print\ndef f(): pass",
            )
        ),
    ],
)
def test_a_script_that_only_defines_is_refused(tmp_path: Path, end: str, refused: bool) -> None:
    (tmp_path / "train.py").write_text(f"import torch\ndef train(): torch.zeros(1).cuda()\n{end}\n")
    assert ("does nothing" in str(useless(tmp_path, "train.py"))) is refused


def test_a_script_that_computes_constants_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("rows = b'x' * 1_000_000_000\n")
    assert useless(tmp_path, "train.py") is None


@pytest.mark.parametrize(
    ("source", "words", "run"),
    [
        ("x.cuda(async=True)\n", "train.py:1: .* x.cuda", r"find \S+ -name '\*.py' -exec sed .*non_blocking"),
        (f"{'x' * 90}.cuda(1, async=True)\n", "x…", "non_blocking"),
        ("from async import x\n", "async is a keyword|from async", "rename"),
        ("if 1:\n\tx = 1\n        y = 2\n", "tabs", "expand -i"),
        ("x = (\ny = 2\n", "never closed: x = ", "EDITOR:-vi} .1 "),
    ],
)
def test_what_does_not_parse_is_shown_with_a_change(tmp_path: Path, source: str, words: str, run: str) -> None:
    (tmp_path / "train.py").write_text(source)
    with pytest.raises(TargetError, match=words) as caught:
        script_facts(Target(kind="script", value="train.py"), tmp_path)
    assert caught.value.run and re.search(run, caught.value.run)


@pytest.mark.parametrize(
    ("source", "refused"),
    [
        ("from google.colab import drive\ndrive.mount('/content/drive')\n", True),
        ("def main():\n    import google.colab.files\nmain()\n", True),
        ("try:\n    import google.colab\nexcept ImportError:\n    pass\n", False),
        ("import sys\nsys.modules['google.colab'] = sys\nfrom google.colab import drive\n", False),
        ("import sys\nif 'google.colab' in sys.modules:\n    from google.colab import drive\n", False),
    ],
)
def test_an_import_that_colab_alone_has_is_refused(tmp_path: Path, source: str, refused: bool) -> None:
    with pytest.raises(TargetError, match="exists only in Colab") if refused else nullcontext():
        facts_of(tmp_path, source)
    (tmp_path / "train.py").write_text(source)
    script_facts(Target(kind="script", value="train.py"), tmp_path, any_python=True)  # an image may be Colab's
    (tmp_path / "google").mkdir()
    (tmp_path / "google/colab.py").touch()
    script_facts(Target(kind="script", value="train.py"), tmp_path)


def test_an_idle_file_names_the_scripts_that_use_it(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("class Net: pass\n")
    (tmp_path / "main.py").write_text("from net import Net\nif __name__ == '__main__':\n    Net()\n")
    refusal = useless(tmp_path, "net.py")
    assert refusal is not None and "net.py" in refusal.message and refusal.run == "seatrial run main.py"


@pytest.mark.parametrize(
    "line",
    [
        "os.system('python3 net.py ' + flags)",
        "subprocess.run([sys.executable, '-u', 'net.py', '--lr', rate])",
        "for seed in (1, 2): os.system(f'CUDA_VISIBLE_DEVICES=0 torchrun --standalone net.py {seed}')",
        "'python missing.py'; import net",
        "for name, script in [('a', 'net.py')]: subprocess.run([sys.executable, script])",
    ],
)
def test_a_file_that_the_script_starts_is_read(tmp_path: Path, line: str) -> None:
    assert facts_of(tmp_path, f"import os, subprocess, sys\n{line}\n", net="import torch\n").imports == ("torch",)


@pytest.mark.parametrize(
    ("line", "reads"),
    [
        ("runpy.run_path(str(Path(__file__).parent / 'net.py'), run_name='__main__')", True),
        ("run_module('net', None, '__main__')", True),
        ("exec(open('net.py').read())", True),
        ("exec(compile(open('net.py').read(), 'net.py', 'exec'))", True),
        ("runpy.run_path('net.py')", False),  # its __name__ is <run_path>
        ("if len(sys.argv) > 3: runpy.run_path('net.py', run_name='__main__')", False),
        ("exec('net.py')", False),
        ("runpy.run_path(sys.argv[1])", False),
    ],
)
def test_a_script_that_runs_in_this_process_is_read_like_this_one(tmp_path: Path, line: str, reads: bool) -> None:
    net = "if __name__ == '__main__':\n    open('data/train.csv')\n    print(named_by_the_other)\n"
    found = facts_of(
        tmp_path, f"import runpy, sys\nfrom pathlib import Path\nfrom runpy import run_module\n{line}\n", net=net
    )
    assert ("net.py:2 reads data/train.csv" in map(str, found.reads)) is reads
    assert not found.failing


@pytest.mark.parametrize("line", ["os.system('python loop.py')", f"[0x{'f' * 5000}]"], ids=["loop", "long number"])
def test_what_cannot_be_started_is_no_file(tmp_path: Path, line: str) -> None:
    (tmp_path / "loop.py").symlink_to("loop.py")
    assert facts_of(tmp_path, f"import os, torch\n{line}\n").imports == ("torch",)


@pytest.mark.parametrize(
    ("name", "of_today", "line", "where"),
    [
        ("numpy.int", "import numpy as np\nx = np.bool, np.int64", "area(y.astype(np.int))", "np.int"),
        ("numpy.2", "import numpy as np\nx = np.inf, np.float64, np.prod, math.sqrt", "np.math.sqrt(2)", "np.math"),
        ("numpy.2", "import numpy as np\nx = np.matmul, np.nan, np.char", "np.mat([1])", "np.mat"),
        ("numpy.4", "import numpy as np\nx = np.trapezoid, np.isin", "np.trapz([1])", "np.trapz"),
        ("yaml.load", "import yaml\nyaml.load(f, yaml.FullLoader)", "cfg = yaml.load(f)", "yaml.load(…)"),
        ("yaml.load", "import yaml\nyaml.load(f, Loader=yaml.FullLoader)", "cfg = yaml.load(f)", "yaml.load(…)"),
        ("torchtext.data.Field", "from torchtext import data\ndata.utils", "text = data.Field()", "data.Field"),
        (
            "torch.Tensor.data[0]",
            "import torch\nx.data[0], loss.data, losses.data[0], loss_weights.data[0]",
            "s += loss_l.data[0]",
            "loss_l.data[0]",
        ),
    ],
)
def test_names_that_packages_removed_are_found(tmp_path: Path, name: str, of_today: str, line: str, where: str) -> None:
    assert name not in facts_of(tmp_path, of_today).modules
    assert facts_of(tmp_path, f"{of_today}\n{line}\n").modules[name] == f"train.py:3 {where}"
    assert name not in facts_of(tmp_path, line).modules  # data.Field of the project's own module


@pytest.mark.parametrize(
    ("line", "video"),
    [
        ("iio.mimsave(os.path.join(out, f'{step}.mp4'), frames)", True),
        ("iio.get_writer(out / 'run.avi', fps=30)", True),
        ("iio.mimsave(f'{step}.gif', frames)", False),
        ("cv2.VideoWriter('run.mp4')", False),
    ],
)
def test_a_video_of_imageio_is_found(tmp_path: Path, line: str, video: bool) -> None:
    modules = facts_of(tmp_path, f"import os\nimport cv2\nimport imageio.v2 as iio\n{line}\n").modules
    assert ("imageio.video" in modules) == video


@pytest.mark.parametrize(
    ("checked", "counted"), [("np, 'float'", False), ("np, 'double'", True), ("other, 'float'", True)]
)
def test_a_removed_name_counts_unless_the_code_checks_for_it(tmp_path: Path, checked: str, counted: bool) -> None:
    source = f"import numpy as np\ndef kind():\n    if hasattr({checked}):\n        return np.float\nkind()\n"
    assert ("numpy.int" in facts_of(tmp_path, source).modules) is counted


@pytest.mark.parametrize(("check", "asks"), [("if not sys.stdin.isatty():\n    exit()\n", False), ("", True)])
def test_a_question_counts_unless_the_code_looks_for_a_terminal(tmp_path: Path, check: str, asks: bool) -> None:
    assert bool(facts_of(tmp_path, f"import sys\n{check}answer = input()\n").asks_evidence) is asks


@pytest.mark.parametrize(
    ("line", "warned"),
    [
        ("os.system('curl -sL https://example.org/x | bash')", True),
        ("subprocess.run('wget -qO- https://example.org/x | sudo sh', shell=True)", True),
        ("os.system('curl https://example.org/x | sha256sum')", False),
        ("os.system('curl https://example.org/x | bash-format')", False),
        ("print('curl -sL https://example.org/x | bash')", False),
        ("if False: os.system('curl -sL https://example.org/x | bash')", False),
    ],
)
def test_a_downloaded_script_in_a_shell_is_named(tmp_path: Path, line: str, warned: bool) -> None:
    found = facts_of(tmp_path, f"import os, subprocess\n{line}\n").misfits
    assert found == ("train.py:2 runs a downloaded script in a shell: read the script first",) * warned


@pytest.mark.parametrize("future", ["division", "annotations"])
def test_annotations_that_python_evaluates_use_names(tmp_path: Path, future: str) -> None:
    local = f"from __future__ import {future}\nimport numpy as np\ndef f():\n    x: np.float = 1\nf()\n"
    assert "numpy.int" not in facts_of(tmp_path, local).modules
    assert ("numpy.int" in facts_of(tmp_path, f"{local}y: np.float = 1\n").modules) is (future == "division")


@pytest.mark.parametrize(
    "part",
    [
        "class Net(pl.LightningModule):\n    def validation_epoch_end(self, outputs): ...",
        "pl.Trainer(gpus=2, max_epochs=3)",
        "pl.Trainer(devices=2, strategy='ddp' if several else None)",
        "pl.Trainer.from_argparse_args(args)",
    ],
)
def test_names_that_lightning_2_removed_are_found(tmp_path: Path, part: str) -> None:
    source = "import pytorch_lightning as pl\n"
    new = "class Net(pl.LightningModule):\n    def on_validation_epoch_end(self): ...\npl.Trainer(strategy='')\n"
    assert "pytorch_lightning.1" not in facts_of(tmp_path, source + new).modules
    assert facts_of(tmp_path, source + part + "\n").modules["pytorch_lightning.1"].startswith("train.py:")


@pytest.mark.parametrize(
    ("line", "arguments", "imports"),
    [
        ("import_module('nets.{}.{}'.format(args.kind, args.name))", ("big", "unet"), ("scipy",)),
        ("importlib.import_module(f'nets.big.{args.name}')", ("--name=unet",), ("scipy",)),
        ("importlib.import_module('nets.' + kind)", ("big",), ("pandas",)),
        ("__import__('nets.big.unet')", (), ("scipy",)),
        ("import_module(f'nets.big.{args.name}')", ("--name", "resnet"), ()),
        ("import_module(args.anything)", ("unet",), ()),
        ("import_module(table['module'])", ("-C", "nets/c.json"), ("scipy",)),
        ("import_module(table['module'])", ("-C", "nets/c.json5"), ("scipy",)),
        ("import_module(f'nets.big.{args.a}{args.b}')", ("u", "net"), ()),  # two names in one part
        ("import_module('os')", (), ()),
        ("import_module(f'.{args.name}', package='nets.big')", ("--name", "unet"), ("scipy",)),
        ("import_module('.' + config['net'], 'nets')", ("nets/c.yaml",), ("pandas",)),
        ("import nets.loader", ("--name", "unet"), ("scipy",)),
    ],
)
def test_a_module_that_the_arguments_name_is_read(
    tmp_path: Path, line: str, arguments: tuple[str, ...], imports: tuple[str, ...]
) -> None:
    texts = {"nets/__init__.py": "", "nets/big/__init__.py": "import pandas", "nets/big/unet.py": "import scipy"}
    texts |= {
        "nets/c.json": '{"lr": 0.1, "module": "nets.big.unet", "url": "nets.gone.x"}',
        "nets/c.json5": "{module: 'nets.big.unet', /* or another */}",
        "nets/c.yaml": "net: big  # or other\n",
        "nets/loader.py": "import_module(f'.big.{args.name}', __package__)",
    }
    for name, text in {**texts, "nets/other.py": "import einops", "train.py": f"import importlib\n{line}\n"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    found = script_facts(Target(kind="script", value="train.py", args=arguments), tmp_path)
    assert set(imports) <= set(found.imports) and "einops" not in found.imports


@pytest.mark.parametrize(
    ("made", "arguments", "imports"),
    [
        ("args.env", ("--env", "One-v0"), {"scipy"}),
        ("args.env", ("--env=Two-v0",), {"einops"}),
        ("'Two-v0'", (), {"einops"}),
        ("'Two-v0'", ("--env", "One-v0"), {"scipy"}),
        ("args.env", (), set()),
    ],
)
def test_the_module_of_the_environment_that_gym_makes_is_read(
    tmp_path: Path, made: str, arguments: tuple[str, ...], imports: set[str]
) -> None:
    texts = {"envs/one.py": "import scipy\n", "envs/two.py": "import einops\n"}
    texts["envs/__init__.py"] = (
        "from gym.envs.registration import register\nregister(id='One-v0', entry_point='envs.one:One')\n"
        "register('Two-v0', entry_point='envs.two:Two')\n"
        "register(entry_point='envs.one:One')\nregister('\\ud800', entry_point='envs.two:Two')\n"
    )
    for name, text in {**texts, "train.py": f"import gym\nimport envs\ngym.make({made})\n"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = script_facts(Target(kind="script", value="train.py", args=arguments), tmp_path)
    assert {*found.imports} & {"scipy", "einops"} == imports


@pytest.mark.parametrize(
    ("arguments", "imports"),
    [
        ((), ("hydra", "scipy", "torch")),
        (("model=big",), ("einops", "hydra", "torch")),
        (("+experiment=one",), ("einops", "hydra", "torch")),
        (("--config-name=x", "model@net=net"), ("hydra", "scipy", "torch")),
    ],
)
def test_what_a_configuration_of_hydra_composes_is_needed(
    tmp_path: Path, arguments: tuple[str, ...], imports: tuple[str, ...]
) -> None:
    texts = {
        "conf/main.yaml": "defaults:\n- _self_\n- model: net\n- optional /model/loss: l1\n",
        "conf/model/net.yaml": "_target_: src.net.Net\n",
        "conf/model/big.yaml": "_target_: 'src.big.Net'\n",
        "conf/model/loss/l1.yaml": "_target_: torch.nn.L1Loss\n",
        "conf/experiment/one.yaml": "defaults:\n- override /model: big\n",
        "src/net.py": "class Net:\n    def __init__(self):\n        import scipy\n",
        "src/big.py": "import einops\nclass Net: ...\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    source = "import hydra\n@hydra.main(config_path='conf', config_name='main')\ndef main(cfg): ...\nmain()\n"
    (tmp_path / "train.py").write_text(source)
    assert script_facts(Target(kind="script", value="train.py", args=arguments), tmp_path).imports == imports


@pytest.mark.parametrize(
    ("arguments", "reads"),
    [
        ((), ["data/a/x.pt", "weights/small/w.pth"]),
        (("codec.name=big", "name=b"), ["data/b/x.pt", "weights/big/w.pth"]),
        (("codec.weights=${env}/w.pth", "name=${oc.env:NAME}"), ["data"]),
    ],
)
def test_an_object_that_hydra_makes_reads_what_its_settings_name(
    tmp_path: Path, arguments: tuple[str, ...], reads: list[str]
) -> None:
    texts = {
        "conf/main.yaml": "defaults:\n- codec: dac\n- data: no\nname: a\nroot:\n  path: data/${name}/x.pt\n",
        "conf/codec/dac.yaml": "_target_: src.Codec\nweights: weights/${codec.name}/w.pth\nname: small\n",
        "conf/data/no.yaml": "_target_: src.Codec\nweights: not/made.pth\n",
        "src/__init__.py": "from src.codec import Codec\n",
        "src/codec.py": "import torch\nfrom src.base import Base\nclass Codec(Base):\n"
        "    def __init__(self, weights, **more):\n        torch.load(weights)\n",
        "src/base.py": "import subprocess as s\nclass Base:\n    def __getitem__(self, at):\n        s.run(['sox'])\n",
        "train.py": "import hydra, torch\n@hydra.main(config_path='conf', config_name='main')\ndef main(config):\n"
        "    hydra.utils.instantiate(config.codec)\n    torch.load(config.root.path)\nmain()\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    facts = script_facts(Target(kind="script", value="train.py", args=arguments), tmp_path)
    assert sorted(each.path for each in facts.reads if each.path[:4] != "conf") == reads
    assert "subprocess.sox" in facts.modules


_MAIN = "import hydra\n@hydra.main(config_path='.', config_name='c')\ndef main(cfg):\n"
_MAKES_M = f"{_MAIN}    hydra.utils.instantiate(cfg.m)\nmain()\n"
_MADE = "    def __init__(self, a=0, path='default.csv'):\n"


@pytest.mark.parametrize(
    ("config", "body", "call", "reads"),
    [
        ("a: false", "open('on.csv') if a else open('off.csv')", "(cfg.m)", ["off.csv"]),
        ("a: 5", "open('five.csv') if a == 5 else open('other.csv')", "(cfg.m)", ["five.csv"]),
        ("path: null", "path and open(path)", "(cfg.m)", []),
        ("path: [a.csv]", "open(path)", "(cfg.m)", []),
        ("path: ${oc.env:DATA}", "open(path)", "(cfg.m)", []),
        ("path: ${m.path}", "open(path)", "(cfg.m)", []),
        ("path: '" + "${m.a}" * 300 + "'\n  a: '" + "${m.b}" * 300 + "'", "open(path)", "(cfg.m)", []),
        ("path: a.csv", "open(path)", "(cfg.m, path=chosen())", []),
        ("use: true\n  path: a.csv", "open(path)", "(cfg.m) if cfg.m.use else None", ["a.csv"]),
        ("use: false\n  path: a.csv", "open(path)", "(cfg.m) if cfg.m.use else None", []),
        ("path: a.csv", "open(path)", "(cfg.other)", []),
        ("path: a.csv", "open(path)", "(each)", ["a.csv"]),
    ],
)
def test_an_object_of_hydra_gets_the_values_of_its_file_and_of_the_call(
    tmp_path: Path, config: str, body: str, call: str, reads: list[str]
) -> None:
    (tmp_path / "c.yaml").write_text(f"m:\n  _target_: net.Net\n  {config}\n")
    (tmp_path / "net.py").write_text(f"class Net:\n{_MADE}        {body}\n")
    code = f"    print(cfg.m)\n    hydra.utils.instantiate{call}\nmain()\n"
    facts = facts_of(tmp_path, f"{_MAIN}{code}")
    assert [each.path for each in facts.reads if each.path[-5:] != ".yaml"] == reads


@pytest.mark.parametrize(("primary", "reads"), [("path: a.csv", ["data"]), ("size: 1", ["data", "b.csv"])])
def test_a_setting_of_two_files_of_hydra_is_not_known(tmp_path: Path, primary: str, reads: list[str]) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "c.yaml").write_text(f"defaults:\n- m: big\nm:\n  {primary}\n")
    (tmp_path / "m/big.yaml").write_text("_target_: net.Net\npath: b.csv\n")
    (tmp_path / "net.py").write_text(f"class Net:\n{_MADE}        open(path)\n        open('data')\n")
    assert {each.path for each in facts_of(tmp_path, _MAKES_M).reads} - {"c.yaml", "m/big.yaml"} == {*reads}


@pytest.mark.parametrize(("setting", "compiles"), [("true", True), ("false", False), ("${oc.env:FAST}", True)])
def test_a_setting_decides_whether_torch_compiles(tmp_path: Path, setting: str, compiles: bool) -> None:
    (tmp_path / "c.yaml").write_text(f"m:\n  _target_: net.Net\n  compile: {setting}\n")
    (tmp_path / "net.py").write_text(
        "import torch\nclass Net:\n    def __init__(self, compile):\n        self.save_hyperparameters()\n"
        "    def setup(self, stage):\n        if self.hparams.compile and stage == 'fit':\n"
        "            self.net = torch.compile(self.net)\n"
    )
    assert (facts_of(tmp_path, _MAKES_M).compiler_evidence is not None) is compiles


@pytest.mark.parametrize("key", ["class_path", "_target_", "target"])
def test_what_a_typed_configuration_names_is_needed(tmp_path: Path, key: str) -> None:
    for name, text in {
        "a.yaml": f"model:\n  - {key}: net.Net\n    cache: no\n  # {key}: six.Net\n  - {key}: os.PathLike\n",
        "net/__init__.py": "from .inner import Net\n",
        "net/inner.py": "import scipy\nclass Net: ...\n",
        "train.py": "from lightning.pytorch.cli import LightningCLI\nLightningCLI()\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    target = Target(kind="script", value="train.py", args=("fit", "--config", "a.yaml"))
    assert script_facts(target, tmp_path).imports == ("lightning", "scipy")


@pytest.mark.parametrize(
    ("arguments", "files", "lost"),
    [
        (
            (),
            {"conf/main.yaml": "defaults:\n- database: null\n- data: mnist # 10\n"},
            {"conf/data/mnist.yaml": "conf/main.yaml:3"},
        ),
        (("data=own",), {"conf/main.yaml": "defaults:\n- data: mnist\n", "conf/data/own.yaml": ""}, {}),
        (("data=owm",), {"conf/main.yaml": "", "conf/data/own.yaml": ""}, {"conf/data/owm.yaml": "data=owm"}),
        (("--config-name", "two"), {"conf/main.yaml": ""}, {"conf/two.yaml": "train.py:2"}),
        (("--config-name=two",), {"conf/two.yaml": "defaults:\n- data: own.yaml\n", "conf/data/own.yaml": ""}, {}),
        (("-m", "data=a,b"), {"conf/main.yaml": "defaults:\n- data: mnist\n", "conf/data/a.yaml": ""}, {}),
        (
            ("more=one",),
            {"conf/main.yaml": "defaults:\n- data: no\n", "conf/more/one.yaml": "defaults:\n- override /data: own\n"}
            | {"conf/data/own.yaml": ""},
            {},
        ),
        (
            (),
            {"conf/main.yaml": "defaults:\n- _self_\n- data: null\n- optional local: x\n- a: ${b}\n- hydra: y\n"},
            {},
        ),
        ((), {"conf/main.yaml": "defaults:\n- data: no\nhydra:\n  searchpath: [file://conf2]\n"}, {}),
    ],
)
def test_an_option_that_hydra_does_not_find_is_a_missing_input(
    tmp_path: Path, arguments: tuple[str, ...], files: dict[str, str], lost: dict[str, str]
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    source = "import hydra\n@hydra.main(config_path='conf', config_name='main')\ndef main(cfg): ...\nmain()\n"
    (tmp_path / "train.py").write_text(source)
    facts = script_facts(Target(kind="script", value="train.py", args=arguments), tmp_path)
    assert {each.path: each.where for each in facts.reads if not (tmp_path / each.path).exists()} == lost


@pytest.mark.parametrize(("last", "lost"), [("tool.train()", []), ("tool.main()", ["conf/main.yaml"])])
def test_a_configuration_of_an_imported_modules_own_main_is_read_if_it_is_called(
    tmp_path: Path, last: str, lost: list[str]
) -> None:
    main = "@hydra.main(config_path='conf', config_name='main')\ndef main(cfg): ...\n"
    (tmp_path / "tool.py").write_text(f"import hydra\ndef train(): ...\n{main}if __name__ == '__main__':\n    main()\n")
    reads = facts_of(tmp_path, f"import tool\n{last}\n").reads
    assert [each.path for each in reads] == lost


def test_a_module_of_a_package_that_the_project_installs_is_read(tmp_path: Path) -> None:
    for name, text in {"setup.py": "", "lib/core/__init__.py": "", "lib/core/train.py": "import torch"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    assert facts_of(tmp_path, "from core import train\n").imports == ("torch",)


def test_a_subpackage_is_not_the_installed_package_of_its_name(tmp_path: Path) -> None:
    for name in ("setup.py", "jax/__init__.py", "jax/typing.py", "jax/numpy/__init__.py", "jax/random.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    found = facts_of(tmp_path, "import jax, numpy, random\n")
    assert (found.imports, found.import_roots) == (("numpy",), ())


def test_what_python_runs_before_and_with_a_module_is_read(tmp_path: Path) -> None:
    for name, text in {
        "pkg/__init__.py": "import jax",
        "pkg/main.py": "import numpy",
        "conf/b16.py": "import flax",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    target = Target(kind="module", value="pkg.main", args=("--config=conf/b16.py:cifar10", "gone.py"))
    assert script_facts(target, tmp_path).imports == ("flax", "jax", "numpy")


@cases("source", "framework")
def test_framework(tmp_path: Path, source: str, framework: str | None) -> None:
    assert facts_of(tmp_path, source).framework == framework


def test_a_framework_behind_try_may_not_be_there(tmp_path: Path) -> None:
    maybe = facts_of(tmp_path, "try:\n    import tensorflow as tf\nexcept ImportError:\n    tf = None\n")
    assert maybe.framework == "tensorflow" and not maybe.needs_framework
    assert all(facts_of(tmp_path, f"import {name}").needs_framework for name in ("optax", "tensorflow"))


@cases("source", "torchrun", "one_process")
def test_launcher_evidence(tmp_path: Path, source: str, torchrun: str | None, one_process: str | None) -> None:
    found = facts_of(tmp_path, source)
    assert (found.torchrun_evidence, found.one_process_evidence) == (torchrun, one_process)
    assert found.multi_gpu_evidence == (torchrun or one_process)


@cases("source", "option")
def test_the_option_of_a_rank(tmp_path: Path, source: str, option: str | None) -> None:
    """A script that imports ``net`` does not have its command line."""
    own = "import argparse\nif __name__ == '__main__':\n    argparse.ArgumentParser().add_argument('--local_rank')\n"
    found = facts_of(tmp_path, source, net=own)
    assert found.rank_option == option
    spread = facts_of(tmp_path, f"{source}\nm = load(device_map='auto')\nm = FSDP(m)\n", net=own)
    assert spread.one_process_evidence and not spread.torchrun_evidence
    both = facts_of(tmp_path, f"{source}\nm = nn.DataParallel(m)\nm = FSDP(m)\n", net=own)
    assert bool(both.torchrun_evidence) == bool(option) and bool(both.one_process_evidence) != bool(option)


@cases("source", "evidence")
def test_compiler_evidence(tmp_path: Path, source: str, evidence: str | None) -> None:
    assert facts_of(tmp_path, source).compiler_evidence == evidence


COMPILES_IF = "import torch\n{before}\nif compile:\n    model = torch.compile(model)\n"
FLAG = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--compile', action='store_true')"


@pytest.mark.parametrize(
    ("before", "arguments", "compiles"),
    [
        ("compile = True", "", True),
        ("compile = True", "--compile=False", False),
        ("compile = True", "--epochs 1 --no-compile", False),
        ("compile = True", "--compiler 0", True),
        (FLAG, "", False),
        (FLAG, "--compile", True),
        (FLAG + "\nmodel = torch.compile(model)", "", True),
        (FLAG + "\nimport triton", "", True),
        (FLAG, "--model=answerdotai/ModernBERT-base", True),
    ],
)
def test_an_argument_decides_on_torch_compile(tmp_path: Path, before: str, arguments: str, compiles: bool) -> None:
    (tmp_path / "train.py").write_text(COMPILES_IF.format(before=before))
    target = Target(kind="script", value="train.py", args=tuple(arguments.split()))
    assert (script_facts(target, tmp_path).compiler_evidence is not None) == compiles


@cases("source", "run")
def test_a_file_of_a_package_is_started_as_a_module(tmp_path: Path, source: str, run: str | None) -> None:
    with pytest.raises(TargetError) as refused:
        facts_of(tmp_path, "from .lab import net\n", lab__net="from .train import y\nx = 1\n", lab__train=source)
    assert refused.value.run == "in train.py:1 write: from lab import …"
    script_facts(Target(kind="module", value="lab.train"), tmp_path)
    with nullcontext() if run is None else pytest.raises(TargetError) as refused:
        script_facts(Target(kind="script", value="lab/train.py"), tmp_path)
    assert run is None or refused.value.run == run


@pytest.mark.parametrize(
    ("line", "package", "refused"),
    [
        ("import data", False, True),
        ("try: import data\nexcept ImportError: pass", False, False),
        ("from lib import data", False, False),
        ("import data", True, False),
        ("import data, named", False, True),
        ("import named", False, False),
    ],
)
def test_a_module_next_to_the_script_is_in_no_package(tmp_path: Path, line: str, package: bool, refused: bool) -> None:
    for folder in (tmp_path, tmp_path / "lib", *[tmp_path / "data"] * package):
        folder.mkdir(exist_ok=True)
        (folder / ("__init__.py" if folder.name == "data" else "data.py")).write_text("from .config import LR\n")
        (folder / "config.py").write_text("LR = 1\n")
    (tmp_path / "named.py").write_text("__package__ = 'lib'\nfrom .config import LR\n")
    (tmp_path / "train.py").write_text(f"{line}\nprint(1)\n")
    if not refused:
        script_facts(Target(kind="script", value="train.py"), tmp_path)
        return
    with pytest.raises(TargetError, match=r"data.py:1 imports from .config") as caught:
        script_facts(Target(kind="script", value="train.py"), tmp_path)
    assert caught.value.run == "in data.py:1 write: from config import …"


def test_a_module_that_is_started_in_no_package_cannot_import_from_one(tmp_path: Path) -> None:
    for name, text in {"train.py": "from .net import x\n", "lab/__main__.py": "from .net import x\n"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).with_name("net.py").write_text("x = 1\n")
    with pytest.raises(TargetError, match=r"train.py:1 imports from .net, which only a"):
        script_facts(Target(kind="module", value="train"), tmp_path)
    script_facts(Target(kind="module", value="lab"), tmp_path)


def test_nothing_is_known_of_images_and_a_module_elsewhere_is_a_packages(tmp_path: Path) -> None:
    assert script_facts(Target(kind="image", value=""), tmp_path) == ScriptFacts()
    assert script_facts(Target(kind="module", value="torch.distributed.run"), tmp_path).imports == ("torch",)


def test_folders_of_the_jobs_python_path_are_the_projects_own(tmp_path: Path) -> None:
    """Follow the advice of a plan: the modules there are found and read."""
    (tmp_path / "lib" / "core").mkdir(parents=True)
    (tmp_path / "lib" / "core" / "__init__.py").write_text("import tabulate\n")
    (tmp_path / "train.py").write_text("import core\n")
    script, module = Target(kind="script", value="train.py"), Target(kind="module", value="core")
    (tmp_path / "lib" / "core" / "__main__.py").write_text("import humanize\n")
    for variable in ("lib", "/workspace/lib", f"/elsewhere:{tmp_path}/lib"):
        job = Job(project=tmp_path, target=script, env={"PYTHONPATH": variable})
        assert source_facts(job).imports == ("tabulate",)
        started = job.model_copy(update={"target": module})
        assert source_facts(started).imports == ("humanize", "tabulate")
        assert source_digest(started) == hashlib.sha256(b"import humanize\n").hexdigest()
    assert source_facts(Job(project=tmp_path, target=script)).imports == ("core",)
    found = source_facts(Job(project=tmp_path, target=module))
    assert (found.imports, found.where) == (("core",), {"core": "-m core"})


@pytest.mark.parametrize(
    ("source", "printed"), [("x = 1\nif x\n", "train.py:2: "), ("def f(:\n", "train.py:1: "), ("\0", "train.py:1: ")]
)
def test_a_syntax_error_is_reported_before_any_container(tmp_path: Path, source: str, printed: str) -> None:
    with pytest.raises(TargetError) as caught:
        facts_of(tmp_path, source)
    assert caught.value.message.startswith(printed)


def test_a_broken_module_that_may_never_be_imported_is_passed_over(tmp_path: Path) -> None:
    found = facts_of(tmp_path, "import torch\ntry:\n    import old\nexcept SyntaxError: pass", old="print 'python 2'")
    assert found.imports == ("torch",)


CERTAIN = constant(__file__, "CERTAIN")
OPTIONAL = constant(__file__, "OPTIONAL")
NEITHER = {
    "under TYPE_CHECKING": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import lib\n",
    "under typing.TYPE_CHECKING": "import typing\nif typing.TYPE_CHECKING:\n    import lib\n",
    "in a comment": "# import lib\n",
}


@pytest.mark.parametrize("case", {**CERTAIN, **OPTIONAL, **NEITHER})
def test_an_import_is_needed_optional_or_none(tmp_path: Path, case: str) -> None:
    found = facts_of(tmp_path, {**CERTAIN, **OPTIONAL, **NEITHER}[case])
    assert ("lib" in found.imports) is (case in CERTAIN)
    assert case not in NEITHER or "lib" not in found.optional_imports


def test_a_module_that_only_a_condition_imports_is_optional_and_all_that_it_imports(tmp_path: Path) -> None:
    source = "import sys, data\nif len(sys.argv) > 1:\n    import export\n"
    found = facts_of(tmp_path, source, data="", export="import onnx")
    assert found.optional_imports == ("onnx",) and found.where == {"onnx": "export.py:1"}


@pytest.mark.parametrize("line", ["import lib.data as data", "from lib import data"])
def test_a_stand_in_is_not_needed_for_a_module_of_a_folder_without_init(tmp_path: Path, line: str) -> None:
    source = f"try:\n    {line}\nexcept:\n    import other\n"
    assert facts_of(tmp_path, source, lib__data="").imports == ()
    assert facts_of(tmp_path, source.replace("lib", "away"), lib__data="").imports == ("other",)


def test_an_import_behind_a_condition_is_likely_unless_the_condition_is_known_to_fail(tmp_path: Path) -> None:
    source = """
import argparse
p = argparse.ArgumentParser()
p.add_argument("--track", action="store_true")
args = p.parse_args()
def get(download=True):
    if download:
        import six
    if args.track:
        import wandb
    try:
        import apex
    except ImportError:
        apex = None
for step in range(9):
    if step % 3 == 0:
        import matplotlib
if is_torch_tpu_available():
    import torch_xla
if importlib.util.find_spec("comet_ml"):
    import comet_ml
if os.name == "nt" or platform.system() == "Darwin" or sys.version_info < (3, 8):
    import colorama
if os.environ.get("USE_NEPTUNE"):
    import neptune
def train():
    import tabulate
    try:
        import fancy
    except Exception:
        pass
try:
    if step % 3 == 0:
        train()
except Exception as error:
    print(error)
get()
"""
    found = facts_of(tmp_path, source)
    assert found.likely_imports == ("matplotlib", "six", "tabulate")


def test_calls_of_imported_names_that_may_run_show_their_arguments(tmp_path: Path) -> None:
    source = """
import sys
import frames as fr
from nets.models import Net
from data import load
debug = False
if debug:
    Net(width=1)
if len(sys.argv) < 2:
    Net(depth=2, **extra)
OLD = fr.__version__ < "2"
if OLD:
    fr.write(old=1)
try:
    fr.write(new=1)
except TypeError:
    pass
def main():
    fr.io.read("a", fast=True)
    load(all=True)
main()
"""
    found = facts_of(tmp_path, source, data="def load(all): ...").keywords
    assert found == {"nets.models.Net(depth=)": "train.py:10", "frames.io.read(fast=)": "train.py:19"}


@pytest.mark.parametrize(
    "other",
    [
        "def make(Net):\n    return Net(depth=2)\nmake(dict)",
        "def outer():\n    Net = load()\n    def inner():\n        Net(depth=2)\n    inner()\nouter()",
        "class Net(Net):\n    def __init__(self, depth): ...\nNet(depth=2)",
        "def Net(depth): ...\nNet(depth=2)",
        "try:\n    from fast import Net\nexcept ImportError:\n    from nets import Net\nNet(depth=2)",
        "nets.Net = dict\nnets.Net(depth=2)",
        "def main():\n    new = nets.__version__ >= '2'\n    if new:\n        nets.Net(depth=2)\nmain()",
        "if 'depth' in Net.__init__.__code__.co_varnames:\n    Net(depth=2)",
    ],
)
def test_a_name_that_may_stand_for_something_else_shows_no_arguments(tmp_path: Path, other: str) -> None:
    assert facts_of(tmp_path, f"import nets\nfrom nets import Net\n{other}\n").keywords == {}


def test_the_word_typed_for_a_positional_argument_decides_what_runs(tmp_path: Path) -> None:
    source = """import argparse
parser = argparse.ArgumentParser()
parser.add_argument("mode")
parser.add_argument("--lr", type=float)
args = parser.parse_args()
if args.mode == "train":
    import six
elif args.mode == "draw":
    import matplotlib
"""
    (tmp_path / "train.py").write_text(source)
    expected = {"train": ("six",), "draw --lr 1": ("matplotlib",), "--lr 1 draw": ("matplotlib", "six")}
    for words, imports in expected.items():
        target = Target(kind="script", value="train.py", args=tuple(words.split()))
        assert script_facts(target, tmp_path).likely_imports == imports, words


def test_a_call_into_a_module_of_the_project(tmp_path: Path) -> None:
    source = "from tools import dist\nimport net as n\ndist.setup()\nn.Net()\n"
    dist = "def setup():\n    import mpi4py\ndef other():\n    import horovod\n"
    net = "class Net:\n    def __init__(self):\n        import einops\n"
    found = facts_of(tmp_path, source, tools____init__="", tools__dist=dist, net=net)
    assert found.imports == ("einops", "mpi4py") and found.optional_imports == ()


def test_a_call_of_what_a_package_passes_on_runs_it(tmp_path: Path) -> None:
    inner = "class Net:\n    def __init__(self):\n        import einops\n"
    modules = {"nets____init__": "from .parts import Net as Model\n", "nets__parts____init__": "from .net import Net\n"}
    found = facts_of(tmp_path, "from nets import Model\nModel()\n", **modules, nets__parts__net=inner)
    assert found.imports == ("einops",)


NEEDS_RANKS = {
    "the variable": "import os\nrank = int(os.environ['LOCAL_RANK'])\n",
    "a process group": "import torch.distributed as dist\ndef main():\n    dist.init_process_group('nccl')\nmain()\n",
    "in both branches": "if gpu:\n    dist.init_process_group('nccl')\nelse:\n    dist.init_process_group('gloo')\n",
    "by environment": "dist.init_process_group('nccl', init_method='env://')\n",
    "an option on by default": "p.add_argument('--no', action='store_false')\na = p.parse_args()\n"
    "if a.no:\n    dist.init_process_group('nccl')\n",
    "a device mesh": "mesh = init_device_mesh('cuda', (2,))\n",
}


@pytest.mark.parametrize("source", NEEDS_RANKS.values(), ids=NEEDS_RANKS)
def test_a_script_that_cannot_run_without_torchrun(tmp_path: Path, source: str) -> None:
    assert facts_of(tmp_path, source).launcher_evidence


def test_a_script_that_goes_on_without_the_variables_of_torchrun_needs_none(tmp_path: Path) -> None:
    joins = "    rank = int(os.environ['LOCAL_RANK'])\n    dist.init_process_group('nccl')\n"
    source = f"import os\nimport torch.distributed as dist\ntry:\n{joins}except KeyError:\n    rank = 0\n"
    assert facts_of(tmp_path, source).launcher_evidence is None
    assert facts_of(tmp_path, f"{source}    raise\n").launcher_evidence


@cases("script", "package", "roots")
def test_where_the_projects_own_packages_are_imported_from(
    tmp_path: Path, script: str, package: str, roots: tuple[str, ...]
) -> None:
    (tmp_path / package).mkdir(parents=True)
    (tmp_path / package / "__init__.py").write_text("import torch")
    (tmp_path / "setup.py").write_text("from setuptools import setup\nsetup(name='minGPT')")
    (tmp_path / script).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / script).write_text("from mingpt.utils import x\n")
    found = script_facts(Target(kind="script", value=script), tmp_path)
    assert (found.import_roots, found.imports) == (roots, ("torch",))


@pytest.mark.parametrize(("place", "root"), [("training/src", "training/src"), ("src", "src"), ("training", None)])
def test_a_module_of_the_working_directorys_src_is_read_and_found(tmp_path: Path, place: str, root: str | None) -> None:
    (package := tmp_path / place / "skeletons").mkdir(parents=True)
    (tmp_path / "training").mkdir(exist_ok=True)
    (package / "__init__.py").touch()
    (package / "train.py").write_text("import torch\nfrom . import __name__")
    target = Target(kind="module", value="skeletons.train")
    found = script_facts(target, tmp_path, folder=tmp_path / "training")
    assert (found.imports, found.import_roots) == (("torch",), (root,) if root else ())


@pytest.mark.parametrize("is_installed", [True, False])
def test_a_module_of_a_deeper_folder_is_the_projects_once_that_is_installed(tmp_path: Path, is_installed: bool) -> None:
    (package := tmp_path / "src/python/tunes").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "train.py").write_text("import torch\n")
    if is_installed:
        (tmp_path / "pyproject.toml").write_text('[project]\nname = "tunes"\nversion = "1"\n')
    found = script_facts(Target(kind="module", value="tunes.train"), tmp_path)
    roots = ("src/python",) if is_installed else ()
    assert (found.imports, found.import_roots) == (("torch",) if is_installed else ("tunes",), roots)


def test_a_folder_without_init_is_the_projects_where_something_in_it_is_imported(tmp_path: Path) -> None:
    assert facts_of(tmp_path, "import datasets\nfrom datasets import coco\n", datasets__coco="").imports == ()
    assert facts_of(tmp_path, "from datasets import load_dataset\n").imports == ("datasets",)


def test_a_folder_of_src_that_lacks_a_name_is_an_installed_package(tmp_path: Path) -> None:
    found = facts_of(tmp_path, "from src.net import Net\n", src__net="from datasets import load_dataset\nNet = 1\n")
    assert found.imports == ("datasets",)
    source = "from datasets import load_dataset\nNet = 1\n"
    found = facts_of(tmp_path, "from src.net import Net\n", src__net=source, src__datasets____init__="")
    assert (found.imports, found.missing, found.import_roots) == (("datasets",), {}, ())


@pytest.mark.parametrize(("packaging", "missing"), [({}, []), ({"setup": "setup()\n"}, ["lensless.recon"])])
def test_a_folder_of_src_that_lacks_a_module_is_an_installed_package_unless_the_project_is_one(
    tmp_path: Path, packaging: dict[str, str], missing: list[str]
) -> None:
    source = "from lensless import io\nfrom src.lensless import io\nfrom lensless.recon import admm\n"
    found = facts_of(tmp_path, source, src__lensless____init__="", src__lensless__io="import einops\n", **packaging)
    assert (found.imports, [*found.missing]) == (("einops", *(["lensless"] * (not missing))), missing)
    assert found.import_roots == (("src",) if missing else ())


@pytest.mark.parametrize(
    ("name", "module"),
    [("_C", ""), ("a_pb2", ""), ("version", ""), ("late", "vars()['l' + 'ate'] = 1\n"), ("gone", "")],
)
def test_a_name_that_a_build_or_text_may_make_is_not_missing(tmp_path: Path, name: str, module: str) -> None:
    found = facts_of(tmp_path, f"from pkg import {name}\n", pkg____init__=module)
    assert bool(found.missing) == (name == "gone")


@pytest.mark.parametrize(
    "source",
    [
        "if late:\n    from a import make\nelse:\n    from b import make\nmake()\n",
        "try:\n    from b_c import make\nexcept ImportError:\n    def make(): import pandas\nmake()\n",
        "import a as T\nimport b as T\nT.make()\n",
        "from a import Net\nnet = Net()\nfrom b import Net\nnet = Net()\nnet.make()\n",
        "import sys\nsys.path.insert(-1, 'lib')\nimport helper\n",
        "import sys\nsys.path.insert(len(sys.path), 'lib')\nimport helper\n",
        "import sys\nsys.path += ('lib',)\nimport helper\n",
    ],
)
def test_each_meaning_of_a_name_and_the_end_of_the_path_are_read(tmp_path: Path, source: str) -> None:
    b = "def make():\n    import pandas\n    assert late, 'x'\nclass Net:\n    def make(self): make()\n"
    found = facts_of(
        tmp_path, source, a="def make(): import a_gone.x\nclass Net: pass\n", b=b, lib__helper="import pandas\n"
    )
    assert "pandas" in found.imports and not found.missing


@pytest.mark.parametrize(
    "source",
    [
        "import sys\nsys.path.insert(0, 'lib')\nfrom utils import make\n",
        "import sys\nsys.path[:0] = ['lib']\nfrom utils import make\n",
        "import sys\nsys.path = ['lib'] + sys.path\nfrom utils import make\n",
        "import sys\nsys.path.insert(0, 'lib.zip')\nfrom utils import zipped\n",
        "from both import Net\n",
        "def load():\n    import utils.gone\ndef main(load=len):\n    load('1')\nmain()\n",
        "def load():\n    import utils.gone\ndef main():\n    load = len\n    load('1')\nmain()\n",
        "if late:\n    def load(): import utils.gone\nelse:\n    from json import load\nload()\n",
        "class A:\n    def load(self): import utils.gone\n    def run(self): self.load()\n"
        "class B(A):\n    def load(self): pass\nB().run()\n",
    ],
)
def test_what_python_finds_first_and_names_of_two_things_are_not_missing(tmp_path: Path, source: str) -> None:
    others = {"utils____init__": "", "lib__utils": "make = 1\n", "both": "", "both____init__": "Net = 1\n"}
    assert facts_of(tmp_path, source, **others).missing == {}
    lost = facts_of(tmp_path, source.replace("insert(0, 'lib.zip')", "append('lib')").replace("make", "gone"), **others)
    assert bool(lost.missing) == ("sys.path" in source)


@cases("source", "missing")
def test_a_module_of_a_package_of_the_project_that_is_not_there(
    tmp_path: Path, source: str, missing: dict[str, str]
) -> None:
    (tmp_path / "esr" / "folder").mkdir(parents=True)
    (tmp_path / "bare").mkdir()
    (tmp_path / "esr" / "compiled.cpython-311-x86_64-linux-gnu.so").touch()
    found = facts_of(tmp_path, "import esr\n", esr____init__=source, esr__ops____init__="")
    assert {name: each.where for name, each in found.missing.items()} == missing


@pytest.mark.parametrize(
    ("source", "others", "fix"),
    [
        ("from net import Net\n", {"net": ""}, "define Net in net.py, or correct the import"),
        ("from lib.net import Net\n", {"lib__other": "", "lib____init__": ""}, "add lib/net.py"),
        ("from lib import net\nfrom lib.rest import x\n", {"lib__net": "from .rest import y\n"}, "add lib/rest.py"),
        ("from lib import a_pb2\n", {"lib____init__": ""}, "protoc -I. --python_out=. lib/a.proto"),
    ],
)
def test_a_missing_import_has_what_provides_it(tmp_path: Path, source: str, others: dict[str, str], fix: str) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "a.proto").touch()
    assert fix in [each.fix for each in facts_of(tmp_path, source, **others).missing.values()]
    assert useless(tmp_path, "train.py") is None


# ------------------------------------------- what a caller of a module runs


def test_protos_that_import_each_other_are_compiled_where_the_names_of_their_files_hold(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "a.proto").touch()
    (tmp_path / "lib" / "b.proto").write_text('import "google/x.proto";\nimport "lib/a.proto";\n')
    found = facts_of(tmp_path, "import lib.net\n", lib__net="from . import a_pb2, b_pb2\n", lib____init__="")
    assert {each.fix for each in found.missing.values()} == {"protoc -I. --python_out=. lib/*.proto"}


SERVED = """
import nets
class Base:
    def load(self):
        import timm
class Model(Base):
    def __init__(self):
        self.read()
    def read(self):
        import sklearn
    def predict(self, batch):
        from PIL import Image
        nets.make()
    def train(self):
        import lightning
def make_model():
    import einops
"""


def test_what_a_module_is_imported_for_is_called(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(SERVED)
    (tmp_path / "nets.py").write_text("def make():\n    import own\n")
    (tmp_path / "own.py").write_text("import transformers\n")
    target = Target(kind="script", value="net.py")
    assert script_facts(target, tmp_path).imports == ()
    made = script_facts(target, tmp_path, calls=("Model", "Model.load", "Model.predict", "Model.example"))
    assert made.imports == ("PIL", "sklearn", "timm", "transformers") and "own.py" in made.files
    assert "lightning" not in made.imports + made.optional_imports
    assert script_facts(target, tmp_path, calls=("make_model",)).imports == ("einops",)


# ----------------------------------------------------- the standard library


def test_a_module_of_another_python_is_no_package(tmp_path: Path) -> None:
    """Names of 3.10 only, to 3.11, to 3.12, from 3.11 on, from 3.14 on: no host has them all."""
    assert sys.stdlib_module_names <= STANDARD_MODULES and {"os", "json", "asyncio"} <= EVERYWHERE
    for name in ("binhex", "distutils", "telnetlib", "tomllib", "annotationlib"):
        assert facts_of(tmp_path, f"import torch\nimport {name}\n").imports == ("torch",)
        assert name in STANDARD_MODULES and name not in EVERYWHERE


def test_a_package_of_the_project_may_have_a_name_that_only_some_pythons_use(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'ours'\nversion = '1'\n")
    own = "import tensorflow\n"
    assert "tensorflow" in facts_of(tmp_path, "import compression\n", lib__compression____init__=own).imports


def test_python_2_in_the_target_and_behind_two_imports(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"^train\.py:2 print 'x': this is Python 2"):
        facts_of(tmp_path, "import torch\nprint 'x'\n")
    layers = "class Layer:\n    def f(self):\n        print self\n"
    net = {"net____init__": "from .layers import Layer\n", "net__layers": layers}
    with pytest.raises(TargetError, match=r"^net/layers\.py:3 print self: this is Python 2"):
        facts_of(tmp_path, "def main():\n    import net\nmain()\n", **net)


@pytest.mark.parametrize(
    ("source", "imported"),
    [
        ("from net import config\n", True),
        ("def main():\n    import net.config\nmain()\n", True),
        ("import sys\nif len(sys.argv) > 3:\n    import net.config\n", False),
        ("try:\n    import net.config\nexcept Exception:\n    pass\n", False),
        ("def unused():\n    import net.config\n", False),
        ("import net\n", False),
    ],
)
def test_a_broken_module_that_every_run_imports_is_refused(tmp_path: Path, source: str, imported: bool) -> None:
    files = {"net____init__": "", "net__config": "def add(c):\n    c.FEATURES '((1), (2))'\n"}
    if not imported:
        assert facts_of(tmp_path, f"import torch\n{source}", **files).imports == ("torch",)
        return
    with pytest.raises(TargetError, match=r"^net/config\.py:2: invalid syntax") as caught:
        facts_of(tmp_path, f"import torch\n{source}", **files)
    assert caught.value.cause == "it is not valid Python 3.8 to 3.14"


def test_newer_syntax_keeps_older_pythons_away(tmp_path: Path) -> None:
    match = "def f(x):\n    match x:\n        case 1:\n            return 2\n"
    found = facts_of(tmp_path, "import net\n", net=match)
    assert found.least_python == ((3, 10), "net.py:2")
    (tmp_path / "requirements.txt").write_text("torch==1.13.1\n")
    job = Job(project=tmp_path, target=Target(kind="script", value="train.py"))
    assert plan_image(job, script=found, cpu_only=True)[0].base == "python:3.10-slim-bookworm"
    (tmp_path / "requirements.txt").write_text("torch==1.9.0\n")
    with pytest.raises(ConfigError, match=r"net\.py:2 is syntax of Python 3\.10 and later.*torch 1\.9\.0"):
        plan_image(job, script=found, cpu_only=True)


def test_a_module_that_python_removed_keeps_newer_pythons_away(tmp_path: Path) -> None:
    found = facts_of(tmp_path, "from symbol import factor\nimport torch\n")
    job = Job(project=tmp_path, target=Target(kind="script", value="train.py"))
    assert plan_image(job, script=found, cpu_only=True)[0].base == "python:3.9-slim-bookworm"


def test_a_ready_image_may_have_that_python(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text("print 'x'\n")
    for script in ("import old\n", "print 'x'\n"):
        (tmp_path / "train.py").write_text(script)
        assert script_facts(Target(kind="script", value="train.py"), tmp_path, any_python=True).imports == ()


@pytest.mark.parametrize(
    ("lines", "python"),
    [
        ("class Net[T: int = str](object):\n    import torch", (3, 12)),
        ("def f[\n    K,\n](x): ...\nimport torch", (3, 12)),
        ("type Rows[T] = dict[str, T]\nimport torch", (3, 12)),
        ("""print(f"{d["loss"]:.3f} {' '.join(\n    names,  # all\n)}")\nimport torch""", (3, 12)),
        ("""x = rf'{f'{d['a']}'}' "tail" f"{a}"\nimport torch""", (3, 12)),
        ("try:\n    import torch\nexcept OSError, ValueError:\n    raise", (3, 14)),
        ("x = t'{2}'\nimport torch", (3, 14)),
        ("""x = f"{d['loss']:>{width}} {{n}} {n!r}" f'{n:#x}'\nimport torch""", None),
    ],
)
def test_syntax_newer_than_the_hosts_python_is_read(tmp_path: Path, lines: str, python: tuple[int, int] | None) -> None:
    found = facts_of(tmp_path, f"{lines}\n")
    line = 1 + f"{lines}\n".partition("import torch")[0].count("\n")
    assert found.where["torch"] == f"train.py:{line}"
    assert found.least_python and found.least_python[0] == python if python else found.least_python is None


@pytest.mark.parametrize(
    "line", ["x = f'{d['", "def f[T(x): ...", "x = f'{d[\"a\"]}' +", 'f"{a["b"]}" = (', "x = f'{a:{b'"]
)
def test_what_no_python_reads_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(TargetError, match=r"^train\.py:2: "):
        facts_of(tmp_path, f"import torch\n{line}\n")


SETS = 'import os\nos.environ["KERAS_BACKEND"] = "torch"\nimport keras\n'


@cases("source", "env", "framework")
def test_the_backend(tmp_path: Path, source: str, env: dict[str, str], framework: str | None) -> None:
    found = with_keras_backend(facts_of(tmp_path, source), env, tmp_path)
    assert found.framework == framework
    assert framework is None or framework in (*found.imports, "tensorflow")


def test_keras_json(tmp_path: Path) -> None:
    script = facts_of(tmp_path, "import keras")
    for folder in (tmp_path / "home" / ".keras", tmp_path / "settings"):
        folder.mkdir(parents=True)
    (tmp_path / "home" / ".keras" / "keras.json").write_text('{"backend": "torch"}')
    (tmp_path / "settings" / "keras.json").write_text('{"backend": "jax"}')
    home = tmp_path / "home"
    assert with_keras_backend(script, {}, tmp_path, home).framework == "torch"
    assert with_keras_backend(script, {}, tmp_path).framework == "tensorflow", "a container has a home of its own"
    assert with_keras_backend(script, {"KERAS_HOME": "settings"}, tmp_path, home).framework == "jax"
    for broken in ("{", "[]", '{"backend": 3}'):
        (tmp_path / "settings" / "keras.json").write_text(broken)
        assert with_keras_backend(script, {"KERAS_HOME": "settings"}, tmp_path).framework == "tensorflow"


def test_backends_of_the_cpu_bring_what_they_import_and_take_no_gpu(tmp_path: Path) -> None:
    script = facts_of(tmp_path, "import keras")
    for backend, package in (("openvino", "openvino"), ("numpy", "jax")):
        assert package in with_keras_backend(script, {"KERAS_BACKEND": backend}, tmp_path).imports
        with pytest.raises(UsageError, match=f"{backend} keeps Keras on the CPU") as refused:
            with_keras_backend(script, {"KERAS_BACKEND": backend}, tmp_path, gpus=True)
        assert refused.value.run is not None and "--gpus none" in refused.value.run


@pytest.mark.parametrize(
    ("typed", "intended"), [("Jax", "jax"), ("tensorfow", "tensorflow"), ("theano", "jax"), ("mxnet", "jax")]
)
def test_a_misspelt_backend_is_set_right_where_it_was_set(tmp_path: Path, typed: str, intended: str) -> None:
    for source, env, run in (
        ("import keras", {"KERAS_BACKEND": typed}, f"seatrial run … --env KERAS_BACKEND={intended}"),
        (SETS.replace("torch", typed), {}, f'set os.environ["KERAS_BACKEND"] = "{intended}" in train.py:2'),
    ):
        with pytest.raises(UsageError, match=f"KERAS_BACKEND={typed}: Keras has no such backend") as refused:
            with_keras_backend(facts_of(tmp_path, source), env, tmp_path)
        assert refused.value.run == run


KIND = "import os\nkind = os.environ.get('KIND', 'mnist')\n"
LOAD = "def load(rank, kind='mnist'):\n    if kind == 'mnist':\n        pass\n    elif kind == 'cifar':\n        pass\n"


@pytest.mark.parametrize(
    ("source", "value", "rejected"),
    [
        (
            LOAD + "    else:\n        raise OSError\ndef main():\n    a = os.getenv('KIND')\n    load(0, a)\nmain()\n",
            "x",
            True,
        ),
        (LOAD + "    else:\n        raise ValueError(kind)\nload(0, kind.lower())\n", "CIFAR", False),
        (LOAD + "    else:\n        kind = 3\nload(0, kind)\n", "x", False),
        (LOAD + "    raise ValueError(kind)\nif kind:\n    load(0, kind)\n", "x", False),
        ("if kind not in ('a', 'b'):\n    raise SystemExit('kind')\n", "x", True),
        ("if kind != 'a':\n    raise ValueError\n", "a", False),
        ("if kind == 'a':\n    raise ValueError\n", "a", True),
        ("assert os.getenv('KIND') in ['a', 'b']\n", "x", True),
        ("try:\n    assert kind in ['a']\nexcept AssertionError:\n    pass\n", "x", False),
        ("kind = kind or 'a'\nif kind != 'a':\n    raise ValueError\n", "x", False),
    ],
)
def test_a_variable_that_the_script_rejects(tmp_path: Path, source: str, value: str, rejected: bool) -> None:
    (tmp_path / "train.py").write_text(KIND + source)
    job = Job(project=tmp_path, target=Target(kind="script", value="train.py"), env={"KIND": value})
    [*found] = why_useless(job, source_facts(job))
    assert [f"KIND is {'not ' * (value == 'a')}" in str(each) for each in found] == [True] * rejected


@pytest.mark.parametrize(
    ("line", "program"),
    [
        ("subprocess.run(['git', 'log'])", "git"),
        ("os.system(f'wget {url} -O x')", "wget"),
        ("os.system('ffmpeg -i ' + url)", "ffmpeg"),
        ("sh.git.log('-1')", "git"),
        ("if not os.path.exists('x.zip'): os.system('unzip x.zip')", "unzip"),
        ("check_output('git log', shell=True)", "git"),
        ("c = f'sox {url} x'; os.system(c)", "sox"),
        ("def f(x):\n    c = ['java', '-jar', x]\n    subprocess.run(c)\nf('x')", "java"),
        ("c = 'aws s3 ls'\nsubprocess.run(args=[c], shell=True)", "aws"),
        ("subprocess.run([url, 'git'])", None),
        ("subprocess.run([])", None),
        ("other.run(['git', 'log'])", None),
        ("try: subprocess.run(['git', 'log'])\nexcept Exception: pass", None),
    ],
)
def test_a_program_that_the_code_starts_is_seen_unless_any_error_is_caught(
    tmp_path: Path, line: str, program: str | None
) -> None:
    imports = "import os, sh, subprocess\nfrom subprocess import check_output\nurl = input()\n"
    found = [name for name in facts_of(tmp_path, f"{imports}{line}\n").modules if name.startswith("subprocess.")]
    assert [each for each in found if each != "subprocess.check_output"] == [f"subprocess.{program}"] * bool(program)


@pytest.mark.parametrize(
    ("code", "evidence"),
    [
        ("os.popen('nvcc --std=c++11 -DNDEBUG ' + options)", "train.py:1 nvcc --std=c++11"),
        ("subprocess.check_output('nvcc --version')", None),
        ("print('nvcc')", None),
    ],
)
def test_a_command_line_of_nvcc_that_compiles_is_found(tmp_path: Path, code: str, evidence: str | None) -> None:
    assert facts_of(tmp_path, code).nvcc_evidence == evidence


def test_a_method_of_a_variable_that_is_called_sh_starts_no_program(tmp_path: Path) -> None:
    source = "def f(sh):\n    sh.git.log()\n    sh.make()\nf(1)\n"
    assert "subprocess.git" not in facts_of(tmp_path, source).modules
    assert "subprocess.git" in facts_of(tmp_path, f"import sh\n{source}").modules


def test_a_table_of_known_models_takes_no_token_and_a_setting_does(tmp_path: Path) -> None:
    table = "register({'Aya-23-8B-Chat': {HUB: 'CohereForAI/aya-23-8B'}})\n"
    assert facts_of(tmp_path, table).hub_evidence is None
    setting = "config = {'model': {'name': 'CohereForAI/aya-23-8B'}, 'optim': {'beta1': 1}}\n"
    assert facts_of(tmp_path, setting).hub_evidence == "train.py:1 CohereForAI/aya-23-8B"


def test_settings_of_a_file_that_is_read_show_gated_models_and_what_nvcc_compiles(tmp_path: Path) -> None:
    text = '{\n  "model": "meta-llama/Llama-3.1-8B",\n  "offload_optimizer": {\n    "device": "%s"\n  }\n}\n'
    source = "import json\nc = json.load(open('c.json'))\n"
    (tmp_path / "c.json").write_text(text % "cpu")
    facts = facts_of(tmp_path, source)
    assert facts.hub_evidence == "c.json:2 meta-llama/Llama-3.1-8B"
    assert facts.nvcc_evidence == "c.json:4 offload_optimizer.device"
    target = Target(kind="script", value="train.py", args=("model=gpt2", "--offload_optimizer.device=none"))
    facts = script_facts(target, tmp_path)
    assert (facts.hub_evidence, facts.nvcc_evidence) == (None, None)
    (tmp_path / "c.json").write_text(text % "none")
    assert facts_of(tmp_path, source).nvcc_evidence is None
    assert facts_of(tmp_path, "x = 1\n").hub_evidence is None


def test_methods_of_a_class_that_getattr_takes_by_name_are_read(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("class Net:\n    def __init__(self):\n        Accelerator(log_with='wandb')\n")
    found = facts_of(tmp_path, "import net\ngetattr(net, 'Net')()\n")
    assert found.modules["transformers.report_to.wandb"] == "net.py:3 Accelerator(…)"
