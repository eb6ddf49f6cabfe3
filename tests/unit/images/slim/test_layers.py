"""Slimming in two passes, as layers are built: what is below stays byte for byte, what is missing above comes back."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from seatrial.images.slim.options import slimmer_bytes

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")


#: Enough of them that their symbols fill pages.
MANY = "".join(f"int function_{at}(int a) {{ return a + {at}; }}\n" for at in range(300))


class Environment:
    """A virtual environment as pip leaves it, and the slimming program."""

    def __init__(self, folder: Path) -> None:
        self.root, self.work = folder / "env", folder / "work"
        self.site = self.root / "lib" / "python3.11" / "site-packages"
        self.site.mkdir(parents=True)
        self.work.mkdir()
        self.program = folder / "slim.pyz"
        self.program.write_bytes(slimmer_bytes())

    def package(self, name: str, version: str, library: str, *link: Path, source: str = MANY) -> Path:
        """A package with one library, linked to others; the library's path."""
        (self.work / "code.c").write_text(source)
        target = self.site / name / "lib" / library
        target.parent.mkdir(parents=True)
        argv = ["gcc", "-g", "-shared", "-fPIC", f"-Wl,-soname,{library}", "-Wl,--no-as-needed", "-o", str(target)]
        subprocess.run([*argv, str(self.work / "code.c"), *map(str, link)], check=True)
        info = self.site / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "RECORD").write_text(f"{name}/lib/{library},,\n{info.name}/METADATA,,\n")
        return target

    def slim(self, *arguments: str) -> str:
        argv = [
            sys.executable,
            str(self.program),
            "--root",
            str(self.root),
            "--level",
            "unused",
            "--unused",
            "fft,compile",
        ]
        return subprocess.run([*argv, *arguments], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def below(tmp_path: Path) -> Environment:
    """The framework layer, slimmed."""
    made = Environment(tmp_path)
    fft = made.package("nvidia-cufft", "12.0", "libcufft.so.12", source="int cufftPlan1d(void) { return 7; }")
    made.package("torch", "2.13.0", "libtorch_cuda.so", fft)
    made.package("triton", "3.5.0", "libtriton.so")
    (made.root / "framework.txt").write_text("nvidia-cufft==12.0\ntorch==2.13.0\ntriton==3.5.0\n")
    made.slim("--keep-metadata")
    return made


def test_the_layer_below_stays_byte_for_byte(below: Environment) -> None:
    files = [path for path in below.site.rglob("*") if path.is_file() and "triton" not in str(path)]
    before = {path: (path.read_bytes(), path.stat().st_ino) for path in files}
    above = below.package("extension", "1.0", "libextension.so")
    size = above.stat().st_size
    below.slim("--above", str(below.root / "framework.txt"))
    assert before == {path: (path.read_bytes(), path.stat().st_ino) for path in files}
    assert above.stat().st_size < size  # its debug information


def test_pip_sees_what_is_gone_until_the_last_layer(below: Environment) -> None:
    assert not (below.site / "triton").exists()
    assert (below.site / "triton-3.5.0.dist-info").is_dir()
    below.slim("--above", str(below.root / "framework.txt"))
    assert not (below.site / "triton-3.5.0.dist-info").exists()


def test_the_report_is_of_all_layers(below: Environment) -> None:
    first = json.loads((below.root / "slim.json").read_text())
    below.package("extension", "1.0", "libextension.so")
    below.slim("--above", str(below.root / "framework.txt"))
    report = json.loads((below.root / "slim.json").read_text())
    assert report["stubs"] == first["stubs"] == ["libcufft.so.12"]
    reason = "symbol tables and debug information"
    assert report["saved_bytes"][reason] > first["saved_bytes"][reason]


def test_stub_that_a_package_above_is_linked_to_is_replaced(below: Environment) -> None:
    assert below.slim("--wanted").split() == []
    stub, real = below.site / "nvidia-cufft" / "lib" / "libcufft.so.12", below.work / "libcufft.so.12"
    (below.work / "code.c").write_text("int cufftPlan1d(void) { return 7; }")
    argv = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcufft.so.12", "-o", str(real), str(below.work / "code.c")]
    subprocess.run(argv, check=True)
    below.package("cupy", "14.0", "_cufft.so", real)
    assert below.slim("--wanted").split() == ["nvidia-cufft==12.0"]
    shutil.copy(real, stub)  # as pip brings it back
    assert below.slim("--wanted").split() == []
    whole = stub.read_bytes()
    below.slim("--above", str(below.root / "framework.txt"))
    assert stub.read_bytes() == whole
    assert "libcufft.so.12" in json.loads((below.root / "slim.json").read_text())["kept"]


def test_without_a_layer_below(tmp_path: Path) -> None:
    made = Environment(tmp_path)
    library = made.package("extension", "1.0", "libextension.so")
    size = library.stat().st_size
    made.slim("--above", str(made.root / "framework.txt"))
    assert library.stat().st_size < size
