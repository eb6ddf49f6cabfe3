"""The program that makes layers, on small environments of its own."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from seatrial.images.dockerfile import layer_program


def package(root: Path, name: str, version: str, *, code: str = "", library: bytes = b"") -> None:
    """Make an installed package: a folder, its metadata and a record of both."""
    site = root / "lib" / f"python3.{sys.version_info[1]}" / "site-packages"
    (site / name).mkdir(parents=True, exist_ok=True)
    (site / name / "__init__.py").write_text(code or f"version = '{version}'\n")
    (site / name / "lib.so").write_bytes(library)
    info = site / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text(f"{name}/__init__.py,,\n{name}/lib.so,,\n{info.name}/METADATA,,\n")


def contents(root: Path) -> dict[str, tuple[str, int]]:
    """Path → digest and whole seconds, for all that a layer would hold."""
    found = {}
    for path in sorted(root.rglob("*")):
        data = path.read_bytes() if path.is_file() and not path.is_symlink() else path.name.encode()
        found[str(path.relative_to(root))] = hashlib.sha256(data).hexdigest(), int(path.lstat().st_mtime)
    return found


def test_the_same_packages_are_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the time, and however long it took: two installations, one with stale bytecode of another time."""
    roots = [tmp_path / name / "venv" for name in ("one", "two")]
    for number, root in enumerate(roots):
        for at in range(3):
            package(root, f"thing{at}", "1.0", code=f"words = {{'a', 'b', 'c'}}\ndef f(): return '{at}' in words\n")
        (root / "link").symlink_to("lib")
        for path in root.rglob("*"):
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number), follow_symlinks=False)
        if number:
            subprocess.run([sys.executable, "-m", "compileall", "-q", str(root)], check=True)
        monkeypatch.chdir(root)  # bytecode names its source: in images that is /opt/venv in both
        layer_program.finish(".")
    monkeypatch.undo()
    one, two = map(contents, roots)
    assert one == two
    assert {time for _, time in one.values()} == {layer_program.EPOCH_S}
    assert sum(name.endswith(".pyc") for name in one) == 3


def test_bytecode_belongs_to_its_source(tmp_path: Path) -> None:
    """Python does not write it again: it holds the source's time."""
    package(tmp_path, "thing", "1.0")
    layer_program.finish(str(tmp_path))
    site = next(tmp_path.glob("lib/*/site-packages"))
    (bytecode,) = site.rglob("*.pyc")
    before = bytecode.stat()
    code = "import thing; print(thing.version)"
    environ = {**os.environ, "PYTHONPATH": str(site)}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    assert subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True).stdout == "1.0\n"
    assert bytecode.stat().st_mtime_ns == before.st_mtime_ns and bytecode.stat().st_ino == before.st_ino


def test_a_file_that_does_not_compile_stops_nothing(tmp_path: Path) -> None:
    package(tmp_path, "old", "1.0", code="print 'Python 2'\n")
    package(tmp_path, "thing", "1.0")
    layer_program.finish(str(tmp_path))
    assert len(list(tmp_path.rglob("*.pyc"))) == 1


def test_a_second_layer_touches_nothing_of_the_first(tmp_path: Path) -> None:
    package(tmp_path, "first", "1.0")
    layer_program.finish(str(tmp_path))
    before = {path: path.lstat().st_ctime_ns for path in tmp_path.rglob("first*/**/*") if path.is_file()}
    package(tmp_path, "second", "1.0")
    layer_program.finish(str(tmp_path))
    assert before == {path: path.lstat().st_ctime_ns for path in before}
    assert len(list(tmp_path.rglob("*.pyc"))) == 2


def test_a_mirror_writes_what_differs_and_removes_what_is_gone(tmp_path: Path) -> None:
    """A newer version of a package in the stage with the compiler replaces the one below; the framework stays."""
    image, builder = tmp_path / "image", tmp_path / "builder"
    for root in (image, builder):
        package(root, "torch", "2.13.0", library=b"\x7fELF" + bytes(1000))
        package(root, "kept", "1.0")
        (root / "framework.txt").write_text("torch==2.13.0\n")
    package(image, "numpy", "1.0", library=b"old!")
    package(builder, "numpy", "2.0", library=b"new!")  # of the same length
    (builder / "bin").mkdir()
    (builder / "bin" / "tool").symlink_to("../lib")
    (image / "bin").write_text("a file where the other has a folder")
    for root in (image, builder):
        layer_program.finish(str(root))
    untouched = [path for path in image.rglob("*") if path.is_file() and ("torch" in str(path) or "kept" in str(path))]
    before = {path: path.lstat().st_ctime_ns for path in untouched}
    layer_program.mirror(builder, image)
    assert {name: digest for name, (digest, _) in contents(image).items() if not name.endswith(".pyc")} == {
        name: digest for name, (digest, _) in contents(builder).items() if not name.endswith(".pyc")
    }
    assert not list(image.rglob("numpy-1.0*"))
    assert next(image.rglob("numpy/lib.so")).read_bytes() == b"new!"
    same = {path: path.lstat().st_ctime_ns for path in untouched if path.suffix != ".pyc"}
    assert same.items() <= before.items()


def test_an_unknown_word_is_refused() -> None:
    ended = subprocess.run([sys.executable, layer_program.__file__, "tidy"], capture_output=True, text=True)
    assert ended.returncode == 1
    assert "tidy is not known" in ended.stderr
