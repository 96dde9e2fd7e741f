"""What the commands do: train, evaluate and explore a run, with progress on the screen and files in the run's folder."""

import os
import signal
import threading
from _thread import interrupt_main
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from shlex import quote
from types import FrameType
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from tailsum.nn import StructuredVAE
from tailsum_studies.progress import Tasks, say, shown
from tailsum_studies.vae.baselines import bigram, score, sentence_log_probs, train_lstm, unigram
from tailsum_studies.vae.checkpoint import LAST
from tailsum_studies.vae.data import Corpus, evenly
from tailsum_studies.vae.evaluate import Likelihood, likelihood, n_batches, sums_for
from tailsum_studies.vae.explore import explore, gather, n_steps
from tailsum_studies.vae.forecast import LONG, duration, forecast, memory_of, rate_of, what_to_lower
from tailsum_studies.vae.processes import device_of, processes
from tailsum_studies.vae.progress import reported
from tailsum_studies.vae.run import Run, read_corpus, write_json
from tailsum_studies.vae.settings import Settings
from tailsum_studies.vae.train import Step, Trainer, Watcher, train

PARTS = ("dev", "test")
PATIENCE = 10  # seconds that SIGTERM leaves a step to end


def train_run(
    folder: Path,
    settings: Settings | None,
    console: Console,
    device: str | None = None,
    data: Path | None = None,
    steps: int | None = None,
) -> bool:
    """Train a new run, or, without settings, go on with one (whose text may have moved to `data`), to `steps` if given.

    False if interrupted.     Under `torchrun` several processes train together. Ctrl-C and SIGTERM end the training after the step at hand, and
    save it; a second one, or SIGTERM in a long step, ends it at once. Of a new run that ends before its first step nothing is left.
    """
    place, new = device_of(device), settings is not None
    with processes(place) as all_of_us:
        run, corpus = _prepared(folder, settings, data, steps)
        if not all_of_us.first:
            console = Console(quiet=True)
        if new:
            _check_forecast(run, corpus, place, console, new)
        trainer = Trainer(run, corpus, place, all_of_us)
        if new:
            all_of_us.wait()  # none may look for the run's files before all have found that there are none
        with _until_interrupted() as stop:
            if not all_of_us.first:
                return train(trainer, Watcher(report_errors=lambda _: None, stop=stop))
            run.write() if new else run.write_settings()
            try:
                with _watching(run, console, stop) as watcher:
                    if not new:
                        watcher.started = lambda done: _tell_start(run, corpus, place, console, done)
                    return train(trainer, watcher)
            except ValueError:  # another process has the folder, or a loss is not finite and kept there for study
                raise
            except BaseException:
                if new and not trainer.done:
                    run.remove()
                raise


def _prepared(folder: Path, settings: Settings | None, data: Path | None, steps: int | None) -> tuple[Run, Corpus]:
    """A new run, or one that goes on; nothing is written yet."""
    if settings is not None:
        corpus = read_corpus(settings)
        return Run.new(folder, settings, corpus), corpus
    run = Run.open(folder)
    return run.extended(steps or run.settings.steps), run.corpus(data)


def _tell_start(run: Run, corpus: Corpus, device: torch.device, console: Console, done: int) -> None:
    """Where a run goes on from."""
    steps = run.settings.steps
    if done == steps:
        more = f"tailsum train --output {quote(str(run.folder))} --resume --steps MORE"
        say(console, f"{run.folder} is finished already: its {steps} steps are done. To train further: {more}")
        return
    say(console, f"Going on from step {done} of {steps}.")
    _check_forecast(run, corpus, device, console, new=False)


def is_reported(folder: Path) -> bool:
    """Whether what `evaluate_run` and `explore_run` write is there, and newer than the last checkpoint."""
    last, *made = (folder / name for name in (f"checkpoints/{LAST}", "evaluation.json", "index.html"))
    return all(path.exists() and path.stat().st_mtime_ns >= last.stat().st_mtime_ns for path in made)


def _check_forecast(run: Run, corpus: Corpus, device: torch.device, console: Console, new: bool) -> None:
    """Say what a step will take; a ValueError if a new run would take more memory than there is."""
    found, there = forecast(run.settings, corpus), memory_of(device)
    if found.total > there:
        lower = what_to_lower(found, run.settings)
        said = f"a step takes about {found.total / 1e9:.1f} GB of memory, and there are {there / 1e9:.1f} GB: lower {lower}"
        if new:
            raise ValueError(said)
        _warning(console)(said)  # it has been trained so before, and the forecast may be wrong
    seconds = found.seconds(rate_of(device))
    said = f"By forecast, a step takes {found.total / 1e9:.2g} GB of memory and {duration(seconds)}."
    say(console, said)
    if seconds > LONG:
        _warning(console)(
            f"a step takes about {duration(seconds)}. Lower --states, --kept, --batch or --longest for less"
        )


@contextmanager
def _watching(run: Run, console: Console, stop: Callable[[], bool]) -> Iterator[Watcher]:
    """Progress on the screen, and curves for TensorBoard."""
    settings = run.settings
    with reported(console, settings.steps) as teller, _events(run, console) as write:

        def stepped(step: Step) -> None:
            elbo = step.elbo.total.item()
            teller.stepped(step)
            parts = {name: part.item() for name, part in step.elbo._asdict().items()}
            for name, value in {"elbo": elbo, **parts, "nll a word": step.nll, "gradient norm": step.norm}.items():
                write(f"train/{name}", value, step.number)
            for name in ("rate", "weight", "temperature", "word_dropout"):
                write(f"schedule/{name}", getattr(settings, f"{name}_at")(step.number - 1), step.number)

        def checked(number: int, nll: float) -> None:
            teller.checked(nll)
            write("dev/nll a word", nll, number)

        yield Watcher(stepped, checked, _warning(console), stop)


def _warning(console: Console) -> Callable[[str], None]:
    return lambda text: console.print(f"Warning: {text}", style="yellow", soft_wrap=True, markup=False)


@contextmanager
def _events(run: Run, console: Console) -> Iterator[Callable[[str, float, int], None]]:
    """What writes a number where TensorBoard finds it; it forgets what came after the step that the run goes on from."""
    try:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  (an extra)
    except ImportError:
        console.print("No curves for TensorBoard: it is not installed (pip install 'tailsum-studies[vae]').")
        yield lambda _name, _value, _step: None
        return
    writer: SummaryWriter | None = None

    def put(name: str, value: float, step: int) -> None:
        nonlocal writer  # only with the first number is it known where the run goes on from
        writer = writer or SummaryWriter(str(run.folder / "events"), purge_step=step)
        writer.add_scalar(name, value, step)

    try:
        yield put
    finally:
        if writer is not None:
            writer.close()


@contextmanager
def _until_interrupted() -> Iterator[Callable[[], bool]]:
    """Whether someone has asked to stop, by Ctrl-C or SIGTERM. A second request stops at once.

    SIGTERM comes from programs, which do not ask twice: the step at hand has `PATIENCE` to end.
    """
    asked: list[int] = []
    timer = threading.Timer(PATIENCE, interrupt_main)
    timer.daemon = True
    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield lambda: False
        return

    def ask(number: int, _: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        wait = f", in {PATIENCE} seconds at the latest" if number == signal.SIGTERM else ""
        os.write(
            2, f"\nStopping after this step{wait}. A second Ctrl-C or SIGTERM ends it at once, unsaved.\n".encode()
        )
        if number == signal.SIGTERM:
            timer.start()

    def stop() -> bool:
        """Asked after a step, and then there is time to save it."""
        if asked:
            timer.cancel()
        return bool(asked)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        timer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)


# What was trained.


def _opened(
    folder: Path, console: Console, device: str | None, data: Path | None
) -> tuple[Run, Corpus, StructuredVAE, int]:
    """A run, its text, its best model, and the step that the model is of."""
    run = Run.open(folder)
    corpus, best = run.corpus(data), run.best(_warning(console))
    return run, corpus, run.model(device_of(device), best), best.facts["step"]


def evaluate_run(
    folder: Path,
    console: Console,
    samples: int,
    sentences: int | None = None,
    baselines: bool = True,
    device: str | None = None,
    data: Path | None = None,
) -> None:
    """The likelihood of dev and test, beside that of plain language models; also written to the run's folder.

    `sentences`: of each part, so many at most.
    """
    run, corpus, model, step = _opened(folder, console, device, data)
    sums = sums_for(model, run.settings.sums())
    parts = {name: evenly(part, sentences or len(part)) for name, part in (("dev", corpus.dev), ("test", corpus.test))}
    found: dict[str, Any] = {"step": step, "estimator": sums.method, "states": run.settings.states}
    with shown(console, transient=False) as bar:
        for name, part in parts.items():
            task = bar.add_task(f"Likelihood of {name}", total=n_batches(part))
            result = likelihood(model, part, sums, samples, step=lambda task=task: bar.advance(task))
            found[name] = _flat(result)
        task = bar.add_task("States in use", total=n_batches(corpus.train))
        states = gather(model, corpus.train, sums, step=lambda: bar.advance(task))
        found |= {"active": int((states.counts > 0).sum()), "information": states.information.as_json()}
        if baselines:
            found["baselines"] = _baselines(run, corpus, parts, model.inference.states.device, bar)
    write_json(folder / "evaluation.json", found)
    console.print(_table(found))
    shares = found["information"]
    console.print(
        f"{found['active']} of {run.settings.states} states occur in a sample for each training sentence. They tell "
        f"{shares['net']:.2f} of the {shares['of_words']:.2f} nats of their words (without the {shares['by_chance']:.2f} that chance would add).",
        soft_wrap=True,
    )


def _flat(result: Likelihood) -> dict[str, Any]:
    bound = {name: value.item() for name, value in result.bound._asdict().items()}
    counts = {"sentences": result.sentences, "samples": result.samples, "sampling_error": result.sampling_error}
    return {**result.nll._asdict(), **bound, **counts}


def _baselines(
    run: Run, corpus: Corpus, parts: dict[str, list[list[int]]], device: torch.device, bar: Tasks
) -> dict[str, dict[str, dict[str, float]]]:
    """Scores of models that only count, and of an LSTM as large as the decoder's, trained as long on the same text."""
    settings, n_words = run.settings, len(corpus.vocabulary)
    task = bar.add_task("LSTM to compare with", total=settings.steps)
    watched = evenly(corpus.dev, settings.check_sentences)
    lstm, _ = train_lstm(corpus.train, watched, n_words, settings, device=device, step=lambda: bar.advance(task))
    models = {
        "unigram": unigram(corpus.train, n_words).log_prob,
        "bigram": bigram(corpus.train, n_words).log_prob,
        "lstm": lambda sentences: sentence_log_probs(lstm, sentences),
    }
    return {
        name: {at: score(log_prob(part), [len(s) for s in part])._asdict() for at, part in parts.items()}
        for name, log_prob in models.items()
    }


def _table(found: dict[str, Any]) -> Table:
    """Everything beside everything, best last."""
    table = Table(title="Negative log-likelihood, in nats")
    for heading in ("", *(f"{part}, {unit}" for part in PARTS for unit in ("a word", "a sentence"))):
        table.add_column(heading, justify="right" if heading else "left")
    rows = {"structured VAE": found, **found.get("baselines", {})}
    for name, scores in sorted(rows.items(), key=lambda row: -row[1]["test"]["per_word"]):
        cells = [cell for part in PARTS for cell in _cells(scores[part])]
        table.add_row(name, *cells, style="bold" if scores is found else None)
    return table


def _cells(scored: dict[str, float]) -> tuple[str, str]:
    error = f" ± {scored['standard_error']:.2f}" if isfinite(scored["standard_error"]) else ""  # of one sentence: none
    return f"{scored['per_word']:.3f}", f"{scored['per_sentence']:.2f}{error}"


def explore_run(folder: Path, console: Console, device: str | None = None, data: Path | None = None) -> None:
    """The page about a run, and its pictures."""
    run, corpus, model, step = _opened(folder, console, device, data)
    with shown(console, transient=False) as bar:
        task, sums = bar.add_task("Exploring", total=n_steps(corpus)), sums_for(model, run.settings.sums())
        page = explore(run, corpus, model, sums, lambda: bar.advance(task), trained=step)
    said = f"What the model has learned, on one page: {page.resolve()}"
    say(console, said)
