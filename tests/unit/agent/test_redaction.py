"""Secrets leave no trace, however the stream is cut."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.agent import redaction

LETTERS = st.text("abc", max_size=40).map(str.encode)


def whole(secrets, data):
    ordered = sorted({secret for secret in secrets if secret}, key=len, reverse=True)
    return re.sub(b"|".join(map(re.escape, ordered)), redaction.REDACTED, data) if ordered else data


@given(st.lists(st.text("abc", max_size=6).map(str.encode), max_size=4), st.lists(LETTERS, max_size=8))
def test_any_cut_gives_what_replacing_in_the_whole_gives(secrets, chunks):
    redactor = redaction.Redactor(secrets)
    out = b"".join(map(redactor.feed, chunks)) + redactor.flush()
    assert out == whole(secrets, b"".join(chunks))


def test_only_a_possible_beginning_is_held_back():
    redactor = redaction.Redactor([b"hf_secret"])
    assert redactor.feed(b"token: hf_") == b"token: "
    assert redactor.feed(b"other") == b"hf_other"
    assert redactor.feed(b" hf_sec") == b" " and redactor.flush() == b"hf_sec"


def test_secrets_are_read_and_deleted(tmp_path):
    (tmp_path / "HF_TOKEN").write_text("hf_abc")
    assert redaction.take(["HF_TOKEN"], str(tmp_path)) == {"HF_TOKEN": "hf_abc"}
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        redaction.take(["HF_TOKEN"], str(tmp_path))


def test_what_the_target_wrote_past_the_agent_is_blotted_out_in_place(tmp_path):
    log = tmp_path / "events.jsonl"
    secret = 'p"wort-ä'
    log.write_text(json.dumps({"message": f"token {secret}."}) + "\n" + f"raw {secret}\n")
    size = log.stat().st_size
    redaction.blot(str(log), [secret.encode(), b""])
    left = log.read_text()
    assert "wort" not in left and log.stat().st_size == size
    assert json.loads(left.splitlines()[0])["message"].startswith("token ***")
    redaction.blot(str(tmp_path / "nowhere"), [b"secret"])
