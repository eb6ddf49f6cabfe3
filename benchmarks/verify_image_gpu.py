"""The verification after a build, on this machine's GPU: a kernel per number format and a training step in a container.

    python benchmarks/verify_image_gpu.py OUT [--config seatrial.toml] [--gpus 1] [--import torch]

The image is the config's ready one: where no package index can be reached, it stands in for one that was just built.
OUT gets verify.json; the exit code is 1 where something does not hold.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from seatrial.backends.containers.docker import Docker
from seatrial.images.build.verify import verify_image
from seatrial.job.plan import Plan


def main() -> int:
    """Plan a run as the command line does, and verify its image the way that ``seatrial build`` does."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--config", type=Path, default=Path("seatrial.toml"))
    parser.add_argument("--gpus", default="1")
    parser.add_argument("--import", dest="imports", default="torch")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text("".join(f"import {name}\n" for name in given.imports.split(",")))
        (Path(folder) / "seatrial.toml").write_text(given.config.read_text())
        argv = [sys.executable, "-m", "seatrial", "plan", "train.py", "--gpus", given.gpus, "--on", "docker", "--json"]
        planned = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=120)
        if planned.returncode != 0:
            print(planned.stderr)
            return 1
        plan = Plan.model_validate_json(planned.stdout)
        assert plan.image is not None
        started = time.monotonic()
        container = plan.container if plan.gpus else None
        verification = verify_image(
            plan.image, given.imports.split(","), store=Docker().images, machine=None, container=container
        )
    given.out.mkdir(parents=True, exist_ok=True)
    shown = {**dataclasses.asdict(verification), "seconds": round(time.monotonic() - started, 1)}
    (given.out / "verify.json").write_text(json.dumps(shown, indent=1) + "\n")
    print(json.dumps(shown, indent=1))
    return 1 if verification.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
