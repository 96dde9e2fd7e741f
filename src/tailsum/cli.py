"""The command line: `tailsum demo`, `bench`, `reproduce`, `train`, `evaluate` and `explore`."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from importlib.metadata import version
from importlib.util import find_spec
from inspect import Parameter, Signature, signature
from pathlib import Path
from shlex import quote
from types import FrameType
from typing import Annotated, Any, Literal


def _stop_at_once(number: int, _: FrameType | None) -> None:
    """For the time of imports and preparations, when there is nothing to save, and an exception may be caught anywhere."""
    os.write(sys.stdout.fileno(), b"Stopped.\n")
    os._exit(128 + number)


if __name__ == "__main__" or Path(sys.argv[0]).stem == "tailsum":  # the imports below take a while
    for _number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(_number, _stop_at_once)

try:
    import typer
    from rich.console import Console
except ImportError:  # pragma: no cover
    sys.exit("The command line needs two more packages: pip install 'tailsum[cli,plot]'")

from tailsum.apps.vae.settings import OWN_ENCODERS, Settings  # noqa: E402  (behind what signals do meanwhile)

PACKAGES = {"plot": ("matplotlib",), "report": ("jinja2", "pandas"), "vae": ("safetensors",)}  # by extra

Table = Literal["table2", "table3", "table4", "hard", "theory", "all"]
WITHOUT_EFFECT = {**dict.fromkeys(("table2", "table3", "table4"), ("data",)), "theory": ("data", "states", "repeats")}
Repeats = Annotated[int, typer.Option(min=2, help="How often each random estimator runs.")]
Seed = Annotated[int, typer.Option(help="The seed of everything random.")]
RunFolder = Annotated[Path, typer.Argument(help="The folder that `tailsum train --output` made.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1. Default: a GPU if there is one.")]
Text = Annotated[Path | None, typer.Option(exists=True, help="Where the text is now, if it has moved since training.")]

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="markdown")


def _need(*extras: str) -> None:
    """Say at the start of a long run, not at its end, which packages it lacks."""
    if missing := [name for extra in extras for name in PACKAGES[extra] if find_spec(name) is None]:
        sys.exit(
            f"This needs more packages ({', '.join(missing)}): pip install 'tailsum[{','.join(('cli', *extras))}]'"
        )


@contextmanager
def _told(lower: str = "") -> Iterator[Console]:
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
        _show(console, "Stopped.")
        raise typer.Exit(130) from None
    else:
        return
    console.print(f"Error: {said}", style="red", soft_wrap=True, markup=False)
    raise typer.Exit(1)


def _show(console: Console, text: str) -> None:
    """A line with a path in it, as it is."""
    console.print(text, soft_wrap=True, markup=False, highlight=False)


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
    repeats: Repeats = 12,
    seed: Seed = 0,
    output: Annotated[Path, typer.Option(file_okay=False, help="The folder for the picture.")] = Path("tailsum-demo"),
) -> None:
    """Compare estimators on two large chains: exact, TopK, the paper's, and tailsum's at 1% and 10% of the states.

    Prints a table of errors, times and memory, and writes a picture of the error distributions. Takes about a minute.
    """
    _need("plot")
    from tailsum.apps.demo import demo_picture, demo_table, run_demo

    console = Console()
    rows = run_demo(states, length, seed, repeats, console)
    console.print(demo_table(rows, states, length))
    picture = output / "errors.png"
    demo_picture(rows, picture)
    _show(console, f"Picture of the error distributions: {picture.resolve()}")


@app.command()
def bench(
    context: typer.Context,
    output: Annotated[Path, typer.Option(file_okay=False, help="The folder for the results.")] = Path("tailsum-bench"),
    quick: Annotated[bool, typer.Option("--quick", help="Fewer and smaller sizes.")] = False,
    device: Device = None,
    only: Annotated[str, typer.Option(help="What to measure, with commas between.")] = "N,T,B,K,peers",
    seconds: Annotated[
        float | None, typer.Option(min=1.0, help="How long it may take, about. Default: 600; quick: 90.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again what was measured before.")] = False,
    page: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="Only write the page of this folder's results.")
    ] = None,
) -> None:
    """Measure this machine: exact beside sketch over N, T, B and K, and beside other libraries.

    Every time stands behind a check of the result. What would take too long is predicted from smaller sizes, and
    skipped. Writes `results.csv`, `machine.json`, and one page, `index.html`, with plots, ratios of time and memory,
    crossing points and a table "when to use what".

    What is measured is kept: run the same command again, with more `--seconds` if you like, to go on. The page needs
    pandas, jinja2 and matplotlib; where these are missing, `--page FOLDER` writes it later, and elsewhere.
    """
    with _told("--only some, or --quick") as console:
        if page is not None:
            others = ("output", "quick", "device", "only", "seconds", "fresh")
            _check_effect(context, dict.fromkeys(others, "--page"))
            _need("plot", "report")
        else:
            from tailsum.apps.bench import run
            from tailsum.apps.bench.machine import device_from
            from tailsum.apps.bench.plan import groups_from, plan_of

            place = device_from(device)
            time = seconds or (90.0 if quick else 600.0)
            settings = run.Settings(output, place, plan_of(place.type, quick=quick), groups_from(only), time, fresh)
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                run.bench(settings, console)
            except KeyboardInterrupt:
                _show(console, f"Stopped. Finished cells are kept in {output}: the same command goes on from there.")
                raise typer.Exit(130) from None
            _show(console, f"The results: {(output / 'results.csv').resolve()}")
            if missing := [name for extra in ("plot", "report") for name in PACKAGES[extra] if find_spec(name) is None]:
                _show(
                    console,
                    f"The page needs more packages ({', '.join(missing)}). Elsewhere: tailsum bench --page FOLDER",
                )
                return
        from tailsum.apps.bench.report import write_page

        _show(console, f"The results on one page: {write_page(page or output).resolve()}")


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
    context: typer.Context,
    table: Annotated[
        Table, typer.Argument(metavar="TABLE", help="What to run: table2, table3, table4, hard, theory or all.")
    ],
    states: Annotated[str, typer.Option(help="How many states the models have.")] = "2000,10000",
    repeats: Repeats = 100,
    seed: Seed = 0,
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
    _need("plot", "report")
    from tailsum.apps.paper import reproduce as paper

    settings = paper.Settings(table, _numbers(states), repeats, seed, output, data)
    with _told() as console:
        _check_effect(context, dict.fromkeys(WITHOUT_EFFECT.get(table, ()), f"reproduce {table}"))
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            page = paper.reproduce(settings, console)
        except KeyboardInterrupt:
            _show(console, f"Stopped. Finished cells are kept in {output}: the same command goes on from there.")
            raise typer.Exit(130) from None
        _show(console, f"The results on one page: {page.resolve()}")


def _with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command, beside its own options, one for each setting of training, as `Settings` declares them."""
    own = [parameter for parameter in signature(command).parameters.values() if parameter.kind != Parameter.VAR_KEYWORD]
    kind, defaults = Parameter.POSITIONAL_OR_KEYWORD, {field.name: field.default for field in fields(Settings)}
    options = [Parameter(name, kind, default=defaults[name], annotation=x) for name, x in Settings.options().items()]
    setattr(command, "__signature__", Signature([*own, *options]))  # noqa: B010  (a function has no such attribute yet)
    return command


@app.command()
@_with_settings
def train(
    context: typer.Context,
    data: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            help="MSCOCO captions (a JSON file or a folder of them) or a text file, a sentence a line. Default: Python's own documentation.",
        ),
    ] = None,
    output: Annotated[Path, typer.Option(file_okay=False, help="The folder for the run.")] = Path("tailsum-run"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the output folder.")] = False,
    report: Annotated[bool, typer.Option(help="Evaluate and explore the model at the end.")] = True,
    samples: Annotated[int, typer.Option(min=1, help="Of the states, for each sentence, in the evaluation.")] = 20,
    device: Device = None,
    **chosen: Any,
) -> None:
    """Train a structured VAE on sentences: latent states by a CRF, words and states by an LSTM.

    With no arguments it reads Python's own documentation, and takes some minutes. At the end it shows the likelihood
    beside that of other language models, and writes a page about what the states have come to mean.

    Stopped by Ctrl-C, or killed? `--resume` goes on to the same result. On several GPUs or machines: `torchrun
    --nproc-per-node 2 -m tailsum.cli train --shards 2`.
    """
    _need("plot", "report", "vae")
    from tailsum.apps.vae import session

    with _told("lower --batch, --states, --kept or --longest, or raise --shards") as console:
        if chosen["encoder"] not in OWN_ENCODERS and (folder := Path(chosen["encoder"]).expanduser()).is_dir():
            chosen["encoder"] = str(folder.resolve())
        if resume:
            _check_same(output, context, chosen)
        settings = None if resume else Settings(data=None if data is None else str(data.resolve()), **chosen)
        _check_effect(context, {} if settings is None else settings.without_effect())
        _check_effect(context, {} if report else {"samples": "--no-report"})
        if not session.train_run(output, settings, console, device, data):
            _show(console, f"Stopped and saved. To go on: tailsum train --output {quote(str(output))} --resume")
            raise typer.Exit(130)
        if report and os.environ.get("RANK", "0") == "0":
            session.evaluate_run(output, console, samples, device=device, data=data)
            session.explore_run(output, console, device, data)


def _typed(context: typer.Context, name: str) -> bool:
    return getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"


def _check_effect(context: typer.Context, without: dict[str, str]) -> None:
    """Nothing that is typed is ignored: `without` has the names of options without effect, and why they have none."""
    for name, why in without.items():
        if _typed(context, name):
            option = f"--{'no-' if context.params[name] is False else ''}{name.replace('_', '-')}"
            raise ValueError(f"{option} has no effect with {why}: leave one of them out")


def _check_same(output: Path, context: typer.Context, chosen: dict[str, Any]) -> None:
    """A run goes on as it was begun: what is typed beside --resume, be it a default, must be what it has."""
    from tailsum.apps.vae.run import Run

    settings = Run.open(output).settings
    for name, value in chosen.items():
        if _typed(context, name) and (begun := getattr(settings, name)) != value:
            raise ValueError(f"{output} was begun with {name} = {begun}, and goes on so: got {value}")


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
    _need("plot", "report", "vae")
    from tailsum.apps.vae.session import evaluate_run

    with _told("lower --samples") as console:
        evaluate_run(run, console, samples, sentences, baselines, device, data)


@app.command()
def explore(run: RunFolder, data: Text = None, device: Device = None) -> None:
    """One page about what a run has learned: its states, their words and contexts, transitions, sentences of its own."""
    _need("plot", "report", "vae")
    from tailsum.apps.vae.session import explore_run

    with _told() as console:
        explore_run(run, console, device, data)


def main() -> None:
    """Run the command line; Ctrl-C ends it without a traceback."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
