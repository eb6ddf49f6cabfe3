"""Advice to paste: ``…`` behind ``seatrial run`` stands for the user's own words, and is replaced by them."""

import re
import shlex
from typing import Dict, List, Optional, Sequence, Tuple

#: ``seatrial run``, options, ``…``, more options; what follows is a comment or another command.
_CALL = re.compile(
    r"\bseatrial (run|plan|shell|build|sweep|tune)((?: (?![…#;|&])\S+)*) …"
    r"((?: -\S+(?: (?![-…#;|&])\S+)?)*)(?=$|\s+#|\s*[;|&])"
)

#: Verbs that take each other's words: a target and its options.
SHARE_WORDS = ("run", "plan", "shell")

#: Options that may be given several times, each for another thing: the user's own stay.
_SEVERAL = {"--env", "--env-file", "--secret", "--ulimit", "--publish", "--device"}

#: A comment that names an option with a value to leave out.
_OMITTED = re.compile(r"#.*?\bwithout (--[\w-]+)")


def with_own_words(
    advice: str, target: Sequence[str], arguments: Sequence[str], verbs: Sequence[str] = SHARE_WORDS
) -> str:
    """Advice with words in place of each ``…`` that stands for a target and its options.

    Args:
        target: the user's own words before ``--``. An option that the advice gives replaces theirs, and
            one that its comment is ``without`` is left out.
        arguments: ``--`` and what stands behind it, or nothing.
        verbs: whose words these are; advice to type another is left as it is.
    """

    omitted = dict.fromkeys(_OMITTED.findall(advice), True)

    def filled(call: "re.Match[str]") -> str:
        if call.group(1) not in verbs:
            return call.group(0)
        try:
            before, behind = shlex.split(call.group(2)), shlex.split(call.group(3))
        except ValueError:  # an open quote: no command to paste
            return call.group(0)
        end = behind.index("--") if "--" in behind else len(behind)
        behind, advised = behind[:end], behind[end:]
        kept = _without(target, {**_options(before + behind), **omitted})
        if kept is None:
            return call.group(0)
        kept = _without_variables(kept, before + behind)
        own = [] if advised[1:] == ["--help"] else list(arguments)
        return shlex.join(["seatrial", call.group(1), *before, *kept, *behind, *own, *advised[bool(own) :]])

    return _CALL.sub(filled, advice)


def _without_variables(words: Sequence[str], advice: Sequence[str]) -> List[str]:
    """Words without the variables that the advice sets otherwise."""
    pairs = list(zip(advice, [*advice[1:], ""]))
    named = {value.partition("=")[0] + "=" for option, value in pairs if option in ("--env", "-e")}
    kept: List[str] = []
    for word in words:
        if kept and kept[-1] in ("--env", "-e") and word.startswith(tuple(named)):
            kept.pop()
        else:
            kept.append(word)
    return kept


def _options(words: Sequence[str]) -> Dict[str, bool]:
    """Option → whether a value follows it."""
    pairs: List[Tuple[str, str]] = list(zip(words, [*words[1:], "-"]))
    named = {word: not behind.startswith("-") for word, behind in pairs if word.startswith("-")}
    return {option: valued for option, valued in named.items() if option not in _SEVERAL}


def _without(words: Sequence[str], options: Dict[str, bool]) -> Optional[List[str]]:
    """Words without these options and their values; None if one stands there twice."""
    kept: List[str] = []
    dropped: Dict[str, int] = {}
    skip = False
    for word in words:
        name = word.partition("=")[0]
        if skip:
            skip = False
        elif name in options:
            dropped[name] = dropped.get(name, 0) + 1
            skip = options[name] and "=" not in word
        else:
            kept.append(word)
    return None if any(count > 1 for count in dropped.values()) else kept
