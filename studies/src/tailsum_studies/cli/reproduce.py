"""`tailsum reproduce`."""

import signal
from pathlib import Path
from typing import Annotated, Literal

import typer

from tailsum_studies.cli.console import RUN, WHAT, Data, Repeats, Seed, check_effect, need_vae, reported, typed
from tailsum_studies.paper.vae.design import Scale
from tailsum_studies.progress import say

Table = Literal[
    "table2", "table3", "table4", "hard", "theory", "splits", "memory", "relaxed", "all", "table5", "figure2"
]  # fmt: skip
# Of those that train structured VAEs: how many states they have, and how many seeds, by default.
TRAINED = {"table5": "100,2000", "figure2": "2000"}
SEEDS = 3
TRAINING = "Training (table5 and figure2)"
FOR_TRAINING = ("scale", "encoder", "device", "workers")
WITHOUT_EFFECT = {
    **dict.fromkeys(("table2", "table3", "table4", "splits"), ("data", *FOR_TRAINING)),
    "theory": ("data", "states", "repeats", *FOR_TRAINING),
    "memory": ("data", "repeats", *FOR_TRAINING),
    "relaxed": ("states", *FOR_TRAINING),
    **dict.fromkeys(("hard", "all"), FOR_TRAINING),
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
            help="What to run: table2, table3, table4, table5, figure2, hard, theory, splits, memory, relaxed or all.",
        ),
    ],
    states: Annotated[
        str,
        typer.Option(
            help="How many states the models have. Default for table5: 100,2000; for figure2: 2000.",
            rich_help_panel=WHAT,
        ),
    ] = "2000,10000",
    repeats: Repeats = 100,
    seed: Seed = 0,
    output: Annotated[
        Path, typer.Option(file_okay=False, help="The folder for the results.", rich_help_panel=RUN)
    ] = Path("tailsum-paper"),
    data: Data = None,
    page: Annotated[
        Path | None,
        typer.Option(
            exists=True, file_okay=False, help="Only write the report of this folder's results.", rich_help_panel=RUN
        ),
    ] = None,
    scale: Annotated[
        Scale,
        typer.Option(
            metavar="SCALE",
            help="table5, figure2: small or medium, minutes a run on a CPU, or full, 20 passes over the captions, for a GPU.",
            rich_help_panel=TRAINING,
        ),
    ] = "small",
    encoder: Annotated[
        str,
        typer.Option(
            help="table5, figure2: lstm, transformer, or a pretrained model, frozen: a folder, or its name on the hub.",
            rich_help_panel=TRAINING,
        ),
    ] = "lstm",
    device: Annotated[
        str | None,
        typer.Option(
            help="table5, figure2: cpu, cuda or cuda:1. Default: a GPU if there is one.", rich_help_panel=TRAINING
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, help="table5, figure2: runs that are trained at a time.", rich_help_panel=TRAINING)
    ] = 1,
) -> None:
    """Run the paper's experiments, and harder ones: its figures, its method here, and ours, side by side.

    **table2**: log Z of chains and hypertrees, entropy of chains. **table3**: bias and variance. **table4**: proposals.
    **hard**: peaked chains, models trained on text, gradients. **theory**: what is proved, measured. **splits**: how many of
    the kept states are drawn. **memory**: of training steps. **relaxed**: gradients by samples. **all**: all of these, in
    little more than an hour on two cores.

    **table5**: the likelihood of structured VAEs, by each way to sum over the states. **figure2**: how often their states
    occur. These train for hours, and are not a part of **all**. `--repeats` is the number of seeds (default here: 3). A
    training run that is interrupted goes on from its own checkpoint.

    What is finished is kept: run the same command again to go on where it was interrupted. Writes CSV files with every
    replicate (compressed), tables in Markdown, pictures, and a page, `index.html`, that shows it all.
    """
    if table in TRAINED:
        need_vae()
    from tailsum_studies.paper import reproduce as paper

    if table in TRAINED:
        states = states if typed(context, "states") else TRAINED[table]
        repeats = repeats if typed(context, "repeats") else SEEDS
        encoder = str(folder.resolve()) if (folder := Path(encoder).expanduser()).is_dir() else encoder
    options = paper.Options(scale, encoder, device, workers)
    settings = paper.Settings(table, _numbers(states), repeats, seed, output, data, options)
    with reported() as console:
        if page is not None:
            check_effect(
                context, dict.fromkeys(("states", "repeats", "seed", "output", "data", *FOR_TRAINING), "--page")
            )
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
