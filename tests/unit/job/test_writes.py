"""Writes of a script outside the project, found by reading it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from seatrial.job.model import Target
from seatrial.job.script import script_facts

ARGPARSE = (
    "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('-o', '--output', default='/output')\n"
)

CERTAIN = {
    "torch.save(model, '/models/m.pth')": "/models/m.pth",
    "torch.save(f='/models/m.pth', obj=model)": "/models/m.pth",
    "open('/output/log.txt', 'w')": "/output/log.txt",
    "with open('/output/a', mode='ab') as f: pass": "/output/a",
    "open('/output/a', 'r+')": "/output/a",
    "from pathlib import Path\nPath('/output/a').write_text('')": "/output/a",
    "from pathlib import Path\n(Path('/output') / 'b').mkdir(parents=True)": "/output/b",
    "from pathlib import Path\nPath('/output', 'a').open('w')": "/output/a",
    "import pathlib\nOUT = pathlib.Path('/output')\nOUT.joinpath('a').touch()": "/output/a",
    "import os\nos.makedirs('/output', exist_ok=True)": "/output",
    "frame.to_csv('/output/a.csv')": "/output/a.csv",
    "frame.groupby('x').mean().to_parquet('/output/a')": "/output/a",
    "model.save_pretrained('/models/bert')": "/models/bert",
    "plt.savefig('/output/loss.png')": "/output/loss.png",
    "np.save('/output/a.npy', a)": "/output/a.npy",
    "joblib.dump(model, '/models/a.joblib')": "/models/a.joblib",
    "pickle.dump(model, open('/models/a.pkl', 'wb'))": "/models/a.pkl",
    "model.save('/models/a.keras')": "/models/a.keras",
    "torch.onnx.export(model, x, '/models/a.onnx')": "/models/a.onnx",
    "import shutil\nshutil.copy('/workspace/a', '/output/a')": "/output/a",
    "SummaryWriter('/logs/run')": "/logs/run",
    "SummaryWriter(log_dir='/logs')": "/logs",
    "OUT = '/output'\ntorch.save(m, f'{OUT}/m_{epoch}.pt')": "/output/m_*.pt",
    "import os\nOUT = os.path.join('/output', 'run')\ntorch.save(m, os.path.join(OUT, 'm.pt'))": "/output/run/m.pt",
    "torch.save(m, '/output/' + name)": "/output/*",
    "torch.save(m, '/output/%d.pt' % epoch)": "/output/*.pt",
    "torch.save(m, '/output/{}.pt'.format(epoch))": "/output/*.pt",
    "torch.save(m, '../models/m.pt')": "../models/m.pt",
    "if __name__ == '__main__':\n    torch.save(m, '/models/m.pt')": "/models/m.pt",
    "for epoch in range(3):\n    torch.save(m, '/models/m.pt')": "/models/m.pt",
    "for epoch in range(3):\n    if done: break\ntorch.save(m, '/models/m.pt')": "/models/m.pt",
    "if not ready: raise SystemExit('no data')\ntorch.save(m, '/models/m.pt')": "/models/m.pt",
    "try:\n    train()\nfinally:\n    torch.save(m, '/models/m.pt')": "/models/m.pt",
    "def main():\n    torch.save(m, '/models/m.pt')\nmain()": "/models/m.pt",
    "def save(path):\n    torch.save(m, path)\nsave('/models/m.pt')": "/models/m.pt",
    "def save(path='/models/m.pt'):\n    torch.save(m, path)\nsave()": "/models/m.pt",
    "class T:\n    def __init__(self, out):\n        self.out = out\n    def save(self):\n"
    "        torch.save(m, self.out + '/m.pt')\nt = T('/output')\nt.save()": "/output/m.pt",
    "class C:\n    OUT = '/output'\ntorch.save(m, C.OUT + '/m.pt')": "/output/m.pt",
    "C = {'out': '/output'}\ntorch.save(m, C['out'] + '/m.pt')": "/output/m.pt",
    ARGPARSE + "args = parser.parse_args()\ntorch.save(m, f'{args.output}/m.pt')": "/output/m.pt",
    "import sibling\nsibling.save(m)": "/models/sibling.pt",
    "from sibling import OUT\ntorch.save(m, OUT)": "/models/sibling.pt",
}

PERHAPS = {
    "if args.save:\n    torch.save(m, '/models/m.pt')": "/models/m.pt",
    "args.save and torch.save(m, '/models/m.pt')": "/models/m.pt",
    "try:\n    torch.save(m, '/models/m.pt')\nexcept OSError:\n    pass": "/models/m.pt",
    "for path in found:\n    torch.save(m, '/models/m.pt')": "/models/m.pt",
    "for epoch in range(3):\n    if epoch: continue\n    torch.save(m, '/models/m.pt')": "/models/m.pt",
    "if args.eval:\n    sys.exit()\ntorch.save(m, '/models/m.pt')": "/models/m.pt",
    "def main():\n    if args.eval:\n        return\n    torch.save(m, '/models/m.pt')\nmain()": "/models/m.pt",
    "def rows():\n    open('/output/a', 'w')\n    yield 1\nrows()": "/output/a",
    "import signal\ndef save(*_):\n    open('/output/a', 'w')\nsignal.signal(15, save)": "/output/a",
    "import os\nOUT = os.environ.get('OUT', '/output')\nos.makedirs(OUT)": "/output",
    "OUT = './x'\nif big:\n    OUT = '/output'\ntorch.save(m, OUT + '/m.pt')": "/output/m.pt",
    "import os\ntorch.save(m, os.path.join('/output', name))": "/output/*",
    "import os\nos.chdir('/workspace/a/b')\ntorch.save(m, '../m.pt')": "../m.pt",
    "TrainingArguments(output_dir='/output')": "/output",
    ARGPARSE: "/output",
    ARGPARSE + "args = parser.parse_args()\nargs.output = fix(args.output)\nopen(args.output + '/a', 'w')": "/output/a",
    "def save(path):\n    torch.save(m, path)\ndef debug():\n    save('/output/m.pt')\n"
    "save('m.pt')\nif x: debug()": "/output/m.pt",
    "import contextlib\nwith contextlib.suppress(Exception):\n    open('/output/a', 'w')": "/output/a",
}

NOTHING = [
    "torch.load('/models/m.pth')",
    "open('/output/a')",
    "open('/output/a', 'rb')",
    "torch.save(m, 'models/m.pt')",
    "torch.save(m, name)",
    "torch.save(m, f'{root}/m.pt')",
    "import os\ntorch.save(m, os.path.expanduser('~/m.pt'))",
    "text.replace('/a/b', '/c/d')",
    "client.get('/api/v1')",
    "if __name__ != '__main__':\n    pass\ndef never():\n    return '/output'",
]


def writes(folder: Path, source: str, *args: str) -> list[tuple[str, bool]]:
    (folder / "train.py").write_text(source)
    (folder / "sibling.py").write_text("OUT = '/models/sibling.pt'\ndef save(m):\n    torch.save(m, OUT)\n")
    facts = script_facts(Target(kind="script", value="train.py", args=args), folder)
    return [(write.path, write.certain) for write in facts.writes]


@pytest.mark.parametrize("source", CERTAIN)
def test_write_that_runs_in_every_run_is_certain(tmp_path: Path, source: str) -> None:
    assert (CERTAIN[source], True) in writes(tmp_path, source)


@pytest.mark.parametrize("source", PERHAPS)
def test_write_that_may_not_run_is_not_certain(tmp_path: Path, source: str) -> None:
    assert (PERHAPS[source], False) in writes(tmp_path, source)


@pytest.mark.parametrize("source", NOTHING)
def test_read_or_relative_path_is_no_write(tmp_path: Path, source: str) -> None:
    assert writes(tmp_path, source) == []


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("--output", "/results"), [("/results/a", True), ("/results", False)]),
        (("-o", "/results"), [("/results/a", True), ("/results", False)]),
        (("--out=/results",), [("/results/a", True), ("/results", False)]),
        (("--output", "results"), []),
    ],
)
def test_typed_option_wins_over_default(
    tmp_path: Path, args: tuple[str, ...], expected: list[tuple[str, bool]]
) -> None:
    source = ARGPARSE + "args = parser.parse_args()\nopen(args.output + '/a', 'w')\n"
    assert writes(tmp_path, source, *args) == expected


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
