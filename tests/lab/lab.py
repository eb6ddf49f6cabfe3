"""Runs loops that count themselves under the hook, and compares what the receipt claims with what they counted.

python tests/lab/lab.py [--only TEXT] [--aside] [--out FILE] [--jobs N] [--plain]

--aside: the tenth that is kept aside, too. --plain: without the hook, to check the loops alone. A loop runs in a fork
of this process, which has imported torch. Its receipt is judged twice: with an idle GPU, because that diagnosis makes
more claims, and without a GPU.
"""

from __future__ import annotations

import argparse
import atexit
import importlib.util
import io
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "src")]

from loops import kept_aside, loops  # noqa: E402

#: A loop that takes longer is ended.
LIMIT_S = 120.0
#: How far from the truth a number may be.
STEPS_WITHIN, EXAMPLES_WITHIN = 0.01, 0.05
#: Shares below are not counted as claims of an evaluation: a context without gradients inside a step.
EVALUATION_SHARE = 0.10

#: Sentences that are false of every loop here: all of them make steps.
FALSE = re.compile(r"did nothing|no optimizer step|makes? no steps|0 steps", re.IGNORECASE)
#: And those that are false of a loop that evaluates nothing.
FALSE_EVALUATION = re.compile(r"evaluate less|evaluation takes|% evaluation|in evaluation", re.IGNORECASE)


def main() -> int:
    """Run, judge, print the table and write it."""
    options = argparse.ArgumentParser()
    options.add_argument("--only", default="")
    options.add_argument("--aside", action="store_true")
    options.add_argument("--plain", action="store_true")
    options.add_argument("--jobs", type=int, default=6)
    options.add_argument("--out", type=Path)
    options.add_argument("--raw", type=Path, help="keep what was measured")
    options.add_argument("--judge", type=Path, help="judge what --raw has kept, and run nothing")
    chosen = options.parse_args()
    scripts = {
        name: text
        for name, text in loops().items()
        if chosen.only in name and (chosen.aside or chosen.plain or not kept_aside(name))
    }
    if chosen.judge:
        kept = [json.loads(line) for line in chosen.judge.read_text().splitlines()]
        return conclude({name: result for line in kept for name, result in line.items()}, chosen)
    folder = Path(tempfile.mkdtemp(prefix="lab-"))  # a TemporaryDirectory would be removed by the first fork that ends
    try:
        results = run_all(scripts, folder, chosen.jobs, measured=not chosen.plain, raw=chosen.raw)
    finally:
        shutil.rmtree(folder)
    if chosen.plain:
        for name, result in results.items():
            if result["exit_code"] and not name.startswith(("silent-save-fails", "interrupted")):
                print(name, result["stderr"][-600:])
        return 0
    return conclude(results, chosen)


def conclude(results: Mapping[str, Mapping[str, Any]], chosen: argparse.Namespace) -> int:
    """Judge, print and write."""
    verdicts = {name: verdict(result) for name, result in results.items()}
    rows = table(verdicts)
    for name, each in sorted(verdicts.items()):
        if each["steps"] != "right" or each["examples"] == "wrong" or each["false"]:
            print(f"{name}: {each['detail']} {each['false'] or ''}")
    for row in rows:
        print(" | ".join(map(str, row)))
    if chosen.out:
        write(chosen.out, rows, verdicts, chosen.aside)
    return int(
        any(each["steps"] == "wrong" or each["examples"] == "wrong" or each["false"] for each in verdicts.values())
    )


def run_all(
    scripts: Mapping[str, str],
    folder: Path,
    jobs: int,
    *,
    measured: bool,
    as_on_a_gpu: bool = False,
    raw: Path | None = None,
) -> dict[str, dict[str, Any]]:
    """Run every script in a fork, ``jobs`` at a time; each ended one is a line of ``raw``."""
    import torch
    import torch.utils.data
    import tqdm  # noqa: F401

    from seatrial.agent.hook import install

    torch.set_num_threads(1)
    # Making the first optimizer imports torch._dynamo, 2 s of CPU time.
    weights = torch.nn.Linear(2, 2)
    weights(torch.ones(1, 2)).sum().backward()
    torch.optim.AdamW(weights.parameters()).step()
    hook, env = folder / "hooks", {**os.environ, "OMP_NUM_THREADS": "1"}
    install.install(str(hook), env, None, measure_steps=True)
    waiting, running, found, late_ones = list(scripts.items()), {}, {}, set()
    while waiting or running:
        while waiting and len(running) < jobs:
            name, text = waiting.pop(0)
            home = folder / re.sub(r"\W", "-", name)
            home.mkdir()
            (home / "train.py").write_text(text)
            began_s = time.time()
            if (pid := os.fork()) == 0:
                _be_the_script(home, hook if measured else None, env if measured else os.environ, as_on_a_gpu)
            running[pid] = (name, home, began_s)
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in running:
            name, home, began_s = running.pop(pid)
            found[name] = _read(home, began_s, os.waitstatus_to_exitcode(status))
            if raw is not None:
                with raw.open("a") as kept:
                    kept.write(json.dumps({name: found[name]}) + "\n")
            shutil.rmtree(home)
            continue
        for late, (name, _, began_s) in running.items():
            if time.time() - began_s > LIMIT_S and name not in late_ones:
                print("too long:", name)
                late_ones.add(name)
                os.kill(late, 9)
        time.sleep(0.02)
    return found


def _be_the_script(home: Path, hook: Path | None, env: Mapping[str, str], as_on_a_gpu: bool, *argv: str) -> None:
    """Never returns. Python starts with sitecustomize, then torch is imported: here torch is there before."""
    code = 0
    try:
        os.chdir(home)
        for number, name in ((1, "stdout.log"), (2, "stderr.log")):
            os.dup2(os.open(home / name, os.O_WRONLY | os.O_CREAT, 0o644), number)
        sys.stdout, sys.stderr = (open(fd, "w", buffering=1, closefd=False) for fd in (1, 2))  # noqa: SIM115
        env = dict(env, SEATRIAL_EVENTS=str(home / "events.jsonl"))
        os.environ.clear()
        os.environ.update(env)
        sys.argv, sys.path[0] = ["train.py", *argv], str(home)
        if hook is not None:
            sys.path.insert(0, str(hook))
            spec: Any = importlib.util.spec_from_file_location("sitecustomize", hook / "sitecustomize.py")
            sitecustomize = sys.modules["sitecustomize"] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sitecustomize)  # by its path: Python may have another one
            if as_on_a_gpu:
                windows = sitecustomize.part("torch_windows").Windows
                place = windows._place
                windows._place = lambda opened: (opened._tensor_methods and opened._place_on_tensors(), place(opened))
            for module, hooks in sitecustomize.wanted().items():
                for part, function in hooks if module in sys.modules else ():
                    getattr(sitecustomize.part(part), function)(sys.modules[module])
        runpy.run_path(str(home / "train.py"), run_name="__main__")
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException as error:
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # as without this frame
        sys.audit("sys.excepthook", sys.excepthook, type(error), error, error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _read(home: Path, began_s: float, exit_code: int) -> dict[str, Any]:
    out, err = (home / "stdout.log").read_text(errors="replace"), (home / "stderr.log").read_text(errors="replace")
    truth = next((json.loads(line)["lab"] for line in out.splitlines() if line.startswith('{"lab"')), None)
    events = home / "events.jsonl"
    lines = [json.loads(line) for line in events.read_text().splitlines()] if events.exists() else []
    return {"truth": truth, "exit_code": exit_code, "began_s": began_s, "ended_s": time.time(), "lines": lines,
            "stdout": out, "stderr": err}  # fmt: skip


_TEMPLATE: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []


def _template() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The plan and the events of one real run, once: what is around the hook's lines."""
    if not _TEMPLATE:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "train.py").write_text("import time; time.sleep(3)  # import torch")
            env = {**os.environ, "XDG_STATE_HOME": folder + "/state"}
            command = [sys.executable, "-m", "seatrial", "run", "train.py", "--on", "local", "--gpus", "none"]
            subprocess.run(command, cwd=folder, env=env, capture_output=True, check=True, timeout=300)
            run = next(Path(folder).rglob("plan.json")).parent
            plan = json.loads((run / "plan.json").read_text())
            _TEMPLATE.append((plan, [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]))
    return _TEMPLATE[0]


def receipts(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Judge the evidence of a loop: on an idle GPU, and on a CPU."""
    from judged_again import as_if_on_a_gpu, judged_again

    plan, around = _template()
    events: list[dict[str, Any]] = []
    began, ended, code = result["began_s"], result["ended_s"], result["exit_code"]
    sample = next(each for each in around if each["type"] == "sample")
    for each in around:
        if each["type"] == "target.exited":
            events += [{**sample, "t": began + i / 4} for i in range(int(4 * (ended - began)))]
            events += [{**line, "type": "step", "source": "target"} for line in result["lines"]]
            each = {**each, "t": ended, "seconds": ended - began, "exit_code": code}
        elif each["type"] in ("agent.finished", "host.state"):
            each = {**each, "t": ended + 0.1, "exit_code": code}
        elif each["type"] == "sample":
            continue
        else:
            each = {**each, "t": began}
        events.append({key: value for key, value in each.items() if key not in ("_seq", "_chain")})
    judged = []
    for judge in (as_if_on_a_gpu, judged_again):
        with tempfile.TemporaryDirectory() as folder:
            files = {"plan.json": json.dumps(plan).encode(), "events.jsonl": "\n".join(map(json.dumps, events)).encode(),
                     "stdout.log": result["stdout"].encode(), "stderr.log": result["stderr"].encode()}  # fmt: skip
            judged.append(judge(files, Path(folder)))
    return judged


def verdict(result: Mapping[str, Any]) -> dict[str, Any]:
    """Compare: ``steps`` and ``examples`` are right, unknown or wrong; none where the script knows none, and neither does
    the receipt. ``false`` lists false sentences."""
    truth = result["truth"]
    if truth is None:
        return {"steps": "failed", "examples": "failed", "false": [], "detail": result["stderr"][-400:], "error": 0.0}
    judged = receipts(result)
    ranks = judged[1]["anatomy"]
    steps = sum(each["steps"] for each in ranks)
    rates = [each["examples_per_s"] for each in ranks if each["examples_per_s"]]
    rate, true_rate = sum(rates), (truth["examples"] or 0) / truth["seconds"]
    texts = [text for receipt in judged for text in _sentences(receipt)]
    false = sorted({text for text in texts if FALSE.search(text)})
    evaluation = max(
        (part["share"] for each in ranks for part in each["parts"] if part["id"] == "evaluation"), default=0
    )
    if not truth["evaluations"]:
        false += sorted({text for text in texts if FALSE_EVALUATION.search(text)})
        false += [f"{evaluation:.0%} evaluation"] if evaluation > EVALUATION_SHARE else []
    return {
        "steps": _judged(steps or None, truth["steps"], STEPS_WITHIN),
        "examples": _judged(rate or None, true_rate if truth["examples"] is not None else None, EXAMPLES_WITHIN),
        "false": false,
        "detail": f"steps {steps} of {truth['steps']}, examples/s {rate:.0f} of {true_rate:.0f}",
        "error": steps / truth["steps"] - 1,
    }


def _judged(claimed: float | None, true: float | None, within: float) -> str:
    if claimed is None:
        return "unknown" if true is not None else "none"
    return "right" if true is not None and abs(claimed / true - 1) <= within else "wrong"


def _sentences(node: Any) -> list[str]:
    """Every text of a receipt but the log's own lines."""
    if isinstance(node, dict):
        return [
            text for key, value in node.items() if key not in ("plots", "log", "tail") for text in _sentences(value)
        ]
    if isinstance(node, list):
        return [text for each in node for text in _sentences(each)]
    return [node] if isinstance(node, str) and " " in node else []


def table(verdicts: Mapping[str, Mapping[str, Any]]) -> list[list[Any]]:
    """One row for each structure, and one for all."""
    rows = []
    structures = sorted({name.partition("/")[0] for name in verdicts})
    for structure in (*structures, "all"):
        group = [each for name, each in verdicts.items() if structure in ("all", name.partition("/")[0])]
        steps, examples = (Counter(each[key] for each in group) for key in ("steps", "examples"))
        worst = max((each["error"] for each in group if each["steps"] != "unknown"), key=abs, default=0.0)
        rows.append([structure, len(group), steps["right"], steps["unknown"], steps["wrong"], f"{100 * worst:+.1f} %",
                     examples["right"], examples["unknown"], examples["wrong"], sum(bool(each["false"]) for each in group)])  # fmt: skip
    return rows


def write(path: Path, rows: list[list[Any]], verdicts: Mapping[str, Mapping[str, Any]], aside: bool) -> None:
    """Write the table that the site shows, and every verdict."""
    import platform

    import torch

    parts = [
        f"{kind}: {', '.join(sorted(n for n, v in verdicts.items() if v[kind] == 'unknown'))}"
        for kind in ("steps", "examples")
    ]
    parts.append(
        f"no examples, in the script and in the receipt: {', '.join(n for n, v in sorted(verdicts.items()) if v['examples'] == 'none')}"
    )
    found = {
        "title": "Measured steps beside steps counted by the script",
        "machine": f"{os.cpu_count()} shared cores, no GPU",
        "versions": f"Python {platform.python_version()}, torch {torch.__version__}",
        "date": time.strftime("%Y-%m-%d"),
        "command": "make lab" + (" ASIDE=1" if aside else ""),
        "commit": subprocess.check_output(["git", "rev-parse", "--short=12", "HEAD"], cwd=Path(__file__).parent, text=True).strip(),
        "files": ["src/seatrial/agent/hook", "tests/lab"],
        "columns": ["loops", "count", "steps right", "unknown", "wrong", "largest error", "examples/s right", "unknown", "wrong",
                    "false sentences"],
        "rows": [[str(cell) for cell in row] for row in rows],
        "unknown": parts,
    }  # fmt: skip
    text = io.StringIO()
    json.dump(found, text, indent=1, ensure_ascii=False)
    path.write_text(text.getvalue() + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
