"""Shown text has no names, and a name that is also a common word garbles nothing."""

from __future__ import annotations

import os
import platform
import pwd
from typing import Any

import pytest

from seatrial.system.host import Host
from seatrial.system.names import Names, hidden, names_of
from seatrial.system.text import did_you_mean, nearest
from tables import constant

ALICE = Names(
    users=("alice",),
    hosts=("gpu7.example.org", "gpu7"),
    homes=("/home/alice", "/data/people/alice"),
    secrets=("pa55word",),
)

GONE = constant(__file__, "GONE")


@pytest.mark.parametrize("text", GONE)
def test_names_go_and_their_neighbours_stay(text: str) -> None:
    assert ALICE.text(text) == GONE[text]
    assert ALICE.text(GONE[text]) == GONE[text]


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("--wandb_key 0123456789abcdef0123 --key sk", "--wandb_key <redacted> --key sk"),
        ("--hf-token=a1b2c3d4e5f6g7h8 wandb_key=0123456789abcdef0123", "--hf-token=<redacted> wandb_key=<redacted>"),
        ("--db.password hunter22 --lr 1", "--db.password <redacted> --lr 1"),
        *[
            (typed, typed)
            for typed in (
                "--max_tokens=1000000 model.max_tokens=1000000 --tokens_file data/tokens_0123456789.txt",
                "--token sks --author zebedee --tokenizer bert-base-uncased-2019 --use_auth_token True",
                "--image_key observation_images_cam_01 --key1 0123456789abcdef0123 --password --lr",
            )
        ],
    ],
)
def test_the_value_of_an_option_that_is_a_secret_goes(typed: str, shown: str) -> None:
    assert hidden(f"seatrial run train.py -- {typed}") == f"seatrial run train.py -- {shown}"


#: Sentences of receipts, with words that users and machines are called.
SENTENCES = [
    "train.py -- --data /data/train on docker, mnist: Training ran on the GPU; CUDA sees 1 GPU of 1 requested",
    "mnist@sha256:0123 · a user will mark it; root may run on the host, max 98 %, a train a day",
    "pip install torch; cuda 13.0; model saved in models/mnist.pth; test_accuracy 0.99, train_loss 0.1",
]


@pytest.mark.parametrize(
    "name", ["a", "io", "train", "mnist", "cuda", "root", "user", "will", "max", "docker", "gpu", "98"]
)
def test_a_name_that_is_a_word_goes_only_where_it_is_a_name(name: str) -> None:
    names = Names(users=(name,), hosts=(name,), homes=(f"/home/{name}",))
    for sentence in SENTENCES:
        assert names.text(sentence) == sentence
    assert names.text(f"/home/{name}/x, /Users/{name}/x, /home/{name}x") == f"~/x, /Users/USER/x, /home/{name}x"
    assert names.text(f"{name}@somewhere") == "USER@somewhere"
    owned = f"/mnt/{name}/x, owner={name}, {name}:{name} 0600, {name}:{name}/x"
    assert names.text(owned) == f"/mnt/USER/x, owner=USER, USER:USER 0600, {name}:{name}/x"
    assert names.scrub({"Owner": name, "kind": name}) == {"Owner": "USER", "kind": name}


def test_structures_keep_their_shape_and_what_addresses_something() -> None:
    value: dict[str, Any] = {
        "id": "alice",
        "n": 1,
        "on": True,
        "f": 0.5,
        "none": None,
        "API_TOKEN": "x",
        "/home/alice": ["alice"],
    }
    assert ALICE.scrub(value, keep=("id",)) == {
        "id": "alice", "n": 1, "on": True, "f": 0.5, "none": None, "API_TOKEN": "<redacted>", "~": ["USER"],
    }  # fmt: skip


def test_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "node", lambda: "florence.example.org")
    environ = {
        "HOME": "/data/zebedee/", "USER": "zebedee@corp.example", "LOGNAME": "CORP\\dougal", "HF_TOKEN": "abcdef",
        "SHORT_TOKEN": "abc", "TOKENIZERS_AUTH": "enabled", "MINE": "x1", "AUTH_MODE": "",
        "HTTP_AUTHORIZATION": "Bearer-qx7", "GIT_AUTHOR_EMAIL": "z@corp.example", "TOKENIZER": "gpt2-medium",
    }  # fmt: skip
    names = names_of(Host(environ), secrets=["MINE"], hosts=["ermintrude.local"])
    entry = pwd.getpwuid(os.getuid())
    assert {"zebedee@corp.example", "zebedee", "dougal", entry.pw_name} <= set(names.users)
    assert {"florence.example.org", "florence", "ermintrude.local", "ermintrude"} <= set(names.hosts)
    assert "/data/zebedee" in names.homes
    assert {"abcdef", "x1", "Bearer-qx7", "z@corp.example"} <= set(names.secrets) and "abc" not in names.secrets
    assert "gpt2-medium" not in names.secrets
    assert "enabled" not in names.secrets, "a word of ours is not taken for a secret by its variable's name"
    text = names.text("dougal@florence /data/zebedee/x abcdef x1 0x1f")
    assert text == "USER@HOST ~/x <redacted> <redacted> 0x1f"


# ------------------------------------------------------------ nearest names


def test_what_is_like_it_is_found_and_nothing_else() -> None:
    known = ["preprocess", "Train-Large", "export"]
    assert nearest("preprocess2", known) == "preprocess"
    assert nearest("train-lage", known) == "Train-Large"
    assert nearest("x", known) is None and nearest("", known) is None and nearest("train", []) is None
    assert did_you_mean("expor", known) == "; did you mean export?" and did_you_mean("serve", known) == ""
