"""Names: text for others has no user, host, home folder or secret unless that is requested.

A home folder becomes ``~``, a user ``USER``, a host ``HOST``, a secret's value ``<redacted>``. People are called Will
and machines cuda: a name that is a word of the field or of our own messages, or has one or two letters, is taken out
only where it can be nothing else (``/home/will``, ``will@``, ``user=will``, ``will:will``).
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from seatrial.findings.catalogue import entries
from seatrial.system.host import Host

#: Names of variables whose values are secrets.
SECRET = re.compile(r"TOKEN(?!IZ)|SECRET|PASSW|CREDENTIAL|AUTH|COOKIE|PRIVATE|(API|ACCESS|SSH).?KEY", re.IGNORECASE)

#: Text that is a secret wherever it stands: user info of a URL, and well-known tokens.
SECRET_TEXT = re.compile(
    r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)|(?:(?<=https://)|(?<=http://))[^/\s:@]+(?=@)"
    r"|\b(?:github_pat_|glpat-|sk-|xox[abp]-|hf_jwt_|(?:hf_|hf_oauth_|gh[op]_|AKIA)(?=[A-Za-z0-9]{12}))[\w-]{12,}"
)
#: A user of the other machine.
_URL_USER = re.compile(r"(?<=ssh://)[^/\s:@]+(?=@)")

REDACTED, USER, HOST = "<redacted>", "USER", "HOST"
#: A shorter value stands in many words by chance, as does a name of two letters.
_SECRET_LENGTH, _NAME_LENGTH = 6, 3
#: Folders whose members are called as users are.
_HOMES = ("home", "homes", "Users", "users", "media", "scratch", "lustre", "mnt", "nfs", "srv", "work")
#: A home, ``/home/me`` or ``/root``; where HOME is ``/``, ``/tmp`` or ``/workspace``, it identifies nobody.
_HOME = re.compile(r"/(root|.*/.*)", re.DOTALL)
#: Prefixes whose value is a user: ``owner=alice``, or a key of JSON.
_OWNERS = ("login", "owner", "user", "username")

T = TypeVar("T")


@dataclass(frozen=True)
class Names:
    """Names to take out, ``homes`` as absolute paths. Without any, only text that looks like a secret is taken out."""

    users: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    homes: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()

    def text(self, text: str) -> str:
        """Return a text with each name and secret replaced by its word, such as USER."""
        for pattern, word in self._patterns:
            text = pattern.sub(word, text)
        return text

    def scrub(self, value: T, keep: Collection[str] = ()) -> T:
        """Return the JSON without them and without values of secret keys; leave values under a key of ``keep``."""
        scrubbed: Any = value
        if isinstance(value, dict):
            scrubbed = {self._key(key): self._value(key, item, keep) for key, item in value.items()}
        elif isinstance(value, (list, tuple)):
            scrubbed = [self.scrub(item, keep) for item in value]
        elif isinstance(value, str):
            scrubbed = self.text(value)
        result: T = scrubbed
        return result

    def _key(self, key: Any) -> Any:
        return self.text(key) if isinstance(key, str) else key

    def _value(self, key: Any, item: Any, keep: Collection[str]) -> Any:
        if key in keep:
            return item
        if isinstance(key, str) and SECRET.search(key) and isinstance(item, str):
            return REDACTED
        if isinstance(key, str) and key.lower() in _OWNERS and item in self.users:
            return USER
        return self.scrub(item, keep)

    @cached_property
    def _patterns(self) -> list[tuple[re.Pattern[str], str]]:
        """Build patterns with what replaces them, in this order: a secret may hold a name, and a home ends in one."""
        made = []
        for value in _longest_first(self.secrets):  # a short one, or a number, only as a word by itself
            alone = len(value) < _SECRET_LENGTH or value.isdigit()
            made.append((_word(value) if alone else re.compile(re.escape(value)), REDACTED))
        made.append((SECRET_TEXT, REDACTED))
        made += [(_URL_USER, USER)] if self.users else []
        made += [(_path(home), "~") for home in _longest_first(self.homes)]
        made += [(_word(host), HOST) for host in _longest_first(self.hosts) if is_telling(host)]
        for user in _longest_first(self.users):
            made += [(pattern, USER) for pattern in _anchored(user)]
            made.append((re.compile(rf"(?<![\w./:-])({re.escape(user)}):\1(?![\w./:-])"), f"{USER}:{USER}"))
            made += [(_word(user), USER)] if is_telling(user) else []
        return made


def names_of(host: Host, *, secrets: Iterable[str] = (), hosts: Iterable[str] = ()) -> Names:
    """Collect the names of this user and machine, those of ``hosts``, and the values of the variables ``secrets``."""
    users, homes = ([host.account.pw_name], [host.account.pw_dir]) if host.account else ([], [])
    users += [host.env.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER")]
    users += [user.partition("@")[0].rpartition("\\")[2] for user in users]  # me@corp.example, CORP\me
    homes.append(host.env.get("HOME", ""))
    homes += [os.path.realpath(home) for home in homes if home]
    here = platform.node()
    return Names(
        users=tuple(dict.fromkeys(filter(None, users))),
        hosts=tuple(dict.fromkeys(name for host in (here, *hosts) for name in (host, host.partition(".")[0]) if name)),
        homes=tuple(dict.fromkeys(filter(_HOME.fullmatch, (home.rstrip("/") for home in homes)))),
        secrets=tuple(dict.fromkeys(_secret_values(host, frozenset(secrets)))),
    )


def is_telling(name: str) -> bool:
    """Return True if a name always stands for somebody, and is not a word of a receipt."""
    return len(name) >= _NAME_LENGTH and name.lower() not in _vocabulary() and not name.isdigit()


@cache
def _vocabulary() -> frozenset[str]:
    """Return words of our own: of the findings' texts, and of names.txt, which has accounts that are nobody's and words
    of the field, of receipts and of pages."""
    texts = (text for known in entries() for text in (known.id, known.title, known.cause, known.fix, *known.symptoms))
    common = Path(__file__).with_name("names.txt").read_text("utf-8")
    return frozenset(word for text in texts for word in re.findall(r"[a-z]+", text.lower())) | set(common.split())


def is_secret(name: str, value: str) -> bool:
    """Return True if a variable's name marks its value as a secret, and the value may be one."""
    return bool(SECRET.search(name)) and len(value) >= _SECRET_LENGTH and value.lower() not in _vocabulary()


def secret_words(words: Sequence[str]) -> tuple[str, ...]:
    """Return the values of options that are secrets: ``--hf_token VALUE``, ``wandb_key=VALUE``; not ``--token sks``."""
    pairs = [each for each in pairwise(words) if re.fullmatch("-[^=]+", each[0])]
    pairs += [(name, value) for name, sign, value in (word.partition("=") for word in words) if sign]
    mixed = r"(?=.*\d)(?=.*[A-Za-z])"
    forms = {"passw|secret": "[^-].*", SECRET.pattern: rf"{mixed}[\w+-]{{16,}}=*|[A-Za-z]{{32,}}"}
    forms["key$"] = rf"{mixed}[A-Za-z0-9]{{20,}}"
    found = {v for k, v in pairs for form in forms if re.search(f"(?i){form}", k) and re.fullmatch(forms[form], v)}
    return tuple(value for value in found if is_secret("secret", value))


def hidden(text: str, secrets: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return a sentence or a command with ``$NAME`` for the value of each variable whose name marks a secret.

    Args:
        secrets: values of variables that the text does not name → their names.
    """
    found = {**secrets}

    def named(match: re.Match[str]) -> str:
        name, value = match[2] or match[4], (match[3] or match[5]).strip("'\"")
        if not is_secret(name, value) or "$" in value:
            return match[0]
        found[value] = name
        return f"{name}=${name}"

    assigned = r"""(['"])(\w+)=((?:(?!\1).)+)\1|(?<![\w.-])(\w+)=((?:'[^']*'|"[^"]*"|[^\s'"])+)"""
    text = re.sub(assigned, named, text)
    for value in _longest_first(found):
        text = text.replace(value, f"${found[value]}")
    return Names(secrets=secret_words(text.split())).text(text)


def _secret_values(host: Host, named: Collection[str]) -> Iterable[str]:
    for name, value in {**host.env, **host.secrets}.items():
        if name in named or is_secret(name, value):
            yield value
    yield from filter(None, map(host.secret, named))  # a login that no variable has


def _path(folder: str) -> re.Pattern[str]:
    """Build the pattern of the folder and what is in it; not ``/home/alice2``, nor ``/mnt/home/alice``."""
    return re.compile(rf"(?<![\w.~-]){re.escape(folder)}(?![\w-]|\.\w)")


def _word(name: str) -> re.Pattern[str]:
    """Build the pattern of a name without a letter or digit around it: ``alice_data`` and ``alice-laptop`` hold it."""
    return re.compile(rf"(?:(?<![^\W_])|(?<=%2F)){re.escape(name)}(?![^\W_])", re.IGNORECASE)


def _anchored(user: str) -> Iterable[re.Pattern[str]]:
    """Yield patterns of a user's name where it can be nothing else: in a home, before an @ (no digest's), an owner."""
    name = re.escape(user)
    below = "|".join(f"(?<=/{folder}/)" for folder in _HOMES)  # looking behind takes one length at a time
    yield re.compile(rf"(?:{below}){name}(?![\w-]|\.\w)")
    yield re.compile(rf"(?<![\w.-]){name}(?=@(?!sha256:))")
    owner = "|".join(f"(?<={word}=)" for word in _OWNERS)
    yield re.compile(rf"(?:{owner}){name}(?![\w-]|\.\w)", re.IGNORECASE)


def _longest_first(values: Iterable[str]) -> list[str]:
    return sorted(filter(None, values), key=len, reverse=True)
