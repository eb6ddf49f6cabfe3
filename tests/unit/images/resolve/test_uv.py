"""uv on the host: nothing of a project or package runs, no login leaks, an answer is remembered."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from image_plans import planned, write_files
from package_indexes import Index, serving
from seatrial.images.resolve.answers import Lock, ResolveRequest, Unreachable
from seatrial.images.resolve.uv import UvResolver
from seatrial.images.resolve.uv_texts import refusal, shown_index
from seatrial.images.sources import PackageSource
from seatrial.job.script import ScriptFacts
from seatrial.system.host import Host


@pytest.fixture
def index() -> Iterator[Index]:
    with serving() as server:
        server.has("plain", "plain-1.0-py3-none-any.whl", size=5000)
        server.has("source-only", "source-only-1.0.tar.gz")
        yield server


def test_project_with_traps_leaves_no_mark_on_the_host(
    tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter, setup.py, uv.toml, git line and source distribution of a project would each leave a file."""
    project, marks = tmp_path / "project", tmp_path / "marks"
    marks.mkdir()
    trap = f'#!/bin/sh\ntouch {marks}/$(basename $0)\nexec {sys.executable} "$@"\n'
    for folder in (".venv/bin", "conda/bin", "bin"):
        (project / folder).mkdir(parents=True)
        for name in ("python", "python3", "python3.11", "uv", "git"):
            (project / folder / name).write_text(trap)
            (project / folder / name).chmod(0o755)
    files = {
        ".venv/pyvenv.cfg": "home = /usr/bin\nversion = 3.11.0\n",
        "setup.py": f"open({str(marks / 'setup')!r}, 'w')\n",
        "uv.toml": 'index-url = "http://127.0.0.1:9/simple"\n',
        ".python-version": "3.11\n",
        "requirements.txt": "plain==1.0\nsource-only==1.0\ngit+https://127.0.0.1:9/x/y.git\n",
    }
    write_files(project, files)
    monkeypatch.chdir(project)
    environ = {
        "PIP_INDEX_URL": index.url,
        "PIP_CONFIG_FILE": os.devnull,
        "PATH": f"{project}/bin:{os.environ['PATH']}",
        "VIRTUAL_ENV": str(project / ".venv"),
        "CONDA_PREFIX": str(project / "conda"),
        "UV_PYTHON": str(project / "bin/python"),
        "UV_CONFIG_FILE": str(project / "uv.toml"),
        "PYTHONPATH": str(project),
    }
    made = planned(project, script=ScriptFacts(), resolver=UvResolver(tmp_path / "cache", Host(environ)))
    assert made.chosen("from source") == ["source-only==1.0"]
    assert made.image.warnings == () and made.image.packages_bytes == 15_000
    assert list(marks.iterdir()) == []
    files = {path for path in index.requested if path.startswith("/f/")}
    assert "/simple/plain/" in index.requested and files == {"/f/source-only-1.0.tar.gz"}


def test_lock_holds_hashes_and_sizes_and_no_address(tmp_path: Path, index: Index) -> None:
    resolver = UvResolver(tmp_path, Host({}))
    lock = resolver.resolve(ResolveRequest(("plain",), "3.11", (PackageSource(index.url),)))
    assert isinstance(lock, Lock)
    [package] = lock.packages
    assert (package.name, package.version, package.size_bytes) == ("plain", "1.0", 5000)
    assert len(package.sha256[0]) == 64
    assert [file for file in (tmp_path / "locks").iterdir() if "127.0.0.1" in file.read_text()] == []


def test_lock_stays_when_the_index_has_a_newer_release(tmp_path: Path, index: Index) -> None:
    request = ResolveRequest(("plain",), "3.11", (PackageSource(index.url),))
    first = UvResolver(tmp_path, Host({})).resolve(request)
    index.has("plain", "plain-2.0-py3-none-any.whl")
    assert UvResolver(tmp_path, Host({})).resolve(request) == first


def test_preferred_release_may_lack_this_python_in_the_first_of_two_indexes(tmp_path: Path, index: Index) -> None:
    index.has("built", "built-1.0-cp313-cp313-manylinux_2_28_x86_64.whl", "built-2.0-py3-none-any.whl")
    index.needs = {"plain-1.0": ("built==1.0",)}
    with serving() as first:
        first.has("built", "built-1.0-cp311-cp311-manylinux_2_28_x86_64.whl")
        sources = (PackageSource(index.url), PackageSource(first.url))
        request = ResolveRequest(("plain",), "3.13", sources, preferred=(("built", "1.0"),))
        lock = UvResolver(tmp_path, Host({})).resolve(request)
    assert isinstance(lock, Lock) and {each.name: each.version for each in lock.packages}["built"] == "1.0"


def test_override_lifts_what_packages_require_but_not_a_line(tmp_path: Path, index: Index) -> None:
    index.has("held", *(f"held-{each}.0-py3-none-any.whl" for each in (1, 2, 3)))
    index.needs = {"plain-1.0": ("held<2",)}
    sources, resolver = (PackageSource(index.url),), UvResolver(tmp_path, Host({}))
    request = ResolveRequest(("plain",), "3.11", sources, constraints=("held==2.0",), overrides=("held>=2",))
    for lines in (("plain",), ("plain", "held>=1")):
        lock = resolver.resolve(replace(request, lines=lines))
        assert isinstance(lock, Lock) and {each.name: each.version for each in lock.packages}["held"] == "2.0"
    pinned = resolver.resolve(replace(request, lines=("plain", "held==3.0"), constraints=()))
    assert isinstance(pinned, Lock) and {each.name: each.version for each in pinned.packages}["held"] == "3.0"


def test_override_for_no_machine_drops_what_packages_require(tmp_path: Path, index: Index) -> None:
    index.needs = {"plain-1.0": ("missing",)}
    over = ("missing ; sys_platform == 'never'",)
    request = ResolveRequest(("plain",), "3.11", (PackageSource(index.url),), overrides=over)
    lock = UvResolver(tmp_path, Host({})).resolve(request)
    assert isinstance(lock, Lock) and [each.name for each in lock.packages] == ["plain"]


def test_login_that_is_refused_is_unknown_not_missing(tmp_path: Path, index: Index) -> None:
    index.login = "me:right"
    request = ResolveRequest(("plain",), "3.11", (PackageSource(index.with_login("me:wrong")),))
    answer = UvResolver(tmp_path, Host({})).resolve(request)
    assert isinstance(answer, Unreachable) and "asks for a login" in answer.reason and "wrong" not in answer.reason


def test_the_index_that_an_error_names_is_shown_also_behind_a_folder() -> None:
    sources = tuple(map(PackageSource, ("file:///opt/simple", "https://e.org/simple", "https://other-one.org/whl")))
    request = ResolveRequest(("plain",), "3.11", sources)
    assert shown_index(request, "Failed to fetch: `https://other-one.org/whl/plain/`") == "https://other-one.org/whl"
    assert shown_index(request, "No such file or directory: `/opt/simple/plain`") == "file:///opt/simple"


def test_package_with_timeout_in_its_name_is_requested_once(tmp_path: Path, index: Index) -> None:
    index.has("async-timeout", "async_timeout-1.0-py3-none-any.whl")
    index.broken = (b"{", "application/vnd.pypi.simple.v1+json")
    answer = UvResolver(tmp_path, Host({})).resolve(
        ResolveRequest(("async-timeout",), "3.11", (PackageSource(index.url),))
    )
    assert isinstance(answer, Unreachable) and "cannot be read" in answer.reason and len(index.requested) == 1


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_disk_that_is_full_or_read_only_is_no_index_that_cannot_be_read(code: int) -> None:
    """In the words of uv 0.13 on a full tmpfs."""
    reason = os.strerror(code)
    text = (
        f"error: failed to write to file `/home/me/.cache/seatrial/packages/uv/.gitignore`: {reason} (os error {code})"
    )
    answer = refusal(text, ResolveRequest(("voice",), "3.11", ()), Path("/home/me/my cache"))
    assert isinstance(answer, Unreachable)
    assert answer.reason == f"uv cannot write: {reason} (df -h '/home/me/my cache' {tempfile.gettempdir()})"


def test_source_is_built_before_what_depends_on_it() -> None:
    text = """No solution found when resolving dependencies
      cause: Because voice==0.1.2 has no usable wheels and all of:
                 voice<=0.1.1
                 voice>=0.1.3
             depend on built>=2, we can conclude that all versions of voice depend on built>=2.
             Because built==2.0 has no usable wheels, we can conclude that voice cannot be used.
    hint: Wheels are required for `voice` because building from source is disabled
    hint: Wheels are required for `built` because building from source is disabled"""
    assert refusal(text, ResolveRequest(("voice",), "3.11", ())) == "built==2.0"
