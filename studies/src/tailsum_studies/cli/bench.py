"""`tailsum bench`."""

import signal
from pathlib import Path
from typing import Annotated

import typer

from tailsum_studies.cli.console import RUN, WHAT, Device, check_effect, reported
from tailsum_studies.progress import say


def bench(
    context: typer.Context,
    output: Annotated[
        Path, typer.Option(file_okay=False, help="The folder for the results.", rich_help_panel=RUN)
    ] = Path("tailsum-bench"),
    quick: Annotated[bool, typer.Option("--quick", help="Fewer and smaller sizes.", rich_help_panel=WHAT)] = False,
    device: Device = None,
    only: Annotated[
        str, typer.Option(help="What to measure, with commas between.", rich_help_panel=WHAT)
    ] = "N,T,B,K,peers",
    seconds: Annotated[
        float | None,
        typer.Option(min=1.0, help="How long it may take, about. Default: 600; quick: 90.", rich_help_panel=WHAT),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Measure again what was measured before.", rich_help_panel=WHAT)
    ] = False,
    page: Annotated[
        Path | None,
        typer.Option(
            exists=True, file_okay=False, help="Only write the page of this folder's results.", rich_help_panel=RUN
        ),
    ] = None,
) -> None:
    """Measure this machine: exact beside sketch over N, T, B and K, and beside other libraries.

    Every time stands behind a check of the result. What would take too long is predicted from smaller sizes, and
    skipped. Writes `results.csv`, `machine.json`, and one page, `index.html`, with plots, ratios of time and memory,
    crossing points and a table "when to use what".

    What is measured is kept: run the same command again, with more `--seconds` if you like, to go on. `--page FOLDER`
    writes the page of results that were measured before, or elsewhere.
    """
    with reported("--only some, or --quick") as console:
        if page is not None:
            others = ("output", "quick", "device", "only", "seconds", "fresh")
            check_effect(context, dict.fromkeys(others, "--page"))
        else:
            from tailsum_studies.bench import run
            from tailsum_studies.bench.machine import device_from
            from tailsum_studies.bench.plan import groups_from, plan_of

            place = device_from(device)
            time = seconds or (90.0 if quick else 600.0)
            settings = run.Settings(output, place, plan_of(place.type, quick=quick), groups_from(only), time, fresh)
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                run.bench(settings, console)
            except KeyboardInterrupt:
                say(console, f"Stopped. Finished cells are kept in {output}: the same command goes on from there.")
                raise typer.Exit(130) from None
            say(console, f"The results: {(output / 'results.csv').resolve()}")
        from tailsum_studies.bench.report import write_page

        say(console, f"The results on one page: {write_page(page or output).resolve()}")
