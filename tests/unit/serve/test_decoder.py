"""The process that reads files: its limits, and that it is there again after each."""

from __future__ import annotations

import asyncio
import io
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

for needed in ("uvicorn", "uvloop", "httptools", "starlette", "python_multipart", "numpy", "PIL"):
    pytest.importorskip(needed, reason=f"{needed} is not installed")

from PIL import Image  # noqa: E402

from seatrial.serve import decoder as decoder_module  # noqa: E402
from seatrial.serve.decoder import Decoder, is_light  # noqa: E402
from seatrial.serve.errors import BadInputError, TooMuchError  # noqa: E402
from seatrial.serve.model_link import Refusal  # noqa: E402
from seatrial.serve.options import parse  # noqa: E402
from seatrial.serve.readers.images import ImageReader  # noqa: E402
from seatrial.serve.served_model import Description  # noqa: E402
from seatrial.train.saving.model_card import TensorSpec  # noqa: E402

PNG = b"image/png"
READER = ImageReader(
    Description("m", "image", (TensorSpec("image", "UINT8", (28, 28)),), (TensorSpec("p", "FP32", (2,)),), ("a", "b"))
)


def with_decoder(use: Callable[[Decoder], Awaitable[None]], *arguments: str) -> None:
    async def main() -> None:
        decoder = Decoder(READER, parse(["--model", "m", *arguments], None))
        try:
            await use(decoder)
        finally:
            decoder.close()

    asyncio.run(main())


def image(size: int, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.new("L", (size, size), 255).save(file, kind, **options)
    return file.getvalue()


async def is_read(decoder: Decoder) -> None:
    answer = await decoder.read(False, PNG, image(28))
    assert not isinstance(answer, Refusal) and answer.rows[0][0].shape == (28, 28)


def scans() -> bytes:
    """A progressive JPEG of 4096² whose last scan, a few bytes that go over every block, comes 20,000 times."""
    whole = image(4096, "JPEG", progressive=True)
    last = whole.rindex(b"\xff\xda")
    return whole[:last] + whole[last:-2] * 20_000 + whole[-2:]


def test_request_beyond_its_cpu_time_is_refused_and_the_next_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder_module, "CPU_S", 1)

    async def use(decoder: Decoder) -> None:
        refusal = await decoder.read(False, b"image/jpeg", scans())
        assert isinstance(refusal, Refusal) and refusal.status == 413 and "1 s of CPU time" in refusal.sentence
        await is_read(decoder)

    with_decoder(use, "--timeout-s", "120")


def test_request_beyond_its_time_is_refused_and_the_next_is_read() -> None:
    async def use(decoder: Decoder) -> None:
        await is_read(decoder)
        decoder._timeout_s, patience_s = 0.2, decoder._timeout_s
        refusal = await decoder.read(False, b"image/jpeg", scans())
        assert isinstance(refusal, Refusal) and refusal.status == 504
        decoder._timeout_s = patience_s
        await is_read(decoder)

    with_decoder(use)


def test_requests_beyond_the_queue_are_refused() -> None:
    async def use(decoder: Decoder) -> None:
        most = decoder_module._MOST_WAITING
        answers = await asyncio.gather(*(decoder.read(False, PNG, image(28)) for _ in range(most + 3)))
        refused = [answer.status for answer in answers if isinstance(answer, Refusal)]
        assert refused == [429] * 3
        large = await asyncio.gather(
            *(decoder.read(False, PNG, bytes(8 * 2**20)) for _ in range(9)), return_exceptions=True
        )
        assert [answer.status for answer in large if isinstance(answer, Refusal)] == [429]

    with_decoder(use)


def test_decoder_that_was_killed_is_started_again() -> None:
    async def use(decoder: Decoder) -> None:
        await is_read(decoder)
        assert decoder._process is not None
        os.kill(decoder._process.pid, signal.SIGKILL)
        refusal = await decoder.read(False, PNG, image(28))
        assert isinstance(refusal, Refusal) and refusal.status == 500
        await is_read(decoder)

    with_decoder(use)


def test_what_cannot_be_read_is_refused_in_the_readers_words() -> None:
    async def use(decoder: Decoder) -> None:
        with pytest.raises(BadInputError, match="cannot be read as an image"):
            await decoder.read(False, PNG, b"no image")
        with pytest.raises(TooMuchError, match="at most 16,777,216"):
            await decoder.read(False, PNG, image(5000))

    with_decoder(use)


def test_only_small_json_is_light() -> None:
    assert is_light(READER, False, b"application/json; charset=utf-8", 60_000)
    assert is_light(READER, False, b"", 60_000)
    assert is_light(READER, True, b"anything", 60_000)
    assert not is_light(READER, False, b"application/json", 70_000)
    assert not is_light(READER, False, PNG, 10)
    assert not is_light(READER, False, b"multipart/form-data; boundary=b", 10)
