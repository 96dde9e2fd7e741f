"""Cells of gradients from samples: relaxed (reparameterized) ones against score functions, on the loss of a structured VAE.

The paper trains its VAE with relaxed Gumbel samples, whose gradients are biased. It says neither by how much, nor how they
compare with the unbiased alternative, REINFORCE. Measured is the gradient of the negative bound (its Eq. 1), a mean over
sentences, in the parameters of the posterior. The entropy is a sum and not sampled: all ways have it alike.
"""

import functools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from tailsum.nn import Estimator, StructuredVAE, as_sample
from tailsum_studies.paper.bias import GROUPS, Spread, relative_bias
from tailsum_studies.paper.cells import Cell, Step, seeded
from tailsum_studies.paper.rows import GradientError
from tailsum_studies.paper.tables import text_name
from tailsum_studies.text import sentences
from tailsum_studies.vae.data import Batch, Corpus, batch_of, evenly
from tailsum_studies.vae.processes import Processes
from tailsum_studies.vae.run import Run, digest
from tailsum_studies.vae.settings import Settings
from tailsum_studies.vae.train import Trainer, Watcher, train

SENTENCES, SAMPLES, KEPT = 16, 4, 10
TRUTH = 64  # times as many samples for the true gradient
TEMPERATURES = (0.2, 0.5, 1.0, 2.0)

Baseline = Literal["no baseline", "running mean", "leave one out"]


class Plan(NamedTuple):
    """What is measured: the text, the folder for the trained model, its settings, and how often gradients are taken."""

    data: Path | None
    folder: Path
    settings: Settings
    replicates: int

    @property
    def name(self) -> str:
        """What to call the model."""
        return f"VAE of {text_name(self.data)}"


@dataclass(frozen=True)
class Way:
    """How the gradient is estimated: relaxed at a temperature, or, without one, by score functions."""

    method: str
    label: str
    sums: Estimator
    temperature: float | None = None
    hard: bool = False
    baseline: Baseline = "leave one out"


def relaxed(data: Path | None, folder: Path, replicates: int, seed: int) -> Iterator[Cell[GradientError]]:
    """Every way to estimate the gradient, on a model that is trained when first needed, and kept in `folder`."""
    plan = Plan(data, folder, settings(seed), max(GROUPS, replicates // GROUPS * GROUPS))
    yield from (_cell(plan, way) for way in ways(plan.settings.states))


def settings(seed: int) -> Settings:
    """A VAE that trains in seconds, on short sentences."""
    return Settings(
        states=50,
        size=48,
        state_size=16,
        hidden=64,
        words=1000,
        longest=12,
        estimator="full",
        steps=600,
        batch=32,
        check_every=300,
        check_sentences=100,
        seed=seed,
    )


def ways(states: int) -> Iterator[Way]:
    """On exact chains, then on sketches by the paper's method and by ours."""
    exact = Estimator("full", states)
    baselines: tuple[Baseline, ...] = ("no baseline", "running mean", "leave one out")
    for baseline in baselines:
        yield Way(f"score function, {baseline}", "exact", exact, baseline=baseline)
    for temperature in TEMPERATURES:
        yield Way(f"relaxed, {temperature:g}", "exact", exact, temperature)
        yield Way(f"straight-through, {temperature:g}", "exact", exact, temperature, hard=True)
    yield Way("straight-through, 1, prior summed", "exact", Estimator("tailsum", states), 1.0, hard=True)
    kept = min(KEPT, states)
    sketches = {"paper's sketch": Estimator("rdp", kept), "our sketch": Estimator("tailsum", kept, kept, neighbours=0)}
    for label, sums in sketches.items():
        yield Way("score function, leave one out", label, sums)
        yield Way("relaxed, 1", label, sums, 1.0)
        yield Way("straight-through, 1", label, sums, 1.0, hard=True)


@functools.lru_cache(maxsize=1)
def prepared(plan: Plan) -> tuple[StructuredVAE, Batch]:
    """The trained model, and the test sentences that gradients are taken on."""
    corpus = Corpus.of(sentences(plan.data), plan.settings.words, longest=plan.settings.longest)
    folder = plan.folder / f"{plan.name}-s{plan.settings.seed}".replace(" ", "_").replace("'", "")
    run = Run(folder, plan.settings, corpus.vocabulary, digest(corpus))
    trainer = Trainer(run, corpus, torch.device("cpu"), Processes())
    train(trainer, Watcher())
    return trainer.model.eval(), batch_of(evenly(corpus.test, SENTENCES))


# Estimates.


class Sampler:
    """The gradients of one way, one after another: `loss` is what to differentiate."""

    def __init__(self, model: StructuredVAE, batch: Batch, way: Way, samples: int = SAMPLES) -> None:
        self.model, self.batch, self.way, self.samples = model, batch, way, samples
        self.running, self.seen = 0.0, 0  # the mean reward of a word, over all earlier replicates

    def loss(self) -> Tensor:
        """Its gradient estimates that of the negative bound."""
        way, samples = self.way, self.samples
        copies = (
            1 if way.sums.method == "full" and way.temperature is None else samples
        )  # each sample has its own sketch
        words, lengths = self.batch.words.repeat(copies, 1), self.batch.lengths.repeat(copies)
        if way.temperature is not None:
            return -self.model.elbo(words, lengths, way.sums, way.temperature, way.hard).total.mean()
        small = way.sums.sketch(self.model.posterior(words, lengths))
        states = small.sample((samples // copies,))
        with torch.no_grad():
            joint = self.model.decoder(words, lengths, as_sample(states, small.dtype))
            reward = joint.total.reshape(samples, -1)
        log_q = (small.score(states) - small.log_partition()).reshape(samples, -1)
        return -((reward - self._baseline(reward)) * log_q).mean() - way.sums.entropy(small).mean()

    def _baseline(self, reward: Tensor) -> Tensor | float:
        """What is subtracted from the reward `[samples, B]` of a sample: nothing that depends on the sample itself."""
        match self.way.baseline:
            case "no baseline":
                return 0.0
            case "leave one out":
                return (reward.sum(0) - reward) / (len(reward) - 1)
            case "running mean":
                before = self.running
                self.running += ((reward / self.batch.lengths).mean().item() - before) / (self.seen + 1)
                self.seen += 1
                return before * self.batch.lengths if self.seen > 1 else 0.0

    def gradient(self) -> dict[str, Tensor]:
        """In each part of the posterior, flat, and in "all" of it."""
        inference = self.model.inference
        parts = {"encoder": [*self.model.encoder.parameters()], "read": [*inference.read.parameters()]}
        parts["states"] = [inference.states]
        found = iter(torch.autograd.grad(self.loss(), [x for part in parts.values() for x in part]))
        flat = {name: torch.cat([next(found).flatten() for _ in part]) for name, part in parts.items()}
        return {**flat, "all": torch.cat(list(flat.values()))}


@functools.lru_cache(maxsize=1)
def true_gradient(plan: Plan) -> dict[str, Spread]:
    """By many samples of the unbiased score function."""
    best = Way("truth", "exact", Estimator("full", plan.settings.states))
    sampler = Sampler(*prepared(plan), best, TRUTH * SAMPLES)
    return spread(sampler, plan.replicates, seeded(plan.settings.seed, "truth").initial_seed())[0]


def spread(sampler: Sampler, replicates: int, seed: int, step: Step = lambda: None) -> tuple[dict[str, Spread], float]:
    """The gradients of so many replicates, part by part, and the seconds that one takes."""
    found = dict[str, Spread]()
    with torch.random.fork_rng([]):
        torch.default_generator.manual_seed(seed)
        sampler.loss()  # so that no running mean starts from nothing
        start = time.perf_counter()
        for replicate in range(replicates):
            for name, gradient in sampler.gradient().items():
                found.setdefault(name, Spread(gradient)).add(replicate, gradient)
            step()
    return found, (time.perf_counter() - start) / replicates


def _cell(plan: Plan, way: Way) -> Cell[GradientError]:
    states, seed = plan.settings.states, plan.settings.seed
    text = f"relaxed-{plan.name}-n{states}-{way.method}-{way.label}-r{plan.replicates}-s{seed}".lower()
    name = "".join(c if c.isalnum() or c in "-." else "_" for c in text)

    def run(step: Step) -> list[GradientError]:
        truth, sampler = true_gradient(plan), Sampler(*prepared(plan), way)
        found, seconds = spread(sampler, plan.replicates, seeded(seed, name).initial_seed(), step)
        kept = min(way.sums.kept, states)
        who = (plan.name, states, way.method, way.label, kept)
        return [
            GradientError(*who, part, plan.replicates, SAMPLES, *relative_bias(found[part], truth[part]), seconds)
            for part in found
        ]

    return Cell(name, GradientError, plan.replicates, run)
