import zipfile
from pathlib import Path

import pytest

from seatrial.images.requirements.adjust import of_releases
from seatrial.images.requirements.pip_format import Needs, Requirements
from seatrial.images.resolve.uv import write_links


def test_a_stand_in_requires_what_its_source_lists(tmp_path: Path) -> None:
    required = {("own", "1.0"): "httpx==0.13.3\nsix\nbad @ https://e.org/x.whl\n\n[extra]\nrich\n"}
    write_links(tmp_path / "links", (), {"own": "1.0"}, required)
    [wheel] = (tmp_path / "links").iterdir()
    metadata = zipfile.ZipFile(wheel).read("own-1.0.dist-info/METADATA").decode()
    assert metadata.splitlines()[3:] == ["Requires-Dist: httpx==0.13.3", "Requires-Dist: six"]


@pytest.mark.parametrize(
    ("line", "taken"),
    [
        ("git+https://github.com/huggingface/transformers.git", "transformers"),
        ("transformers[torch] @ git+https://github.com/huggingface/transformers", "transformers[torch]"),
        ("git+https://github.com/huggingface/peft.git@v0.3.0", None),
        ("git+https://github.com/someone/transformers.git", None),
    ],
)
def test_a_repository_without_a_commit_is_taken_as_of_the_day(line: str, taken: str | None) -> None:
    needs = of_releases(Needs(Requirements(lines=(line,)), "requirements.txt", ""), "2023-04-29")
    assert needs.requirements.lines == (taken or line,)
