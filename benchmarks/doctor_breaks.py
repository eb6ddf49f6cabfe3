"""doctor on a GPU: the healthy chain is green inside a real container, and five breaks made on purpose are named.

    python benchmarks/doctor_breaks.py --out FOLDER --image IMAGE [--python PATH] [--mount SRC:DST:ro …]

Starts containers of IMAGE with the device nodes and the driver's libraries mounted by hand, leaves one thing out of
each, and asks ``seatrial doctor --container``. Writes results.json, summary.md and healthy.txt into FOLDER; takes about
a minute on one H200. A part that fails is written down and the others go on. Exit code 0 when all were named.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seatrial.probe import driver_files

#: The first import of torch from a cold disk takes half a minute.
DOCTOR_S = 90.0
SMALL_SHM = "64m"


@dataclass(frozen=True)
class Driver:
    """What a container needs of the driver, as options of ``docker run``.

    Attributes:
        control: node in the container → node on the host; gpus likewise.
        mounts: options that bring the libraries in. libcuda: paths in the container that lead to it.
        env: options that tell the linker where they are.
    """

    control: dict[str, str]
    gpus: dict[str, str]
    mounts: tuple[str, ...]
    libcuda: tuple[str, ...]
    env: tuple[str, ...]


@dataclass(frozen=True)
class Case:
    """One container: its options, and what doctor must say of it first; None for a healthy one."""

    options: tuple[str, ...]
    check: str | None
    findings: tuple[str, ...] = ()


def real_driver() -> Driver:
    """This host's, found as ``seatrial run`` finds it."""
    found = driver_files.find()
    folders = tuple(dict.fromkeys(str(Path(library.path).parent) for library in found.libraries))
    mounts = tuple(
        word for folder in folders if not folder.startswith("/usr/lib") for word in ("-v", f"{folder}:{folder}:ro")
    )
    libcuda = [library for library in found.libraries if Path(library.path).name.startswith("libcuda.so")]
    return Driver(
        control={node.path: node.path for node in found.control},
        gpus={node.path: node.path for node in found.gpus.values()},
        mounts=mounts,
        libcuda=tuple(library.path for library in libcuda),
        env=("-e", f"LD_LIBRARY_PATH={':'.join(folders)}"),
    )


def cases(driver: Driver, empty: Path) -> dict[str, Case]:
    """The healthy container and the broken ones. ``empty`` is a file of no bytes."""
    control, gpus = _devices(driver.control), _devices(driver.gpus)
    shm = ("--shm-size", "2g")
    common = (*driver.mounts, *driver.env)
    withheld = _devices(dict(list(driver.gpus.items())[:-1]))
    without_uvm = _devices({inside: host for inside, host in driver.control.items() if inside != "/dev/nvidia-uvm"})
    hidden = tuple(word for path in driver.libcuda for word in ("-v", f"{empty}:{path}:ro"))
    wrong = ("-e", "CUDA_VISIBLE_DEVICES=7")
    small = "nccl-shared-memory" if len(driver.gpus) > 1 else "shared-memory-too-small"
    return {
        "healthy": Case((*common, *control, *gpus, *shm), None),
        "device node withheld": Case((*common, *control, *withheld, *shm), "container.gpus", ("device-node-missing",)),
        "libcuda hidden": Case((*common, *hidden, *control, *gpus, *shm), "container.gpus", ("libcuda-missing",)),
        "CUDA_VISIBLE_DEVICES wrong": Case(
            (*common, *wrong, *control, *gpus, *shm), "container.gpus", ("cuda-visible-devices",)
        ),
        "64 MB of shared memory": Case((*common, *control, *gpus, "--shm-size", SMALL_SHM), "container.shm", (small,)),
        "uvm node missing": Case((*common, *without_uvm, *gpus, *shm), "container.gpus", ("uvm-node-missing",)),
    }


def _devices(nodes: dict[str, str]) -> tuple[str, ...]:
    return tuple(word for inside, host in nodes.items() for word in ("--device", f"{host}:{inside}"))


@contextmanager
def container(engine: str, image: str, options: Sequence[str], python: str, network: str = "none") -> Iterator[str]:
    """A container that sleeps, under a name; removed at the end."""
    name = f"seatrial-doctor-breaks-{time.time_ns()}"
    sleep = ["-c", "import time; time.sleep(600)"]
    argv = [engine, "run", "-d", "--name", name, "--network", network, *options, "--entrypoint", python, image]
    subprocess.run([*argv, *sleep], check=True, capture_output=True, text=True, timeout=60)
    try:
        yield name
    finally:
        subprocess.run([engine, "rm", "-f", name], capture_output=True, timeout=60)


def judge(case: Case, told: dict[str, Any]) -> str | None:
    """Why doctor's report is not what the case must give, or None."""
    by_id = {check["id"]: check for check in told["checks"]}
    if case.check is None:
        layers = ("hardware", "driver", "userspace", "container", "framework")
        wrong = [
            f"{c['id']}: {c['line']}"
            for c in told["checks"]
            if c["layer"] in layers and c["status"] in ("broken", "unknown")
        ]
        looked = [id for id in ("container.gpus", "container.kernels") if by_id[id]["status"] != "ok"]
        return "; ".join(wrong + looked) or None
    found = [finding["id"] for finding in by_id[case.check]["findings"]]
    first = told["first_broken"]
    if not set(case.findings) & set(found):
        return f"{case.check} found {found or 'nothing'}: {by_id[case.check]['line']}"
    if first not in (None, case.check):
        return f"{first} was blamed"
    return None


def doctor(arguments: Sequence[str], timeout_s: float = DOCTOR_S) -> tuple[dict[str, Any], float]:
    """``seatrial doctor --json`` with these arguments; its report and seconds."""
    start = time.monotonic()
    argv = [sys.executable, "-m", "seatrial", "doctor", "--json", *arguments]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s)
    try:
        told: dict[str, Any] = json.loads(ended.stdout)
    except ValueError:
        raise RuntimeError(f"exit code {ended.returncode}: {(ended.stderr or ended.stdout)[-500:]}") from None
    return told, round(time.monotonic() - start, 2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--image", required=True)
    parser.add_argument("--engine", default="docker")
    parser.add_argument("--python", default="python3")
    parser.add_argument("--network", default="none", help="host for machines that cannot make network namespaces")
    parser.add_argument("--mount", action="append", default=[], metavar="SRC:DST[:ro]")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    empty = arguments.out / "empty"
    empty.touch()
    inside = ["--on", arguments.engine, "--python", arguments.python]
    results: dict[str, dict[str, Any]] = {}

    def part(name: str, look: Any) -> None:
        try:
            results[name] = look()
        except Exception as error:  # noqa: BLE001  the other parts go on
            said = getattr(error, "stderr", None) or ""
            results[name] = {"passed": False, "why": f"{type(error).__name__}: {error} {said}".strip()}
        state = "ok" if results[name]["passed"] else f"FAILED: {results[name].get('why')}"
        print(f"{name}: {state} ({results[name].get('seconds', 0)} s)", flush=True)
        (arguments.out / "results.json").write_text(json.dumps(results, indent=1))

    def host_only() -> dict[str, Any]:
        told, seconds = doctor(["--on", arguments.engine, "--host-only"])
        return {"passed": told["exit_code"] < 2, "seconds": seconds, "why": told["first_broken"], "told": told}

    def started_by_doctor() -> dict[str, Any]:
        mounts = [word for text in arguments.mount for word in ("--mount", text)]
        told, seconds = doctor([*inside, "--network", arguments.network, "--image", arguments.image, *mounts])
        why = judge(Case((), None), told)
        return {"passed": why is None, "seconds": seconds, "why": why, "told": told}

    def broken(case: Case) -> dict[str, Any]:
        user = tuple(word for text in arguments.mount for word in ("-v", text))
        options = (*user, *case.options)
        with container(arguments.engine, arguments.image, options, arguments.python, arguments.network) as name:
            told, seconds = doctor([*inside, "--container", name])
        why = judge(case, told)
        return {"passed": why is None, "seconds": seconds, "why": why, "told": told}

    part("host part", host_only)
    part("container started by doctor", started_by_doctor)
    for name, case in cases(real_driver(), empty.resolve()).items():
        part(name, lambda case=case: broken(case))
    write_summary(arguments.out, results)
    return 0 if all(result["passed"] for result in results.values()) else 1


def write_summary(folder: Path, results: dict[str, dict[str, Any]]) -> None:
    """summary.md: a line for each part, and what doctor said of it."""
    lines = [
        f"# doctor on a GPU, {time.strftime('%Y-%m-%d %H:%M')}",
        "",
        "| part | passed | seconds | first broken | said |",
        "|---|---|---|---|---|",
    ]
    for name, result in results.items():
        told = result.get("told") or {"checks": [], "first_broken": None}
        said = next((c for c in told["checks"] if c["findings"] and c["status"] in ("broken", "warning")), None)
        cells = [
            name,
            "yes" if result["passed"] else f"NO: {result.get('why')}",
            str(result.get("seconds", "")),
            told["first_broken"] or "",
            f"{said['findings'][0]['id']}: {said['line']}" if said else "all green",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    healthy = results.get("container started by doctor", {}).get("told")
    if healthy:
        lines += ["", "## The healthy chain", ""]
        lines += [
            f"- `{check['id']}` {check['status']}: {check['line']} ({check['seconds']} s)"
            for check in healthy["checks"]
        ]
    (folder / "summary.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
