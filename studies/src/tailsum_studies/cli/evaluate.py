"""`tailsum evaluate`."""

from typing import Annotated

import typer

from tailsum_studies.cli.console import WHAT, Device, RunFolder, Text, need_vae, reported


def evaluate(
    run: RunFolder,
    samples: Annotated[
        int, typer.Option(min=1, help="Samples of the states for each sentence.", rich_help_panel=WHAT)
    ] = 100,
    sentences: Annotated[
        int | None, typer.Option(min=1, help="Sentences of each part, at most. Default: all.", rich_help_panel=WHAT)
    ] = None,
    baselines: Annotated[
        bool, typer.Option(help="Train and score other language models too.", rich_help_panel=WHAT)
    ] = True,
    data: Text = None,
    device: Device = None,
) -> None:
    """The likelihood of a run's dev and test sentences, by importance sampling, beside that of other language models.

    Also the parts of its lower bound, and how many states are in use. Writes `evaluation.json` into the run's folder.
    """
    need_vae()
    from tailsum_studies.vae.session import evaluate_run

    with reported("lower --samples") as console:
        evaluate_run(run, console, samples, sentences, baselines, device, data)
