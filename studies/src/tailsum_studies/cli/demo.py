"""`tailsum demo`."""

from pathlib import Path
from typing import Annotated

import typer

from tailsum_studies.cli.console import RUN, WHAT, Repeats, Seed, reported
from tailsum_studies.progress import say


def demo(
    states: Annotated[int, typer.Option(min=10, help="States of the chains.", rich_help_panel=WHAT)] = 10_000,
    length: Annotated[int, typer.Option(min=1, help="Positions of the chains.", rich_help_panel=WHAT)] = 10,
    repeats: Repeats = 12,
    seed: Seed = 0,
    output: Annotated[
        Path, typer.Option(file_okay=False, help="The folder for the picture.", rich_help_panel=RUN)
    ] = Path("tailsum-demo"),
) -> None:
    """Compare estimators on two large chains: exact, TopK, the paper's, and tailsum's at 1% and 10% of the states.

    Prints a table of errors, times and memory, and writes a picture of the error distributions. Takes about a minute.
    """
    from tailsum_studies.demo import demo_picture, demo_table, run_demo

    with reported("lower --states") as console:
        rows = run_demo(states, length, seed, repeats, console)
        console.print(demo_table(rows, states, length))
        picture = output / "errors.png"
        demo_picture(rows, picture)
        say(console, f"Picture of the error distributions: {picture.resolve()}")
