"""``seatrial completion``: a shell's completion of what can be typed here."""

from __future__ import annotations

from importlib import resources
from typing import Annotated, Literal

import typer

from seatrial.errors import EXIT_DONE

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> int:
    """Print a shell's completion: verbs, flags, runs by name, recipes, GPUs.

    \b
    bash: seatrial completion bash > ~/.local/share/bash-completion/completions/seatrial
    zsh:  seatrial completion zsh > ~/.zfunc/_seatrial      (with fpath+=~/.zfunc before compinit)
    fish: seatrial completion fish > ~/.config/fish/completions/seatrial.fish
    """
    print(
        resources.files("seatrial.cli").joinpath("shells").joinpath(f"seatrial.{shell}").read_text(encoding="utf-8"),
        end="",
    )
    return EXIT_DONE
