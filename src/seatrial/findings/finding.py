"""Finding: one thing that is wrong, why, and the command that fixes it; its ``…`` stands for the user's own words."""

import re
import shlex
from typing import Any, Dict, List, Optional, Sequence, Tuple

from seatrial.events import Found

CAUSE = "cause"
FIX = "fix"


def in_one_line(message: str, cause: Optional[str], fix: Optional[str]) -> str:
    """Return the parts as ``GPU missing; cause: …; fix: …``, for logs."""
    labelled = [(CAUSE, cause), (FIX, fix)]
    return "; ".join([message] + ["%s: %s" % (label, words) for label, words in labelled if words])


#: Engines read /etc/cdi too, but the toolkit's own service (nvidia-cdi-refresh) writes here, and two specs of one kind
#: disagree after the next driver update.
#: Source: docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html
GENERATE_CDI = "sudo nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml"

#: On a node of a cluster, whose kubelet starts pods through containerd or CRI-O.
REGISTER_ON_NODE = (
    "sudo nvidia-ctk runtime configure --runtime=containerd --set-as-default"
    " && sudo systemctl restart containerd   # on the node; --runtime=crio for CRI-O"
)

REGISTER_RUNTIME = "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"

INSTALL_DOCKER = "curl -fsSL https://get.docker.com | sudo sh"
#: Loads nvidia_uvm and makes the device nodes of the driver.
CREATE_NODES = "sudo nvidia-modprobe -u -c=0"

BUILD_DRIVER_MODULE = "sudo apt install linux-headers-$(uname -r) && sudo dkms autoinstall && sudo modprobe nvidia"
#: Ranges of user and group IDs that rootless Podman maps a container's users to.
#: Source: github.com/containers/podman/blob/main/troubleshooting.md
ADD_SUBIDS = 'sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 "$USER" && podman system migrate'

SEVERITIES = ("error", "warning", "info")


class Finding:
    """One thing that is wrong.

    Attributes:
        id: stable kebab-case name of the catalogue entry, e.g. ``uvm-node-missing``.
        severity: ``error`` (the contract is broken), ``warning`` or ``info``.
        message: what was seen, in one sentence.
        cause: the likely cause, in one sentence.
        fix: the command (or change) that fixes it, as typed.
        evidence: the lines it rests on: what was read, and where.
    """

    __slots__ = ("cause", "evidence", "fix", "id", "message", "severity")

    def __init__(
        self,
        id: str,
        severity: str,
        message: str,
        cause: Optional[str] = None,
        fix: Optional[str] = None,
        evidence: Optional[List[str]] = None,
    ) -> None:
        if severity not in SEVERITIES:
            raise ValueError("severity must be one of %s, not %r" % (", ".join(SEVERITIES), severity))
        self.id = id
        self.severity = severity
        self.message = message
        self.cause = cause
        self.fix = fix
        self.evidence = list(evidence or [])

    def to_dict(self) -> Dict[str, Any]:
        """Return the finding as it is written to receipt.json."""
        return {name: getattr(self, name) for name in ("id", "severity", "message", "cause", "fix", "evidence")}

    def event(self) -> Found:
        """Return the finding as it is written to events.jsonl."""
        return Found(**self.to_dict())

    def __repr__(self) -> str:
        return "Finding(%r, %r, %r)" % (self.id, self.severity, self.message)


#: ``seatrial run``, options, ``…``, more options; what follows is a comment or another command.
_CALL = re.compile(
    r"\bseatrial (\w+)((?: (?![…#;|&])%s)*) …"
    r"((?: -%s(?: (?![-…#;|&])%s)?)*)(?=$|\s+#|\s*[;|&])" % ((r"(?:'[^']*'|[^\s'])+",) * 3)
)

#: Verbs that take each other's words: a target and its options.
SHARE_WORDS = ("run", "plan", "shell", "build", "tune")
#: Options that may be given several times, each for another thing: the user's own stay.
_SEVERAL = {"--env", "--env-file", "--secret", "--set", "--ulimit", "--publish", "--device"}
#: Options whose value is NAME=VALUE: one for each name.
_NAMED = ("--env", "-e", "--set")
#: A comment that names options with values to leave out.
_OMITTED = re.compile(r"#.*?\bwithout ((?:,? ?--?\w[\w-]*)+)")


def with_own_words(
    advice: str, target: Sequence[str], arguments: Sequence[str], verbs: Sequence[str] = SHARE_WORDS
) -> str:
    """Return advice with words in place of each ``…`` that stands for a target and its options.

    ``target``: the user's words before ``--``, without options that the advice gives or its comment is ``without``.
    ``arguments``: ``--`` and what follows, or nothing. ``verbs``: whose words; advice of other verbs is left.
    """

    omitted = dict.fromkeys(re.findall(r"-[^\s,]+", " ".join(_OMITTED.findall(advice))), True)

    def filled(call: "re.Match[str]") -> str:
        if call.group(1) not in verbs:
            return call.group(0)
        try:
            before, behind = shlex.split(call.group(2)), shlex.split(call.group(3))
        except ValueError:  # an open quote: no command to paste
            return call.group(0)
        end = behind.index("--") if "--" in behind else len(behind)
        behind, advised = behind[:end], behind[end:]
        if (kept := _without(target, _options(before + behind), omitted)) is None:
            return call.group(0)
        kept = _without_variables(kept, before + behind)
        own = [] if advised[1:] == ["--help"] else list(arguments)
        return shlex.join(["seatrial", call.group(1), *before, *kept, *behind, *own, *advised[bool(own) :]])

    return _CALL.sub(filled, advice)


def _without_variables(words: Sequence[str], advice: Sequence[str]) -> List[str]:
    """Return the words without the variables and settings that the advice gives another value."""
    pairs = list(zip(advice, [*advice[1:], ""]))
    named = tuple(value.partition("=")[0] + "=" for option, value in pairs if option in _NAMED)
    joined = tuple("%s=%s" % (option, name) for option in _NAMED for name in named)
    kept: List[str] = []
    for word in words:
        if kept and kept[-1] in _NAMED and (word + "=").startswith(named):
            kept.pop()
        elif not word.startswith(joined):
            kept.append(word)
    return kept


def _options(words: Sequence[str]) -> Dict[str, bool]:
    """Return option → True if a value follows it."""
    pairs: List[Tuple[str, str]] = list(zip(words, [*words[1:], "-"]))
    named = {word: not behind.startswith("-") for word, behind in pairs if word.startswith("-")}
    return {option: valued for option, valued in named.items() if option not in _SEVERAL}


def _without(words: Sequence[str], options: Dict[str, bool], omitted: Dict[str, bool]) -> Optional[List[str]]:
    """Return the words without these options and their values; None if one of ``options`` stands there twice."""
    both = {**options, **omitted}
    kept: List[str] = []
    dropped: Dict[str, int] = {}
    skip = False
    for word in words:
        name = word.partition("=")[0]
        if skip:
            skip = False
        elif name in both:
            dropped[name] = dropped.get(name, 0) + (name not in omitted)
            skip = both[name] and "=" not in word
        else:
            kept.append(word)
    return None if any(count > 1 for count in dropped.values()) else kept
