"""Kept changes written into files: what is edited, what stays as it was, and what is said instead."""

import pytest

from seatrial.errors import ConfigError
from seatrial.tuning.patch import apply, patch

pytest.importorskip("libcst")

SCRIPT = """\
import torch
from torch import nn, optim
from torch.utils.data import DataLoader

loader = DataLoader(
    data,
    batch_size=64,  # as in the paper
    shuffle=True,
)
model = Net().to(device)  # on the GPU
optimizer = optim.AdamW(model.parameters(), lr=1e-3)
for x, y in loader:
    x, y = x.to(device), y.cuda()
    # the step
    output = model(x)
    loss = criterion(output, y)
    model.train()
"""
PLACES = {
    "main": ["train.py:1"],
    "workers": ["train.py:5"],
    "persistent_workers": ["train.py:5"],
    "model_to": ["train.py:10"],
    "fused_optimizer": ["train.py:11"],
    "non_blocking": ["train.py:13"],
    "model": ["train.py:15"],
    "precision": ["train.py:15"],
    "outputs": ["tensor"],
    "pictures": ["0"],
}
KEPT = {
    "workers": 8, "persistent_workers": True, "fused_optimizer": True, "non_blocking": True, "tf32": True,
    "channels_last": True, "compile": "default", "precision": "bf16",
}  # fmt: skip
PATCHED = """\
import torch
from torch import nn, optim
from torch.utils.data import DataLoader
torch.set_float32_matmul_precision("high")

loader = DataLoader(
    data,
    batch_size=64,  # as in the paper
    shuffle=True,
    num_workers=8,
    persistent_workers=True,
)
model = Net().to(device)  # on the GPU
model = model.to(memory_format=torch.channels_last)
model.compile()  # in place: names in state_dict stay
optimizer = optim.AdamW(model.parameters(), lr=1e-3, fused=True)
for x, y in loader:
    x, y = x.to(device, non_blocking=True), y.cuda(non_blocking=True)
    # the step
    with torch.autocast("cuda", dtype=torch.bfloat16):
        output = model(x.to(memory_format=torch.channels_last)).float()
    loss = criterion(output, y)
    model.train()
"""


def patched(tmp_path, text, places, kept, name="train.py"):
    (tmp_path / name).write_bytes(text.encode())
    result = patch(tmp_path, places, kept)
    return (result.files[0].after.decode() if result.files else text), result


def test_all_changes_at_once_and_nothing_else(tmp_path):
    after, result = patched(tmp_path, SCRIPT, PLACES, KEPT)
    assert after == PATCHED and result.left_out == ()
    assert result.diff.startswith("--- a/train.py\n+++ b/train.py\n")


def test_the_diff_is_one_that_git_applies(tmp_path):
    import subprocess

    _, result = patched(tmp_path, SCRIPT.rstrip("\n"), PLACES, KEPT)
    subprocess.run(["git", "apply", "-"], input=result.diff, text=True, cwd=tmp_path, check=True)
    assert (tmp_path / "train.py").read_text() == PATCHED.rstrip("\n")


def test_a_patched_file_is_not_patched_again(tmp_path):
    moved = {
        "main": 1,
        "workers": 6,
        "persistent_workers": 6,
        "model_to": 13,
        "fused_optimizer": 16,
        "non_blocking": 18,
    }
    places = {key: [f"train.py:{line}"] for key, line in {**moved, "model": 21, "precision": 21}.items()}
    after, result = patched(tmp_path, PATCHED, {**places, "outputs": ["tensor"], "pictures": ["0"]}, KEPT)
    assert after == PATCHED and result.diff == ""


@pytest.mark.parametrize(
    "before, after",
    [
        ("DataLoader(d, 64, True)", "DataLoader(d, 64, True, num_workers=8)"),
        ("DataLoader(d, num_workers=args.j, shuffle=True)", "DataLoader(d, num_workers=8, shuffle=True)"),
        ("DataLoader(d, 64, True, None, None, 2)", "DataLoader(d, 64, True, None, None, 8)"),
        ("DataLoader(d,**kwargs)", 'DataLoader(d,**{**kwargs, "num_workers": 8})'),
        ("DataLoader(d, **{'a': 1})", "DataLoader(d, **{'a': 1, \"num_workers\": 8})"),
        ("torch.utils.data.DataLoader(\n    d)", "torch.utils.data.DataLoader(\n    d, num_workers=8)"),
        ("DataLoader(\n    d,\n    shuffle=True\n)", "DataLoader(\n    d,\n    shuffle=True,\n    num_workers=8\n)"),
        (
            "DataLoader(\n    d,\n    shuffle=True,  # why\n)",
            "DataLoader(\n    d,\n    shuffle=True,  # why\n    num_workers=8,\n)",
        ),
        ("DataLoader(\n    d,\n)", "DataLoader(\n    d,\n    num_workers=8,\n)"),
    ],
)
def test_arguments_are_given_in_the_way_the_call_is_written(tmp_path, before, after):
    made, result = patched(tmp_path, f"loader = {before}\n", {"workers": ["train.py:1"]}, {"workers": 8})
    assert made == f"loader = {after}\n" and result.left_out == ()


@pytest.mark.parametrize(
    "line, why",
    [
        ("loader = DataLoader(*settings)", "its arguments come from a list"),
        ("loader = DataLoader(d, **one, **two)", "its arguments come from several dictionaries"),
        ("loader = build(d)", "no DataLoader is called there by a name that is known"),
    ],
)
def test_what_cannot_be_edited_is_said_with_what_to_write(tmp_path, line, why):
    made, result = patched(tmp_path, f"{line}\n", {"workers": ["train.py:1"]}, {"workers": 8})
    assert made == f"{line}\n"
    assert result.left_out == (
        f"num_workers=8 is not in the patch: train.py:1: {why}. Give the training DataLoader num_workers=8.",
    )


def test_several_outputs_become_float32_again(tmp_path):
    text = "import torch\nfor x in data:\n    a, b = vae(x)\nvae.train()\n"
    places = {"model": ["train.py:3"], "precision": ["train.py:3"], "outputs": ["tensors"]}
    made, _ = patched(tmp_path, text, places, {"precision": "bf16"})
    assert made == (
        'import torch\nfor x in data:\n    with torch.autocast("cuda", dtype=torch.bfloat16):\n'
        "        a, b = vae(x)\n    a, b = (each.float() for each in (a, b))\nvae.train()\n"
    )


@pytest.mark.parametrize("line", ["if model(x).sum() > 0: pass", "f = lambda x: model(x)"])
def test_a_call_that_is_no_statement_is_left(tmp_path, line):
    places = {"precision": ["train.py:2"], "model": ["train.py:2"], "outputs": ["tensor"]}
    made, result = patched(tmp_path, f"import torch\n{line}\n", places, {"precision": "bf16"})
    assert made == f"import torch\n{line}\n" and len(result.left_out) == 1


def test_the_trainers_own_arguments_are_used(tmp_path):
    text = "args = TrainingArguments(output_dir='out')\nTrainer(args=args).train()\n"
    places = {key: ["train.py:2"] for key in ("workers", "precision", "model", "compile")}
    kept = {"workers": 4, "precision": "bf16", "compile": "default"}
    made, result = patched(tmp_path, text, places, kept)
    assert made.splitlines()[0] == (
        "args = TrainingArguments(output_dir='out', dataloader_num_workers=4, torch_compile=True, bf16=True)"
    ) and result.left_out == ()  # fmt: skip


def test_line_endings_and_the_mode_stay(tmp_path):
    path = tmp_path / "train.py"
    path.write_bytes(SCRIPT.replace("\n", "\r\n").encode())
    path.chmod(0o755)
    apply(patch(tmp_path, PLACES, KEPT))
    assert path.read_bytes() == PATCHED.replace("\n", "\r\n").encode()
    assert path.stat().st_mode & 0o777 == 0o755


def test_a_file_that_has_changed_since_is_not_written(tmp_path):
    _, result = patched(tmp_path, SCRIPT, PLACES, KEPT)
    (tmp_path / "train.py").write_text(SCRIPT + "\n")
    with pytest.raises(ConfigError, match="changed since"):
        apply(result)
    assert (tmp_path / "train.py").read_text() == SCRIPT + "\n"


@pytest.mark.parametrize("place", ["../other.py:1", "/etc/passwd.py:1", "missing.py:3", "link.py:1", "train.py:x", ""])
def test_places_outside_the_project_are_not_touched(tmp_path, place):
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "other.py").write_text("loader = DataLoader(d)\n")
    (project / "link.py").symlink_to(tmp_path / "other.py")
    result = patch(project, {"workers": [place]}, {"workers": 8})
    assert result.files == () and len(result.left_out) == 1


def test_what_is_no_python_is_said(tmp_path):
    _, result = patched(tmp_path, "print 'two'\n", {"workers": ["train.py:1"]}, {"workers": 8})
    assert result.files == () and "cannot be parsed" in result.left_out[0]


def test_a_model_of_torchs_own_class_has_its_forward_compiled(tmp_path):
    places = {**PLACES, "compiled": ["forward"]}
    after, result = patched(tmp_path, SCRIPT, places, {"compile": "reduce-overhead"})
    assert 'model.forward = torch.compile(model.forward, mode="reduce-overhead")  # model.compile() passes' in after
    assert result.left_out == () and "model.compile(mode" not in after
