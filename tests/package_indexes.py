"""A package index on this machine: pages of PEP 503 and PEP 691 and metadata of wheels over HTTP, with a log."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: (file name, requires-python, size in bytes)
File = tuple[str, str, int]


class Index:
    """Hold the server's files, its way to answer, and the paths of pages that were requested.

    Attributes:
        projects: name → files. needs: ``name-version`` → requirements. html: pages as HTML.
        login: ``user:password`` that it requires. delay_s: before each answer. forgotten: paths whose first request
            gets no answer.
        broken: body and content type sent in place of every page. archives: file name → its bytes.
        trickles: an archive comes byte by byte, and never ends. uploaded: file → its day, in JSON pages.
    """

    def __init__(self) -> None:
        self.projects: dict[str, list[File]] = {}
        self.needs: dict[str, tuple[str, ...]] = {}
        self.bodies: dict[str, bytes] = {}
        self.html = False
        self.login: str | None = None
        self.delay_s = 0.0
        self.forgotten: set[str] = set()
        self.broken: tuple[bytes, str] | None = None
        self.requested: list[str] = []
        self.archives: dict[str, bytes] = {}
        self.uploaded: dict[str, str] = {}
        self.trickles = False
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/simple"

    @property
    def files(self) -> str:
        return f"http://127.0.0.1:{self.port}/f/"

    def metadata(self, file: str) -> bytes:
        name, version = file.split("-")[:2]
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        own = [row[1] for row in self.projects.get(name, ()) if row[0] == file.removesuffix(".metadata")]
        lines += [f"Requires-Python: {each}" for each in filter(None, own)]
        lines += [f"Requires-Dist: {each}" for each in self.needs.get(f"{name}-{version}", ())]
        return "\n".join([*lines, "", ""]).encode()

    def with_login(self, login: str) -> str:
        return f"http://{login}@127.0.0.1:{self.port}/simple"

    def has(self, name: str, *files: str, requires: str = "", size: int = 1000) -> None:
        self.projects.setdefault(name, []).extend((file, requires, size) for file in files)

    def holds(self, name: str, file: str, paths: Mapping[str, str]) -> None:
        """Have a wheel that can be fetched, with these files."""
        info, body = f"{'-'.join(file.split('-')[:2])}.dist-info", io.BytesIO()
        wheel = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        with zipfile.ZipFile(body, "w") as archive:
            for path, text in {
                **paths,
                f"{info}/METADATA": self.metadata(file).decode(),
                f"{info}/WHEEL": wheel,
            }.items():
                archive.writestr(path, text)
            archive.writestr(f"{info}/entry_points.txt", f"[console_scripts]\n{name}ctl = {name}:main\n")
            archive.writestr(f"{info}/RECORD", "".join(f"{each},,\n" for each in archive.namelist()))
        self.bodies[file] = body.getvalue()
        self.has(name, file)

    def wheels(self, name: str, version: str, pythons: str, platform: str = "manylinux1_x86_64") -> None:
        """``pythons``: ``38 39``."""
        self.has(name, *(f"{name}-{version}-cp{each}-cp{each}-{platform}.whl" for each in pythons.split()))

    def source(self, name: str, version: str, files: Mapping[str, str]) -> None:
        """Publish a source, as a tar archive of these files."""
        archive, folder = io.BytesIO(), f"{name}-{version}"
        with tarfile.open(fileobj=archive, mode="w:gz") as tar:
            for path, text in files.items():
                entry = tarfile.TarInfo(f"{folder}/{path}")
                entry.size = len(text.encode())
                tar.addfile(entry, io.BytesIO(text.encode()))
        self.archives[f"{folder}.tar.gz"] = archive.getvalue()
        self.has(name, f"{folder}.tar.gz")

    def page(self, name: str) -> tuple[bytes, str]:
        files = self.projects[name]
        if self.html:
            attributes = 'data-core-metadata="true" data-requires-python'
            links = [
                f'<a href="../../f/{file}#sha256={_hash(file)}" {attributes}="{r}">{file}</a>' for file, r, _ in files
            ]
            return "\n".join(["<!DOCTYPE html><html><body>", *links]).replace(">=", "&gt;=").encode(), "text/html"
        listed = [
            {
                "filename": file,
                "url": f"{self.files}{file}",
                "requires-python": r or None,
                "size": s,
                "core-metadata": True,
                **({"upload-time": f"{self.uploaded[file]}T00:00:00Z"} if file in self.uploaded else {}),
                "hashes": {"sha256": hashlib.sha256(self.bodies.get(file, file.encode())).hexdigest()},
            }
            for file, r, s in files
        ]
        data: Mapping[str, Any] = {"meta": {"api-version": "1.1"}, "name": name, "files": listed}
        return json.dumps(data).encode(), "application/vnd.pypi.simple.v1+json"


def _hash(file: str) -> str:
    return hashlib.sha256(file.encode()).hexdigest()


@contextmanager
def serving() -> Iterator[Index]:
    index = Index()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.endswith(".metadata"):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(index.metadata(self.path.rpartition("/")[2]))
                return
            index.requested.append(self.path)
            time.sleep(index.delay_s)
            if self.path in index.forgotten:
                index.forgotten.remove(self.path)
                time.sleep(300)
            name = self.path.rstrip("/").rpartition("/")[2]
            wanted = index.login and "Basic " + base64.b64encode(index.login.encode()).decode()
            if name in index.bodies:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(index.bodies[name])
            elif wanted and self.headers.get("Authorization") != wanted:
                self.send_error(401)
            elif name in index.archives:
                self.send_response(200)
                self.end_headers()
                while index.trickles:
                    self.wfile.write(b"x")
                    time.sleep(0.5)
                self.wfile.write(index.archives[name])
            elif name not in index.projects:
                self.send_error(404)
            else:
                body, kind = index.broken or index.page(name)
                self.send_response(200)
                self.send_header("Content-Type", kind)
                if "gzip" in self.headers.get("Accept-Encoding", "") and index.broken is None:
                    body = gzip.compress(body)
                    self.send_header("Content-Encoding", "gzip")
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # who asks may not wait for the answer

    with Server(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        index.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield index
        finally:
            server.shutdown()
