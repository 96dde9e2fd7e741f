"""The command line: `tailsum demo`, `reproduce`, `train`, `evaluate` and `explore`."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Annotated

try:
    import typer
    from rich.console import Console
except ImportError:  # pragma: no cover
    sys.exit("The command line needs two more packages: pip install 'tailsum[cli,plot]'")


def _need_matplotlib() -> None:
    """Say at the start of a long run, not at its end, that its pictures cannot be drawn."""
    if find_spec("matplotlib") is None:
        sys.exit("Pictures need one more package: pip install 'tailsum[cli,plot]'")


app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="markdown")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version("tailsum"))
        raise typer.Exit


@app.callback()
def tailsum(
    _: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Structured inference with very many latent states: exact where affordable, randomized where not."""


@app.command()
def demo(
    states: Annotated[int, typer.Option(min=10, help="How many states the chains have.")] = 10_000,
    length: Annotated[int, typer.Option(min=1, help="How many positions the chains have.")] = 10,
    repeats: Annotated[int, typer.Option(min=2, help="How often each random estimator runs.")] = 12,
    seed: Annotated[int, typer.Option(help="The seed of everything random.")] = 0,
    output: Annotated[Path, typer.Option(file_okay=False, help="The folder for the picture.")] = Path("tailsum-demo"),
) -> None:
    """Compare estimators on two large chains: exact, TopK, the paper's, and tailsum's at 1% and 10% of the states.

    Prints a table of errors, times and memory, and writes a picture of the error distributions. Takes about a minute.
    """
    _need_matplotlib()
    from tailsum.apps.demo import demo_picture, demo_table, run_demo  # noqa: PLC0415  (torch is slow to load: not for --help)

    console = Console()
    rows = run_demo(states, length, seed, repeats, console)
    console.print(demo_table(rows, states, length))
    picture = output / "errors.png"
    demo_picture(rows, picture)
    _show(console, f"Picture of the error distributions: {picture.resolve()}")


@contextmanager
def _told(console: Console) -> Iterator[None]:
    """Errors that a person can do something about are one line, not a traceback."""
    try:
        yield
    except (ValueError, ImportError) as error:
        said = str(error)
    except OSError as error:  # no room on the disk, a folder that may not be written to
        said = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
    else:
        return
    console.print(f"Error: {said}", style="red", soft_wrap=True, markup=False)
    raise typer.Exit(1)


def _show(console: Console, text: str) -> None:
    """A line with a path in it, as it is."""
    console.print(text, soft_wrap=True, markup=False, highlight=False)


class Table(StrEnum):
    """What can be run."""

    table2 = "table2"
    table3 = "table3"
    table4 = "table4"
    hard = "hard"
    theory = "theory"
    all = "all"


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


@app.command()
def reproduce(
    table: Annotated[Table, typer.Argument(help="What to run.")],
    states: Annotated[str, typer.Option(help="How many states the models have.")] = "2000,10000",
    repeats: Annotated[int, typer.Option(min=2, help="How often each random estimator runs.")] = 100,
    seed: Annotated[int, typer.Option(help="The seed of everything random.")] = 0,
    output: Annotated[Path, typer.Option(file_okay=False, help="The folder for the results.")] = Path("tailsum-paper"),
    data: Annotated[
        Path | None,
        typer.Option(
            exists=True, help="Text to train on: a folder of MSCOCO captions, or a file. Default: Python's own."
        ),
    ] = None,
) -> None:
    """Run the paper's experiments, and harder ones: its figures, its method here, and ours, side by side.

    **table2**: log Z of chains and hypertrees, entropy of chains. **table3**: bias and variance. **table4**: proposals.
    **hard**: peaked chains, models trained on text, gradients. **theory**: what is proved, measured. **all**: everything,
    in less than an hour on two cores.

    What is finished is kept: run the same command again to go on where it was interrupted. Writes CSV files with every
    replicate, tables in Markdown, pictures, and one page, `index.html`, that shows it all.
    """
    _need_matplotlib()
    from tailsum.apps.paper.reproduce import Settings  # noqa: PLC0415  (torch is slow to load: not for --help)
    from tailsum.apps.paper.reproduce import reproduce as run  # noqa: PLC0415

    console = Console()
    settings = Settings(table.value, _numbers(states), repeats, seed, output, data)
    try:
        with _told(console):
            page = run(settings, console)
    except KeyboardInterrupt:
        _show(console, f"Stopped. Finished cells are kept in {output}: the same command goes on from there.")
        raise
    _show(console, f"The results on one page: {page.resolve()}")


class Sums(StrEnum):
    """How training sums over the states."""

    full = "full"
    topk = "topk"
    rdp = "rdp"
    tailsum = "tailsum"


def _need_vae() -> None:
    _need_matplotlib()
    if find_spec("safetensors") is None:
        sys.exit("Training needs more packages: pip install 'tailsum[cli,plot,vae]'")


RunFolder = Annotated[Path, typer.Argument(help="The folder that `tailsum train --output` made.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1. Default: a GPU if there is one.")]
Text = Annotated[
    Path | None,
    typer.Option(exists=True, help="Where the text is now, if it has moved since training."),
]


@app.command()
def train(
    context: typer.Context,
    data: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            help="MSCOCO captions (a JSON file or a folder of them) or a text file, a sentence a line. Default: Python's own documentation.",
        ),
    ] = None,
    states: Annotated[int, typer.Option(min=2, help="How many states a word may have.")] = 300,
    estimator: Annotated[Sums, typer.Option(help="How training sums over the states.")] = Sums.tailsum,
    kept: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="States kept at each position. Default: all up to 20,000 (full, tailsum), else 200; a fifth (topk, rdp).",
        ),
    ] = None,
    drawn: Annotated[
        int | None, typer.Option(min=1, help="How many of the kept states are drawn (rdp). Default: half.")
    ] = None,
    landmarks: Annotated[int, typer.Option(min=1, help="States that guide the choice of the kept ones.")] = 256,
    probes: Annotated[
        int, typer.Option(min=1, help="States of each position at which p(word | state) is asked for (tailsum).")
    ] = 1,
    encoder: Annotated[
        str, typer.Option(help="lstm, transformer, or a pretrained model: a folder, or its name on the hub.")
    ] = "lstm",
    frozen: Annotated[bool, typer.Option(help="Leave a pretrained encoder as it is.")] = True,
    output: Annotated[Path, typer.Option(file_okay=False, help="The folder for the run.")] = Path("tailsum-run"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the output folder.")] = False,
    steps: Annotated[int, typer.Option(min=1, help="How many batches to train on.")] = 600,
    batch: Annotated[int, typer.Option(min=1, help="Sentences in a batch.")] = 64,
    shards: Annotated[
        int, typer.Option(min=1, help="Parts of a batch, worked on in turn, or by as many processes (torchrun).")
    ] = 1,
    rate: Annotated[float, typer.Option(help="Adam's learning rate.")] = 3e-3,
    clip: Annotated[float, typer.Option(help="The largest norm of the gradient.")] = 5.0,
    dropout: Annotated[float, typer.Option(help="Of embeddings and the decoder's memory.")] = 0.2,
    word_dropout: Annotated[float, typer.Option(help='The share of words that the decoder reads as "<unk>".')] = 0.0,
    last_word_dropout: Annotated[
        float | None, typer.Option(help="What it comes to in the first half. Default: it stays.")
    ] = None,
    hard: Annotated[
        bool, typer.Option("--hard/--soft", help="One-hot samples with relaxed gradients, or relaxed.")
    ] = True,
    temperature: Annotated[float, typer.Option(help="Of relaxed samples.")] = 1.0,
    final_temperature: Annotated[float, typer.Option(help="What it comes to in the second half.")] = 1.0,
    entropy_weight: Annotated[float, typer.Option(help="The weight on the entropy of the posterior.")] = 1.0,
    kl_weight: Annotated[
        float, typer.Option(help="The weight on what keeps the posterior near the prior; 1 is the ELBO.")
    ] = 0.5,
    warm_up: Annotated[float, typer.Option(help="The share of all steps in which that weight grows from zero.")] = 0.5,
    spread: Annotated[float, typer.Option(help="Of the state embeddings of the posterior at the start.")] = 0.1,
    size: Annotated[int, typer.Option(min=2, help="Of word embeddings and of the encoder.")] = 128,
    state_size: Annotated[int, typer.Option(min=1, help="Of state embeddings.")] = 64,
    hidden: Annotated[int, typer.Option(min=1, help="Of the decoder's LSTM.")] = 256,
    words: Annotated[int, typer.Option(min=1, help="In the vocabulary, at most.")] = 10_000,
    longest: Annotated[int, typer.Option(min=1, help="Words in a sentence; longer ones are left out.")] = 40,
    seed: Annotated[int, typer.Option(help="The seed of everything random.")] = 0,
    check_every: Annotated[
        int, typer.Option(min=1, help="Steps between looks at the dev part, and checkpoints.")
    ] = 100,
    samples: Annotated[int, typer.Option(min=1, help="Of the states, for each sentence, in the evaluation.")] = 20,
    report: Annotated[bool, typer.Option(help="Evaluate and explore the model at the end.")] = True,
    device: Device = None,
) -> None:
    """Train a structured VAE on sentences: latent states by a CRF, words and states by an LSTM.

    With no arguments it reads Python's own documentation, and takes some minutes. At the end it shows the likelihood
    beside that of other language models, and writes a page about what the states have come to mean.

    Stopped by Ctrl-C, or killed? `--resume` goes on to the same result. On several GPUs or machines: `torchrun
    --nproc-per-node 2 -m tailsum.cli train --shards 2`.
    """
    _need_vae()
    from tailsum.apps.vae.session import train_run  # noqa: PLC0415  (torch is slow to load: not for --help)
    from tailsum.apps.vae.settings import OWN_ENCODERS, Settings  # noqa: PLC0415

    console = Console()
    with _told(console):
        given = {name: value for name, value in context.params.items() if name in Settings.__dataclass_fields__}
        given |= {"estimator": estimator.value, "data": None if data is None else str(data.resolve())}
        if encoder not in OWN_ENCODERS and (folder := Path(encoder).expanduser()).is_dir():
            given["encoder"] = str(folder.resolve())
        if resume:
            typed = {name for name in given if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"}
            _check_same(output, {name: given[name] for name in typed - {"data"}})  # the text may have moved
        done = train_run(output, None if resume else Settings(**given), console, device, data)
        if not done:
            _show(console, f"Stopped and saved. To go on: tailsum train --output {quote(str(output))} --resume")
            raise typer.Exit(130)
        if report and os.environ.get("RANK", "0") == "0":
            _report(output, console, samples, device, data)


def _check_same(output: Path, typed: dict[str, object]) -> None:
    """A run goes on as it was begun: what is asked for beside --resume must be what it has."""
    from tailsum.apps.vae.run import Run  # noqa: PLC0415  (as above)

    settings = Run.open(output).settings
    for name, value in typed.items():
        if (begun := getattr(settings, name)) != value:
            raise ValueError(f"{output} was begun with {name} = {begun}, and goes on so: got {value}")


def _report(output: Path, console: Console, samples: int, device: str | None, data: Path | None) -> None:
    from tailsum.apps.vae.session import evaluate_run  # noqa: PLC0415  (as above)

    evaluate_run(output, console, samples, device=device, data=data)
    _explore(output, console, device, data)


def _explore(run: Path, console: Console, device: str | None, data: Path | None) -> None:
    from tailsum.apps.vae.session import explore_run  # noqa: PLC0415  (as above)

    page = explore_run(run, console, device, data)
    _show(console, f"What the model has learned, on one page: {page.resolve()}")


@app.command()
def evaluate(
    run: RunFolder,
    samples: Annotated[int, typer.Option(min=1, help="Of the states, for each sentence.")] = 100,
    sentences: Annotated[int | None, typer.Option(min=1, help="Of each part, at most. Default: all.")] = None,
    baselines: Annotated[bool, typer.Option(help="Train and score other language models too.")] = True,
    data: Text = None,
    device: Device = None,
) -> None:
    """The likelihood of a run's dev and test sentences, by importance sampling, beside that of other language models.

    Also the parts of its lower bound, and how many states are in use. Writes `evaluation.json` into the run's folder.
    """
    _need_vae()
    from tailsum.apps.vae.session import evaluate_run  # noqa: PLC0415  (torch is slow to load: not for --help)

    console = Console()
    with _told(console):
        evaluate_run(run, console, samples, sentences, baselines, device, data)


@app.command()
def explore(run: RunFolder, data: Text = None, device: Device = None) -> None:
    """One page about what a run has learned: its states, their words and contexts, transitions, sentences of its own."""
    _need_vae()
    console = Console()
    with _told(console):
        _explore(run, console, device, data)


def main() -> None:
    """Run the command line; Ctrl-C ends it without a traceback."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
