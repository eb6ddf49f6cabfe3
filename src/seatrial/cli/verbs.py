"""List the verbs and the words that people bring from other tools."""

from __future__ import annotations

#: Verb → (``module:function``, its group in the help, its line there).
VERBS: dict[str, tuple[str, str, str]] = {
    "run": ("run:run", "Run", "A script, module, recipe or image on GPUs; a receipt."),
    "plan": ("plan:plan", "", "What run would do and why; changes nothing."),
    "shell": ("run:shell", "", "A shell in the container that run would start."),
    "build": ("plan:build", "", "Build and verify the image, or check a Dockerfile."),
    "init": ("plan:init", "", "Write seatrial.toml, or make a project: init NAME."),
    "up": ("run:up", "", "A Compose file as it is; one receipt for all."),
    "runs": ("runs:runs", "Look", "ls, show, logs, attach, exec, stop, compare, rm, prune."),
    "open": ("runs:open_receipt", "", "A run's receipt in the browser."),
    "top": ("monitor:top", "", "GPUs, containers and runs on this machine, live."),
    "dashboard": ("monitor:dashboard", "", "The same as a web page; --metrics-only: Prometheus."),
    "doctor": ("doctor:doctor", "Repair", "Check the GPU-container chain; apply safe fixes."),
    "explain": ("doctor:explain", "", "The cause and the fix of an error or a log."),
    "tune": ("sweep:tune", "Improve", "Try changes; keep what is faster and trains the same."),
    "sweep": ("sweep:sweep", "", "Run a job with several settings and compare them."),
    "export": ("models:export", "Deliver", "A trained model in another format, checked."),
    "serve": ("models:serve", "", "A trained model over HTTP."),
}

#: Words from other tools, and the command here.
OTHER_WORDS = {
    "ps": "runs ls", "ls": "runs ls", "list": "runs ls", "logs": "runs logs", "log": "runs logs", "show": "runs show",
    "attach": "runs attach", "exec": "runs exec", "stop": "runs stop", "kill": "runs stop", "rm": "runs rm",
    "compare": "runs compare", "verify": "runs verify", "cp": "runs cp", "status": "runs show", "train": "run",
    "start": "run", "create": "init", "check": "doctor", "diagnose": "doctor", "why": "explain", "clean": "runs prune",
    "gpus": "top", "gpu": "top", "nvidia-smi": "top", "monitor": "top", "diff": "runs compare", "history": "runs ls",
    "ui": "dashboard", "web": "dashboard", "metrics": "dashboard", "tensorboard": "dashboard", "validate": "plan",
    "dry-run": "plan", "receipt": "open", "bash": "shell", "ssh": "shell", "compose": "up", "delete": "runs rm",
    "lint": "build --check", "info": "doctor", "stats": "top", "inspect": "runs show",
    "completions": "--completion bash", "--install-completion": "--completion bash",
}  # fmt: skip
