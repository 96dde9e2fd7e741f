"""`tailsum train`: its own options, and one for each setting of training, as `Settings` declares them."""

import os
from collections.abc import Callable
from copy import copy
from dataclasses import fields
from inspect import Parameter, Signature, signature
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, get_args

import typer
from typer.models import OptionInfo

from tailsum_studies.cli.console import RUN, Device, check_effect, need_vae, reported, typed
from tailsum_studies.progress import say
from tailsum_studies.vae.settings import OWN_ENCODERS, Settings

GROUPS: dict[str, tuple[str, ...]] = {
    "The model": ("states", "encoder", "frozen", "size", "state_size", "hidden", "spread", "certainty"),
    "Sums over the states": ("estimator", "kept", "drawn", "landmarks", "probes"),
    "The text": ("words", "longest"),
    "Training": ("steps", "batch", "shards", "rate", "clip", "seed", "check_every"),
    "The objective": (
        *("kl_weight", "warm_up", "entropy_weight", "hard", "temperature", "final_temperature"),
        *("dropout", "word_dropout", "last_word_dropout"),
    ),
}


def _with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command, beside its own options, one for each setting of training, in groups."""
    own = [parameter for parameter in signature(command).parameters.values() if parameter.kind != Parameter.VAR_KEYWORD]
    hints, defaults = Settings.options(), {field.name: field.default for field in fields(Settings)}
    options = [
        Parameter(
            name, Parameter.POSITIONAL_OR_KEYWORD, default=defaults[name], annotation=_grouped(hints.pop(name), group)
        )
        for group, names in GROUPS.items()
        for name in names
    ]
    assert not hints, f"options without a group: {list(hints)}"
    setattr(command, "__signature__", Signature([*own, *options]))  # noqa: B010  (a function has no such attribute yet)
    return command


def _grouped(hint: Any, group: str) -> Any:
    kind, *notes = get_args(hint)
    (option,) = (copy(note) for note in notes if isinstance(note, OptionInfo))
    option.rich_help_panel = group
    return Annotated[kind, option]


@_with_settings
def train(
    context: typer.Context,
    data: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            help="MSCOCO captions (a JSON file or a folder of them) or a text file, a sentence a line. Default: Python's own documentation.",
            rich_help_panel=RUN,
        ),
    ] = None,
    output: Annotated[Path, typer.Option(file_okay=False, help="The folder for the run.", rich_help_panel=RUN)] = Path(
        "tailsum-run"
    ),
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with the run in the output folder; with more --steps, beyond its end.",
            rich_help_panel=RUN,
        ),
    ] = False,
    report: Annotated[
        bool, typer.Option(help="Evaluate and explore the model at the end.", rich_help_panel=RUN)
    ] = True,
    samples: Annotated[
        int,
        typer.Option(min=1, help="Samples of the states for each sentence, in the evaluation.", rich_help_panel=RUN),
    ] = 20,
    device: Device = None,
    **chosen: Any,
) -> None:
    """Train a structured VAE on sentences: latent states by a CRF, words and states by an LSTM.

    With no arguments it reads Python's own documentation, and takes some minutes. At the end it shows the likelihood
    beside that of other language models, and writes a page about what the states have come to mean.

    Stopped by Ctrl-C, or killed? `--resume` goes on to the same result. Finished? `--resume --steps MORE` trains
    further. On several GPUs or machines: `torchrun --nproc-per-node 2 -m tailsum_studies.cli train --shards 2`.
    """
    need_vae()
    from tailsum_studies.vae import session

    with reported("lower --batch, --states, --kept or --longest, or raise --shards") as console:
        if chosen["encoder"] not in OWN_ENCODERS and (folder := Path(chosen["encoder"]).expanduser()).is_dir():
            chosen["encoder"] = str(folder.resolve())
        if resume:
            _check_same(output, context, chosen)
        settings = None if resume else Settings(data=None if data is None else str(data.resolve()), **chosen)
        _check_effects(context, settings, report)
        steps = chosen["steps"] if resume and typed(context, "steps") else None
        if not session.train_run(output, settings, console, device, data, steps):
            say(console, f"Stopped and saved. To go on: tailsum train --output {quote(str(output))} --resume")
            raise typer.Exit(130)
        if report and os.environ.get("RANK", "0") == "0" and not session.is_reported(output):
            session.evaluate_run(output, console, samples, device=device, data=data)
            session.explore_run(output, console, device, data)


def _check_effects(context: typer.Context, settings: Settings | None, report: bool) -> None:
    check_effect(context, {} if settings is None else settings.without_effect())
    check_effect(context, {} if report else {"samples": "--no-report"})


def _check_same(output: Path, context: typer.Context, chosen: dict[str, Any]) -> None:
    """Refuse settings given with --resume that differ from those of the run; only `steps` may be another."""
    from tailsum_studies.vae.run import Run

    settings = Run.open(output).settings
    for name, value in chosen.items():
        if name != "steps" and typed(context, name) and (begun := getattr(settings, name)) != value:
            raise ValueError(f"{output} was begun with {name} = {begun}, and goes on so: got {value}")
