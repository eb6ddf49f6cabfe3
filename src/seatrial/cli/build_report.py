"""The result of seatrial build: the image, its verification and contents, and remarks on a Dockerfile."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from seatrial.cli.door import console
from seatrial.findings.finding import FIX
from seatrial.images.lint.dockerfile import Remark
from seatrial.runs.build_command import Built

_ROWS = 14


def print_built(built: Built, *, as_json: bool) -> None:
    """Print the image, its verification and contents."""
    image = built.plan.image
    assert image is not None
    if as_json:
        print(json.dumps(_as_data(built), indent=1))
        return
    out = console()
    size = ""
    if built.size_bytes is not None:
        above = f", {_size(built.size_bytes - built.base_bytes)} above its base" if built.base_bytes else ""
        size = f": {_size(built.size_bytes)}{above}"
    how = "already existed" if built.result.cached else f"built in {built.result.seconds:.0f} s"
    out.print(Text(image.tag, style="bold").append(f" {how}{size}", style="not bold"), soft_wrap=True)
    verification = built.verification
    versions = ", ".join(f"{name} {version}" for name, version in verification.versions.items())
    imports = ", ".join(f"{name} in {seconds:.1f} s" for name, seconds in verification.import_s.items())
    out.print(f"  Python {verification.python}" + (f", {versions}" if versions else ""), style="dim")
    if imports:
        out.print(f"  imports {imports}", style="dim")
    if verification.architectures:
        out.print(f"  code for {' '.join(verification.architectures)}", style="dim")
    for device, formats in verification.kernels.items():
        out.print(f"  {device} ran kernels in {', '.join(formats)}", style="dim")
    if not verification.on_gpu and image.stack.get("build", "cpu") != "cpu":
        out.print("  no kernel was tested on a GPU: no target GPU is present", style="dim")
    if built.compressed_bytes is not None:
        out.print(f"  {_size(built.compressed_bytes)} in compressed layers, base included", style="dim")
    if built.contents:
        _print_contents(built, out)


def _print_contents(built: Built, out: Console) -> None:
    contents = built.contents
    for title, key in (("Packages", "packages"), ("Kinds of files", "kinds"), ("Device code", "device_code")):
        rows = sorted(contents[key].items(), key=lambda row: -row[1])
        if not rows:
            continue
        largest = rows[0][1]
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(no_wrap=True)
        for name, size in rows[:_ROWS]:
            table.add_row(name, _size(size), Text("━" * max(1, round(30 * size / max(1, largest))), style="cyan"))
        if rest := sum(size for _, size in rows[_ROWS:]):
            table.add_row(f"{len(rows) - _ROWS} more", _size(rest), "")
        out.print(f"\n{title}", style="bold")
        out.print(table)
    _print_copies(contents["twice"], out)
    saved = contents["saved"]
    out.print("\nSlimming would save", style="bold")
    total = 0
    for level in ("files", "unused", "arch"):
        total += saved[level]
        if saved[level]:
            out.print(f"  --slim {level:<7} {_size(total):>9}" + ("  at most" if level != "files" else ""))


def _print_copies(twice: dict[str, dict[str, int]], out: Console) -> None:
    """Print each library that is installed more than once with its places; the largest copy is not waste."""
    if not twice:
        return
    spare = sum(sum(copies.values()) - max(copies.values()) for copies in twice.values())
    out.print(Text("\nCUDA is installed twice", style="bold").append(f": {_size(spare)} wasted", style="not bold"))
    for name, copies in sorted(twice.items(), key=lambda row: -sum(row[1].values()))[:_ROWS]:
        out.print(f"  lib{name}", *(f"    {_size(size):>7}  {path}" for path, size in copies.items()), sep="\n")


def print_findings(path: Path, findings: Sequence[Remark], *, as_json: bool) -> None:
    """Print each remark with its line and its fix."""
    if as_json:
        print(json.dumps([each.to_dict() for each in findings], indent=1))
        return
    out = console(soft_wrap=True)
    for each in findings:
        colour = {"error": "red", "warning": "yellow"}.get(each.severity, "cyan")
        place = Text(f"{path}:{each.line}: ")
        out.print(place.append(each.severity, style=f"bold {colour}").append(f" {each.message}"))
        out.print(Text(f"    {FIX}: {each.fix}", style="dim"))
    out.print(f"{path}: {len(findings) or 'no'} remark{'s' * (len(findings) != 1)}")


def _as_data(built: Built) -> dict[str, object]:
    image, verification = built.plan.image, built.verification
    assert image is not None
    return {
        "tag": image.tag,
        "image_id": built.result.image_id,
        "size_bytes": built.size_bytes,
        "base_bytes": built.base_bytes,
        "compressed_bytes": built.compressed_bytes,
        "seconds": round(built.result.seconds, 1),
        "cached": built.result.cached,
        "stack": image.stack,
        "architectures": list(image.architectures),
        "verification": {name: value for name, value in asdict(verification).items() if name != "wrong"},
        **({"contents": built.contents} if built.contents else {}),
    }


def _size(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
