"""Cells of Table 5 and Figure 2: a model trained by one way to sum over the states, and what is measured of it.

Training goes on from its own checkpoint if it was interrupted. A run that both have in common is trained once.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from tailsum import PeakMemory
from tailsum.nn import StructuredVAE
from tailsum_studies.paper.cells import Cell, Step
from tailsum_studies.paper.rows import Row, StateUse, Trained
from tailsum_studies.paper.tables import text_name
from tailsum_studies.paper.vae.design import Plan, Way
from tailsum_studies.vae.data import Corpus, evenly
from tailsum_studies.vae.evaluate import likelihood, sums_for
from tailsum_studies.vae.explore import gather
from tailsum_studies.vae.occurrences import Occurrences
from tailsum_studies.vae.processes import Processes, device_of
from tailsum_studies.vae.run import Run, read_corpus
from tailsum_studies.vae.settings import Settings
from tailsum_studies.vae.train import Trainer, Watcher, train

TIMED = 4  # steps, after the last one of training


@dataclass(frozen=True)
class Training:
    """One run: a way to sum over so many states, a seed, and the folder that holds the runs."""

    plan: Plan
    way: Way
    states: int
    seed: int
    runs: Path
    device: str | None = None

    @property
    def name(self) -> str:
        """The name of its folder, which tells it from all others."""
        settings, plan = self.settings, self.plan
        kept = (
            "all" if settings.kept is None else f"K{settings.kept}" + (f"+{settings.drawn}" if settings.drawn else "")
        )
        kept += f"-p{settings.probes}" if settings.probes > 1 else ""
        parts = (plan.scale, text_name(None if plan.data is None else Path(plan.data)), Path(plan.encoder).name)
        text = "-".join((*parts, f"N{self.states}", settings.estimator, kept, f"d{settings.dropout}", f"s{self.seed}"))
        return "".join(c if c.isalnum() or c in "-.+" else "_" for c in text)

    @property
    def settings(self) -> Settings:
        """Those of the run."""
        return self.plan.settings(self.way, self.states, self.seed)

    def train(self, corpus: Corpus, step: Step) -> Trainer:
        """Train to the end, from where the run was interrupted, if it was; `step` is called for every step of training."""
        settings, folder = self.settings, self.runs / self.name
        begun = (folder / "settings.json").exists()
        run = Run.open(folder) if begun else Run.new(folder, settings, corpus).write()
        if replace(run.settings, data=settings.data) != settings:
            raise ValueError(f"{folder} was begun with other settings, by another version: choose another --output")
        trainer = Trainer(run, corpus, device_of(self.device), Processes())

        def started(done: int) -> None:
            for _ in range(done):
                step()

        train(trainer, Watcher(stepped=lambda _: step(), started=started))
        return trainer


def cell_of(table: str, training: Training) -> Cell[Any]:
    """The cell of a run, in Table 5 or in Figure 2."""
    return _cell(table, training, Trained, _trained) if table == "table5" else _cell(table, training, StateUse, _use)


def _cell(
    table: str, training: Training, kind: type[Row], measure: Callable[[Training, Trainer, Corpus], list[Row]]
) -> Cell[Row]:
    def run(step: Step) -> list[Row]:
        settings = training.settings
        corpus = _corpus(settings.data, settings.words, settings.longest)
        return measure(training, training.train(corpus, step), corpus)

    return Cell(f"{table}-{training.name}", kind, training.settings.steps, run)


@lru_cache(maxsize=1)
def _corpus(data: str | None, words: int, longest: int) -> Corpus:
    """The text that all runs share."""
    return read_corpus(Settings(data=data, words=words, longest=longest))


def _trained(training: Training, trainer: Trainer, corpus: Corpus) -> list[Trained]:
    """Its row of Table 5, by the weights that did best on the dev part."""
    plan, settings = training.plan, training.settings
    seconds, peak = _cost(trainer)
    model = trainer.run.model(trainer.device)
    sums = sums_for(model, settings.sums())
    parts = (corpus.dev, corpus.test)
    dev, test = (likelihood(model, evenly(part, plan.size.sentences), sums, plan.size.samples) for part in parts)
    found = _occurrences(plan, model, corpus, settings)
    return [
        Trained(
            scale=plan.scale,
            encoder=Path(plan.encoder).name,
            states=training.states,
            row=training.way.name,
            estimator=settings.estimator,
            kept=settings.sums().kept,
            drawn=settings.drawn or 0,
            dropout=settings.dropout,
            steps=settings.steps,
            batch=settings.batch,
            seed=training.seed,
            dev=dev.nll.per_sentence,
            test=test.nll.per_sentence,
            sampling_error=test.sampling_error,
            kl=-(test.bound.states + test.bound.entropy).item(),
            told=found.information.net.sum().item(),
            used=int((found.counts > 0).sum()),
            seconds=seconds,
            peak_bytes=peak,
            device=trainer.device.type,
        )
    ]


def _use(training: Training, trainer: Trainer, corpus: Corpus) -> list[StateUse]:
    """How often each state occurs, the most frequent first: the aggregated posterior."""
    model = trainer.run.model(trainer.device)
    counts = _occurrences(training.plan, model, corpus, training.settings).counts.sort(descending=True).values
    shares = (counts.double() / counts.sum()).tolist()
    way = training.way
    return [
        StateUse(training.plan.scale, training.states, way.name, way.top, way.drawn or 0, training.seed, rank, share)
        for rank, share in enumerate(shares, 1)
    ]


def _occurrences(plan: Plan, model: StructuredVAE, corpus: Corpus, settings: Settings) -> Occurrences:
    return gather(model, evenly(corpus.train, plan.size.occurrences), sums_for(model, settings.sums()))


def _cost(trainer: Trainer) -> tuple[float, int]:
    """The mean seconds of some more steps, and the peak memory of one in bytes. Nothing of them is saved.

    All rows of one seed make them on the same sentences. On a CPU the seconds are those of the processor, which other work
    on the machine does not change, and the memory is that of the tensors which a step makes.
    """
    on_gpu = trainer.device.type == "cuda"
    clock = time.perf_counter if on_gpu else time.process_time
    trainer.step()
    _wait(trainer.device)
    start = clock()
    for _ in range(TIMED):
        trainer.step()
    _wait(trainer.device)
    seconds = (clock() - start) / TIMED
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(trainer.device)
        trainer.step()
        return seconds, torch.cuda.max_memory_allocated(trainer.device)
    with PeakMemory() as memory:
        trainer.step()
    return seconds, memory.peak


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
