"""`tailsum reproduce`."""

import signal
from pathlib import Path
from typing import Annotated, Literal

import typer

from tailsum.apps.progress import say
from tailsum.cli.console import RUN, WHAT, Repeats, Seed, check_effect, need, told

Table = Literal["table2", "table3", "table4", "hard", "theory", "splits", "memory", "relaxed", "all"]
WITHOUT_EFFECT = {
    **dict.fromkeys(("table2", "table3", "table4", "splits"), ("data",)),
    "theory": ("data", "states", "repeats"),
    "memory": ("data", "repeats"),
    "relaxed": ("states",),
}


def _numbers(text: str) -> tuple[int, ...]:
    try:
        found = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise typer.BadParameter(
            f"must be numbers with commas between them, such as 2000,10000: got {text!r}"
        ) from None
    if min(found) < 100:
        raise typer.BadParameter(f"must be at least 100 each, so that 1% of them is a state: got {text!r}")
    return found


def reproduce(
    context: typer.Context,
    table: Annotated[
        Table,
        typer.Argument(
            metavar="TABLE",
            help="What to run: table2, table3, table4, hard, theory, splits, memory, relaxed or all.",
        ),
    ],
    states: Annotated[str, typer.Option(help="How many states the models have.", rich_help_panel=WHAT)] = "2000,10000",
    repeats: Repeats = 100,
    seed: Seed = 0,
    output: Annotated[
        Path, typer.Option(file_okay=False, help="The folder for the results.", rich_help_panel=RUN)
    ] = Path("tailsum-paper"),
    data: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            help="Text to train on: a folder of MSCOCO captions, or a file. Default: Python's own.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            exists=True, file_okay=False, help="Only write the report of this folder's results.", rich_help_panel=RUN
        ),
    ] = None,
) -> None:
    """Run the paper's experiments, and harder ones: its figures, its method here, and ours, side by side.

    **table2**: log Z of chains and hypertrees, entropy of chains. **table3**: bias and variance. **table4**: proposals.
    **hard**: peaked chains, models trained on text, gradients. **theory**: what is proved, measured. **splits**: how many of
    the kept states are drawn. **memory**: of training steps. **relaxed**: gradients by samples. **all**: everything, in
    little more than an hour on two cores.

    What is finished is kept: run the same command again to go on where it was interrupted. Writes CSV files with every
    replicate (compressed), tables in Markdown, pictures, and a page, `index.html`, that shows it all.
    """
    need("plot", "report")
    from tailsum.apps.paper import reproduce as paper

    settings = paper.Settings(table, _numbers(states), repeats, seed, output, data)
    with told() as console:
        if page is not None:
            check_effect(context, dict.fromkeys(("states", "repeats", "seed", "output", "data"), "--page"))
            say(console, f"The results on one page: {paper.rewrite_report(page, paper.TABLES[table]).resolve()}")
            return
        check_effect(context, dict.fromkeys(WITHOUT_EFFECT.get(table, ()), f"reproduce {table}"))
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            made = paper.reproduce(settings, console)
        except KeyboardInterrupt:
            say(console, f"Stopped. Finished cells are kept in {output}: the same command goes on from there.")
            raise typer.Exit(130) from None
        say(console, f"The results on one page: {made.resolve()}")
