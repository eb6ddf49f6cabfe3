"""The slimming program's command line; the Dockerfile's RUN calls it."""

from __future__ import annotations

import argparse
from pathlib import Path

from seatrial.images.slim.program.device_code import shrink_libraries
from seatrial.images.slim.program.estimate import print_measure
from seatrial.images.slim.program.files import slim_files
from seatrial.images.slim.program.report import SlimReport
from seatrial.images.slim.program.unused import files_of, slim_unused, wanted_stubs

LEVELS = ("files", "unused", "arch")


def main() -> None:
    """Slim every site-packages below ``--root``."""
    parser = argparse.ArgumentParser(prog="slim.pyz", description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="a virtual environment, or a site-packages folder")
    parser.add_argument("--level", choices=LEVELS)
    parser.add_argument("--measure", action="store_true", help="change nothing; print sizes as JSON")
    parser.add_argument("--keep-headers", action="store_true", help="the job compiles at run time")
    parser.add_argument("--unused", default="", help="features that the job does not use, comma-separated")
    parser.add_argument("--arch", default="", help="architectures to keep, e.g. 80,90")
    parser.add_argument("--above", type=Path, metavar="LIST", help="packages of a layer below, whose libraries stay")
    parser.add_argument("--keep-metadata", action="store_true", help="pip will run once more: it must see all packages")
    parser.add_argument("--wanted", action="store_true", help="change nothing; print packages whose stubs are needed")
    given = parser.parse_args()
    report = SlimReport.read(given.root / "slim.json") if given.above else SlimReport()
    sites = [path.resolve() for path in given.root.glob("lib/python3*/site-packages")] or [given.root.resolve()]
    targets = {int(text) for text in given.arch.split(",") if text}
    if given.measure:
        print_measure(sites, targets)
        return
    if given.wanted:
        print(*sorted({package for site in sites for package in wanted_stubs(site)}))
        return
    for site in sites:
        below = files_of(site, given.above) if given.above else set()
        slim_files(site, report, keep_headers=given.keep_headers)
        if given.level in ("unused", "arch"):
            unused = set(filter(None, given.unused.split(",")))
            slim_unused(site, unused, report, keep_metadata=given.keep_metadata)
        shrink_libraries(site, targets if given.level == "arch" else set(), report, skipped=below)
    print("\n".join(report.lines()), flush=True)
    report.write(given.root / "slim.json", {key: str(value) for key, value in vars(given).items()})


if __name__ == "__main__":
    main()
