"""Read requests that take long to read in a process of their own: files, and JSON too large for a front's loop.

    python -m seatrial.serve.decoder DESCRIPTOR    (started by a front, with the first such request)

A front has one decoder and gives it one request at a time, so that a front answers health and small requests meanwhile,
and two cores are never busy with one client's files. A decoder that reads longer than its CPU time is ended by the
kernel (RLIMIT_CPU): no thread could be, inside of a C decoder that has been given 20,000 scans of one image.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import resource
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path

from seatrial.serve import wire
from seatrial.serve.errors import BadInputError
from seatrial.serve.http.protocol import JSON_TYPES, Request, media_type, read
from seatrial.serve.model_link import Refusal
from seatrial.serve.options import Options
from seatrial.serve.served_model import Reader
from seatrial.serve.sockets import STOPPING

#: JSON up to this size is read in the loop: 0.5 ms for numbers with orjson, 2 ms without; texts are tokenised.
_INLINE_BYTES = {"text": 4 * 1024}
_INLINE_OTHER_BYTES = 64 * 1024
#: CPU seconds of one request, for bodies up to the default of --max-body; larger ones get as much more.
CPU_S, _CPU_BODY_BYTES = 10, 8 * 2**20
#: Requests that wait for a decoder, and the bytes of their bodies, at most; a body of the largest size always may.
_MOST_WAITING, _MOST_WAITING_BYTES = 64, 64 * 2**20
#: Below the front and the model, which answer everybody.
_NICE = 5


def is_light(reader: Reader, as_infer: bool, content_type: bytes, size: int) -> bool:
    """Return True if a body of so many bytes may be read in the loop, judging by its head."""
    json = as_infer or media_type(content_type) in JSON_TYPES
    return json and size <= _INLINE_BYTES.get(reader.description.kind, _INLINE_OTHER_BYTES)


class Decoder:
    """A front's end of its decoder; the process is started with the first request, and again after it has died."""

    def __init__(self, reader: Reader, options: Options) -> None:
        self._reader, self._timeout_s = reader, options.timeout_s
        self._cpu_s = CPU_S * -(-options.max_body_bytes // _CPU_BODY_BYTES)
        self._most_bytes = max(_MOST_WAITING_BYTES, options.max_body_bytes)
        self._waiting = self._waiting_bytes = 0
        self._turn = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]

    async def read(self, as_infer: bool, content_type: bytes, body: bytes) -> Request | Refusal:
        """Read a request in its turn. Raises BadInputError."""
        if self._waiting >= _MOST_WAITING or self._waiting_bytes + len(body) > self._most_bytes:
            return Refusal(429, "Too many large requests wait already: try again in a second.", 1)
        self._waiting += 1
        self._waiting_bytes += len(body)
        try:
            return await asyncio.wait_for(self._in_turn(as_infer, content_type, body), self._timeout_s)
        except asyncio.TimeoutError:
            return Refusal(504, f"No answer within {self._timeout_s:g} s.")
        finally:
            self._waiting -= 1
            self._waiting_bytes -= len(body)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._streams[1].close()
            self._process.kill()
            self._process.wait()
            self._process = None

    async def _in_turn(self, as_infer: bool, content_type: bytes, body: bytes) -> Request | Refusal:
        async with self._turn:
            try:
                if self._process is None:
                    await self._start()
                received, sent = self._streams
                sent.write(wire.pickled(wire.REQUEST, (as_infer, content_type, body)))
                await sent.drain()
                size, _ = wire.HEAD.unpack(await received.readexactly(wire.HEAD.size))
                answer: Request | BadInputError | Refusal = pickle.loads(await received.readexactly(size))
            except (asyncio.IncompleteReadError, OSError):
                return self._ended()
            except asyncio.CancelledError:  # its time is over: nobody waits for its answer
                self.close()
                raise
        if isinstance(answer, BadInputError):
            raise answer
        return answer

    async def _start(self) -> None:
        ours, theirs = socket.socketpair()
        argv = [sys.executable, "-m", "seatrial.serve.decoder", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(argv, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        self._streams = await asyncio.open_unix_connection(sock=ours, limit=2**20)
        self._streams[1].write(wire.pickled(wire.READER, (self._reader, self._cpu_s)))

    def _ended(self) -> Refusal:
        """Refuse the request that the decoder died of."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        code = self._process.returncode
        self.close()
        if code == -signal.SIGXCPU:
            return Refusal(413, f"The request takes more than {self._cpu_s} s of CPU time to read: send less of it.")
        return Refusal(500, "The request could not be read: the process that reads files has ended.")


def main() -> int:
    """Read one request after another, until the front ends."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(_NICE)
    with contextlib.suppress(OSError):  # short of memory the kernel ends this process, and not the model's
        Path("/proc/self/oom_score_adj").write_text("1000")
    front = socket.socket(fileno=int(sys.argv[1]))
    reader, cpu_s = wire.receive(front)
    while request := wire.receive(front):
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        soft = int(time.process_time()) + 1 + cpu_s
        resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))
        front.sendall(wire.pickled(wire.DECODED, _answer(reader, *request)))
    return 0


def _answer(reader: Reader, as_infer: bool, content_type: bytes, body: bytes) -> Request | BadInputError | Refusal:
    try:
        return read(reader, as_infer, content_type, body)
    except BadInputError as problem:
        return problem
    except MemoryError:
        return Refusal(413, "The request takes more memory to read than there is: send less of it.")
    except Exception:  # noqa: BLE001 — a library's error: the next request is still read
        traceback.print_exc()
        return Refusal(500, "The request could not be read.")


if __name__ == "__main__":
    sys.exit(main())
