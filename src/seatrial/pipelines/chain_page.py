"""The chained receipt as HTML, Markdown and JSON in the project, and as lines for a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from markupsafe import Markup

from seatrial.job.units import format_bytes, format_seconds
from seatrial.pipelines.chain import Chain, Link, Piece, counts, is_good, missed_criteria, page_folder
from seatrial.pipelines.chain_picture import draw
from seatrial.receipt.formatting import count
from seatrial.receipt.render.pages import OTHER, STATES, Chip, render_page
from seatrial.system import nofollow
from seatrial.system.files import write_atomically
from seatrial.system.names import Names

#: Of a digest, in tables: as many digits as the engines show.
_DIGITS = 12

_MARKS = {"done": "[✓]", "unchanged": "[=]", "failed": "[✗]", "stopped": "[✗]"}


def write(chain: Chain, project: Path, names: Names) -> Path:
    """receipt.html, .md and .json without ``names``; the page's path. Raises DiskError, UntrustedPathError."""
    folder = page_folder(project, chain.id)
    chain = without_names(chain, names)
    with nofollow.folder(project, *folder.relative_to(project).parts, make=True):
        pass
    write_atomically(folder / "receipt.json", json.dumps(chain.as_dict(), indent=1).encode())
    write_atomically(folder / "receipt.md", markdown(chain).encode())
    write_atomically(folder / "receipt.html", page(chain).encode())
    return folder / "receipt.html"


def without_names(chain: Chain, names: Names) -> Chain:
    """Names of people and machines in what a target, a person or a path said; our own words and IDs stay."""
    told: dict[str, Any] = asdict(chain)
    told["project"] = names.text(chain.project)
    links = []
    for link in chain.links:
        clean = {
            "target": names.text(link.target),
            "verdict": names.text(link.verdict),
            "findings": tuple(names.text(finding) for finding in link.findings),
        }
        links.append(Link(**{**{key: getattr(link, key) for key in Link.__dataclass_fields__}, **clean}))
    return Chain(**{**told, "links": tuple(links)})


def page(chain: Chain) -> str:
    """The HTML."""
    return render_page(
        "seatrial.pipelines",
        "chain.html",
        chain=chain,
        headline=headline(chain),
        picture=Markup(draw(chain)),
        counts=counts(chain),
        tiles=_tiles(chain),
        links=[_row(link) for link in chain.links],
    )


def headline(chain: Chain) -> str:
    """``churn: 3 stages``."""
    what = {"stages": "stage", "compose": "service", "trackers": "tracker"}[chain.kind]
    return f"{chain.name or chain.project}: {count(len(chain.links), what)}"


def markdown(chain: Chain) -> str:
    """The same for an issue or a wiki."""
    lines = [f"# {headline(chain)}", "", summary(chain), ""]
    lines += [f"- {words}" for words in chain.broken] + [""] * bool(chain.broken)
    lines += ["| stage | state | verdict | wall | GPU-seconds | run |", "|---|---|---|---|---|---|"]
    for link in chain.links:
        cells = [link.name, link.state, link.verdict, _seconds(link), _gpu_seconds(link), link.run or ""]
        lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    pieces = [("read", link.name, piece) for link in chain.links for piece in link.read]
    pieces += [("wrote", link.name, piece) for link in chain.links for piece in link.wrote]
    if pieces:
        lines += ["", "| stage | | path | size | digest |", "|---|---|---|---|---|"]
        for verb, name, piece in pieces:
            lines.append("| " + " | ".join(_cell(cell) for cell in (name, verb, *_piece(piece))) + " |")
    return "\n".join([*lines, ""])


def terminal(chain: Chain) -> Iterator[str]:
    """Lines of at most about 100 letters."""
    yield f"{'[✓]' if chain.passed else '[✗]'} {headline(chain)}: {summary(chain)}"
    width = max((len(link.name) for link in chain.links), default=0)
    for link in chain.links:
        took = _gpu_seconds(link) if link.state != "unchanged" else ""
        yield f"{_mark(link)} {link.name:<{width}}  {link.verdict}{f' ({took})' if took else ''}"
        for verb, pieces in (("read", link.read), ("wrote", link.wrote)):
            for piece in pieces:
                path, size, digest = _piece(piece)
                broken = "" if piece.intact is not False else f"  NOT what {piece.of} wrote"
                yield f"    {'':<{width}}  {verb:<5} {path}  {size}  {digest}{broken}"


def _mark(link: Link) -> str:
    """Of its state; of a good one, what its own receipt says against it."""
    told = {"bad": "[✗]", "warning": "[!]"}.get(link.level or "") if link.state in ("done", "unchanged") else None
    return told or _MARKS.get(link.state, "[-]")


def summary(chain: Chain) -> str:
    """``done in 15.7 s; 2 done, 1 unchanged``."""
    took = f" in {format_seconds(chain.wall_s)}" if chain.wall_s is not None else ""
    gpu = f", {format_seconds(chain.gpu_s)} of GPU time" if chain.gpu_s else ""
    return f"{chain.state}{took}{gpu}; {counts(chain)}"


def _tiles(chain: Chain) -> list[tuple[str, str]]:
    tiles = [("wall time", format_seconds(chain.wall_s))] if chain.wall_s is not None else []
    tiles.append(("GPU time", format_seconds(chain.gpu_s) if chain.gpu_s else "none"))
    ran = sum(link.state not in ("unchanged", "skipped", "waiting") for link in chain.links)
    tiles += [("ran", str(ran)), ("unchanged", str(sum(link.state == "unchanged" for link in chain.links)))]
    return tiles


def _row(link: Link) -> dict[str, Any]:
    return {
        "link": link,
        "state": "criteria not met" if missed_criteria(link) else link.state,
        "chip": _chip(link),
        "facts": [
            (label, value)
            for label, value in (
                ("wall time", _seconds(link)),
                ("GPU time", _gpu_seconds(link)),
                ("needs", ", ".join(link.needs)),
                ("run", link.run or ""),
                ("its receipt", link.receipt or ""),
            )
            if value
        ],
        "page": f"../../runs/{link.run}/receipt.html" if link.run and link.receipt else None,
        "read": [(*_piece(piece), piece) for piece in link.read],
        "wrote": [(*_piece(piece), piece) for piece in link.wrote],
    }


def _chip(link: Link) -> Chip:
    if link.state in ("skipped", "waiting", "running"):
        return STATES.get(link.state, OTHER)
    return STATES.get(link.state, STATES["done"]) if is_good(link) else STATES["failed"]


def _piece(piece: Piece) -> tuple[str, str, str]:
    size = format_bytes(piece.bytes)
    if piece.files != 1:
        size = f"{count(piece.files, 'file')}, {size}"
    kind, _, digits = piece.digest.partition(":")
    return piece.path, size, f"{kind}:{digits[:_DIGITS]}"


def _seconds(link: Link) -> str:
    return format_seconds(link.seconds) if link.seconds is not None else ""


def _gpu_seconds(link: Link) -> str:
    return f"{format_seconds(link.gpu_seconds)} × GPU" if link.gpus and link.gpu_seconds else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
