"""Secrets leave no trace, however the stream is cut."""

import json
import os
import re
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.agent import journal

LETTERS = st.text("abc", max_size=40).map(str.encode)


def whole(secrets, data):
    ordered = sorted({secret for secret in secrets if secret}, key=len, reverse=True)
    return re.sub(b"|".join(map(re.escape, ordered)), journal.REDACTED, data) if ordered else data


@given(st.lists(st.text("abc", max_size=6).map(str.encode), max_size=4), st.lists(LETTERS, max_size=8))
def test_any_cut_gives_what_replacing_in_the_whole_gives(secrets, chunks):
    redactor = journal.Redactor(secrets)
    out = b"".join(map(redactor.feed, chunks)) + redactor.flush()
    assert out == whole(secrets, b"".join(chunks))


def test_only_a_possible_beginning_is_held_back():
    redactor = journal.Redactor([b"hf_secret"])
    assert redactor.feed(b"token: hf_") == b"token: "
    assert redactor.feed(b"other") == b"hf_other"
    assert redactor.feed(b" hf_sec") == b" " and redactor.flush() == b"hf_sec"


def test_secrets_are_read_and_deleted(tmp_path):
    (tmp_path / "HF_TOKEN").write_text("hf_abc")
    assert journal.take(["HF_TOKEN"], str(tmp_path)) == {"HF_TOKEN": "hf_abc"}
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        journal.take(["HF_TOKEN"], str(tmp_path))


def test_what_the_target_wrote_past_the_agent_is_blotted_out_in_place(tmp_path):
    log = tmp_path / "events.jsonl"
    secret = 'p"wort-ä'
    log.write_text(json.dumps({"message": f"token {secret}."}) + "\n" + f"raw {secret}\n")
    size = log.stat().st_size
    journal.redact_in_place(str(log), [secret.encode(), b""])
    left = log.read_text()
    assert "wort" not in left and log.stat().st_size == size
    assert json.loads(left.splitlines()[0])["message"].startswith("token ***")
    journal.redact_in_place(str(tmp_path / "nowhere"), [b"secret"])


@pytest.mark.parametrize("at", [0, 5, 2**20 - 13, 2**20 - 12, 2**20 - 1, 2**20, 2**20 + 1, 2**21 + 7])
def test_a_secret_is_found_wherever_a_chunk_ends(tmp_path, at):
    log = tmp_path / "events.jsonl"
    log.write_bytes(b"x" * at + b"hf_secret_abc" + b"y" * (2**21 + 40 - at))
    journal.redact_in_place(str(log), [b"hf_secret_abc"])
    assert log.read_bytes() == b"x" * at + b"*" * 13 + b"y" * (2**21 + 40 - at)


def test_a_file_of_any_length_takes_no_memory(tmp_path, monkeypatch):
    """A sparse file of a terabyte costs its target nothing; the agent would be killed for it."""
    monkeypatch.setattr(journal, "_LOOKED_THROUGH_BYTES", 2**24)
    log = tmp_path / "events.jsonl"
    log.write_bytes(b"hf_secret")
    os.truncate(log, 2**40)
    tracemalloc.start()
    journal.redact_in_place(str(log), [b"hf_secret"])
    assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    tracemalloc.stop()
    with log.open("rb") as file:
        assert file.read(9) == b"*********"


def test_what_is_no_file_is_left_alone(tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("hf_secret")
    (tmp_path / "link").symlink_to(outside)
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "."):
        journal.redact_in_place(str(tmp_path / name), [b"hf_secret"])
    assert outside.read_text() == "hf_secret"
