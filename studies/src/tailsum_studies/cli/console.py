"""What the commands share: their options, a console, errors in one line, and checks that nothing typed is ignored."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tailsum_studies.progress import say

RUN = "The run"  # the group, in a command's help, of where it works and where it writes
WHAT = "What is measured"

Repeats = Annotated[int, typer.Option(min=2, help="How often each random estimator runs.", rich_help_panel=WHAT)]
Seed = Annotated[int, typer.Option(help="The seed of everything random.", rich_help_panel=RUN)]
RunFolder = Annotated[Path, typer.Argument(help="The folder that `tailsum train --output` made.")]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda or cuda:1. Default: a GPU if there is one.", rich_help_panel=RUN)
]
Data = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        help="Text to train on: a folder of MSCOCO captions, or a file. Default: Python's own.",
        rich_help_panel=WHAT,
    ),
]
Text = Annotated[
    Path | None,
    typer.Option(exists=True, help="Where the text is now, if it has moved since training.", rich_help_panel=RUN),
]


def need_vae() -> None:
    """Say at the start of a long run, not at its end, that the packages of the extra `vae` are missing."""
    if find_spec("safetensors") is None:
        sys.exit("This needs one more package (safetensors): pip install 'tailsum-studies[vae]'")


@contextmanager
def reported(lower: str = "") -> Iterator[Console]:
    """A console, and errors that a person can do something about as one line on it, not a traceback.

    `lower` says what takes less memory.
    """
    console = Console()
    try:
        yield console
    except (ValueError, ImportError) as error:
        said = str(error)
    except OSError as error:  # no room on the disk, a folder that may not be written to
        said = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
    except typer.Exit:  # a RuntimeError too
        raise
    except (RuntimeError, MemoryError) as error:  # most often the memory of the machine or the GPU is too small
        said = str(error).strip().split("\n")[0] or "out of memory"
        said += f". If memory is short: {lower}" if lower else ""
    except KeyboardInterrupt:
        say(console, "Stopped.")
        raise typer.Exit(130) from None
    else:
        return
    console.print(f"Error: {said}", style="red", soft_wrap=True, markup=False)
    raise typer.Exit(1)


def typed(context: typer.Context, name: str) -> bool:
    """Whether an option was given on the command line, also if with its default value."""
    return getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"


def check_effect(context: typer.Context, without: dict[str, str]) -> None:
    """Refuse options that have no effect: `without` has their names, and why they have none."""
    for name, why in without.items():
        if typed(context, name):
            option = f"--{'no-' if context.params[name] is False else ''}{name.replace('_', '-')}"
            raise ValueError(f"{option} has no effect with {why}: leave one of them out")
