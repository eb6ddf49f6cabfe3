"""A Dockerfile tells whether what is built from it serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.pipelines.compose.dockerfile_says import dockerfile_says

FILES = {
    "FROM x\nEXPOSE 8000\nCMD python a.py\n": "it exposes ports",
    "FROM x\nHEALTHCHECK CMD curl localhost\n": "it has a health check",
    "FROM x\nHEALTHCHECK NONE\n": None,
    'FROM x\nCMD ["python", "serve.py"]\n': 'its command is a server\'s ("serve.py")',
    "FROM x\nENTRYPOINT uvicorn app:app\n": 'its command is a server\'s ("uvicorn")',
    "FROM x\nCMD ['python', 'train.py'\n": None,
    "FROM x\nCMD python 'train.py\n": None,
    "not a Dockerfile\n": None,
    "": None,
}


@pytest.mark.parametrize("text", FILES)
def test_what_it_says(read, tmp_path: Path, text: str) -> None:
    (tmp_path / "Dockerfile").write_text(text)
    service = read("services: {a: {build: .}}\n").services["a"]
    assert (
        type(service)(service.name, service.config, service.image, dockerfile_says(service)).why_service == FILES[text]
    )


def test_a_dockerfile_that_stands_in_the_compose_file(read) -> None:
    service = read(
        "services:\n  a:\n    build:\n      context: .\n      dockerfile_inline: |\n        FROM x\n        EXPOSE 80\n"
    )
    says = dockerfile_says(service.services["a"])
    assert says is not None and says.ports
