"""`tailsum gaps`."""

from pathlib import Path
from typing import Annotated

import typer

from tailsum_studies.cli.console import RUN, WHAT, Data, Device, reported
from tailsum_studies.progress import say, shown


def gaps(
    data: Data = None,
    ways: Annotated[
        str,
        typer.Option(
            help="How to train, with commas: tailsum, local, independent, exact, small, topk, beam, paper, paper-candidates, sampled, next-word; or all.",
            rich_help_panel=WHAT,
        ),
    ] = "tailsum,independent",
    seconds: Annotated[float, typer.Option(min=1, help="How long each is trained.", rich_help_panel=WHAT)] = 75,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds each is trained from.", rich_help_panel=WHAT)] = 1,
    kept: Annotated[int, typer.Option(min=2, help="Words kept at each position.", rich_help_panel=WHAT)] = 64,
    candidates: Annotated[
        int, typer.Option(min=2, help="Words that stand for the vocabulary at a position.", rich_help_panel=WHAT)
    ] = 512,
    words: Annotated[int, typer.Option(min=2, help="Words that `small` knows.", rich_help_panel=WHAT)] = 300,
    bound: Annotated[
        float, typer.Option(min=0, help="The largest size of a pair's score; 0: any.", rich_help_panel=WHAT)
    ] = 0.0,
    sentences: Annotated[
        int, typer.Option(min=16, help="Held-out sentences to measure on.", rich_help_panel=WHAT)
    ] = 256,
    exact: Annotated[
        int, typer.Option(min=0, help="How many of them also with the exact sum, which is slow.", rich_help_panel=WHAT)
    ] = 0,
    output: Annotated[
        Path, typer.Option(file_okay=False, help="The folder for the results.", rich_help_panel=RUN)
    ] = Path("tailsum-gaps"),
    device: Device = None,
) -> None:
    """Train a model that needs a sketch: it restores words missing from sentences, all words of the text as its states.

    Half of the words of a sentence are missing, in one piece. A chain over them has the whole vocabulary as states, and
    transitions that the words around the gap make, so that they differ at every step: an exact step of training takes minutes
    on a CPU. Trains for so many seconds in each way, then measures the likelihood of held-out words, and shows some. Takes less than
    five minutes.

    Finished runs are kept: the same command goes on where it was stopped. Writes `gaps.md`, `gaps.csv` and `gaps.png`.
    """
    import torch

    from tailsum_studies.gaps.compare import Settings, compare
    from tailsum_studies.gaps.data import Text
    from tailsum_studies.gaps.report import table, write
    from tailsum_studies.gaps.ways import ways as all_ways
    from tailsum_studies.text import sentences as read

    with reported("lower --kept or --candidates") as console:
        known = all_ways(kept, candidates, words, bound)
        wanted = list(known) if ways == "all" else list(dict.fromkeys(ways.split(",")))
        if unknown := [name for name in wanted if name not in known]:
            raise ValueError(f"--ways must be among {', '.join(known)}, or all: got {unknown[0]!r}")
        text = Text.of(read(data))
        place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        settings = Settings(seconds, sentences, exact)
        say(console, f"{len(text.train):,} sentences, {len(text.vocabulary):,} words: as many states.")
        runs = []
        with shown(console) as progress:
            task = progress.add_task("training", total=int(seconds) * len(wanted) * seeds)
            source = compare(
                [known[name] for name in wanted], text, settings, range(seeds), output, place,
                lambda passed: progress.advance(task, passed),
            )  # fmt: skip
            for run in source:
                runs.append(run)
                say(console, f"{run.label}, seed {run.seed}: {run.steps:,} steps, test {run.test:.3f} nats a word")
        limit = f", scores of pairs up to {bound:g}" if bound else ""
        words_said = f"{settings.seconds:g} seconds for each, {len(text.vocabulary):,} words as states{limit}."
        found = write(output, runs, words_said)
        say(console, table(runs).to_string())
        for example in next((run.examples for run in runs if run.way == "tailsum"), []):
            say(console, example)
        say(console, f"The results: {found.resolve()}")
