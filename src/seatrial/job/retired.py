"""Commands, options and keys of seatrial.toml that were removed, and the sentence that names each one's replacement.

An entry stays for one release. The command line shows it in place of "no such command" and "no such option", and the
reader of seatrial.toml in place of "unknown key". To retire something, delete it and add a line here.
"""

from __future__ import annotations

#: Command, or command and subcommand → the command that replaces it.
COMMANDS: dict[str, str] = {
    "bench": "seatrial run bench -- train digits --compare eager,graph",
    "bench serve": "oha http://127.0.0.1:8000/predict   # or wrk",
    "cdi": "seatrial doctor --write-cdi",
    "completion": "seatrial --completion SHELL",
    "down": "seatrial runs stop GROUP",
    "exporter": "seatrial dashboard --metrics-only",
    "k8s": "seatrial doctor --on k8s",
    "k8s cleanup": "kubectl delete job,jobset,pytorchjob,trainjob -l app.kubernetes.io/managed-by=seatrial",
    "k8s prepull": "kubectl apply -f puller.yaml   # a DaemonSet of the image",
    "new": "seatrial init NAME",
    "predict": "seatrial run predict -- MODEL INPUT…",
    "prune": "seatrial runs prune",
}

#: Command and option → the sentence that names the replacement.
OPTIONS: dict[str, str] = {
    "build --treemap": "build --explain prints the same sizes",
    "sweep --fused": "sweep --parallel N runs the trials as runs of their own",
    "tune --apply": "tune --save keeps the changes, and the receipt shows the line to write for each",
    "tune --patch": "tune --save keeps the changes, and the receipt shows the line to write for each",
    "up --as-written": "up keeps the order of the file; only the short form of depends_on waits for a task to end",
    "up --fix": "up --plan prints each problem with its line and what to write",
    "up --force": "seatrial up runs every service",
    "up --port": "TensorBoard and MLflow are services of a Compose file, which publishes their ports",
    "up --stages": "services of a Compose file run in order by depends_on; seatrial up -f FILE",
}

#: Key of seatrial.toml, ``table.key`` or a whole table → the sentence that names the replacement. Keys of a stage or a
#: service are written with ``*`` for its name: ``stages.*.serve``.
KEYS: dict[str, str] = {
    "notify.desktop": 'use a command, such as notify-send seatrial "$SEATRIAL_MESSAGE"',
    "notify.webhook": "use a command, such as curl --json @- URL, which gets the message on standard input",
    "services": "TensorBoard and MLflow are services of a Compose file; examples/trackers has one",
    "stages": "Compose services run in order: depends_on: {OTHER: {condition: service_completed_successfully}}",
}


def replaced_command(words: list[str]) -> str | None:
    """Return the command that replaces these first words of a command line; None if nothing was retired there."""
    return COMMANDS.get(" ".join(words[:2])) or (COMMANDS.get(words[0]) if words else None)


def replaced_option(command: str, option: str) -> str | None:
    """Return the sentence for an option of a command, e.g. ``sweep`` and ``--fused``; None if it never existed."""
    return OPTIONS.get(f"{command} {option.partition('=')[0]}")


def replaced_key(key: str) -> str | None:
    """Return the sentence for a key such as ``notify.desktop``, or for the table around it; None if there is none."""
    parts = key.split(".")
    starred = [parts[0], "*", *parts[2:]] if len(parts) > 1 else parts
    for form in (parts, starred):
        for end in range(len(form), 0, -1):
            if found := KEYS.get(".".join(form[:end])):
                return found
    return None
