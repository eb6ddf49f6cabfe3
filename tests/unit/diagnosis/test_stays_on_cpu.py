"""Why a script stays on the CPU: the line is named, and scripts that do come to the GPU are not accused."""

from seatrial.diagnosis.happened import reason_by_torch, reasons
from seatrial.job.model import Target
from tables import cases

NET = "import torch\nnet = torch.nn.Linear(3, 3)\n"


def read(tmp_path, source, *args):
    (tmp_path / "train.py").write_text(source)
    return [reason.words for reason in reasons(Target(kind="script", value="train.py", args=args), tmp_path)]


@cases("source", "words")
def test_the_line_is_named(tmp_path, source, words):
    found = read(tmp_path, source)
    assert found and words in found[0], found


@cases("source")
def test_nobody_is_accused(tmp_path, source):
    assert read(tmp_path, source) == []


def test_a_flag_that_was_given_decides(tmp_path):
    source = NET + 'p.add_argument("--device", "-d", default="cpu")\nnet.to(args.device)'
    assert read(tmp_path, source, "--device", "cuda") == []
    assert read(tmp_path, source, "--device=cpu")[0] == '--device is "cpu" in this command'
    assert read(
        tmp_path, NET + 'p.add_argument("--no-cuda", action="store_true")\nif not args.no_cuda: net.cuda()', "--no-cuda"
    )


def test_a_line_in_a_module_of_the_project(tmp_path):
    (tmp_path / "config.py").write_text('DEVICE = "cpu"\n')
    assert (
        "config.py:1 chooses the CPU: DEVICE"
        in read(tmp_path, "from config import DEVICE\n" + NET + "net.to(DEVICE)")[0]
    )


def test_cpu_build_is_reported_by_torch():
    assert "torch 2.11.0+cpu is a CPU build" in reason_by_torch({"version": "2.11.0+cpu", "cuda_build": None}).words
    assert reason_by_torch({"version": "2.11.0", "cuda_build": "13.0"}) is None and reason_by_torch({}) is None
