"""Training: what one step does, and a loop that can be stopped at any moment and goes on to the same bits."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from tailsum import Neighbours
from tailsum.nn import Elbo, LSTMEncoder, PretrainedEncoder, TransformerEncoder
from tailsum_studies.vae.build import build, frozen_digest, learned, start_from
from tailsum_studies.vae.checkpoint import Checkpoint, write
from tailsum_studies.vae.classes import word_classes
from tailsum_studies.vae.data import Batch, Corpus, Order, batch_of, evenly
from tailsum_studies.vae.evaluate import likelihood, sums_for
from tailsum_studies.vae.processes import Processes, SumInTurn
from tailsum_studies.vae.run import Run
from tailsum_studies.vae.seeds import mixed, seeded

LISTS_EVERY = 100  # steps from one making of the lists of neighbours to the next
LISTS = ("neighbours.successors", "neighbours.predecessors")  # their names in a checkpoint


@dataclass(frozen=True)
class Step:
    """What one step found: its number, the parts of the bound (means over sentences), and how many words it saw."""

    number: int
    elbo: Elbo
    sentences: int
    words: int
    norm: float

    @property
    def nll(self) -> float:
        """The bound on the negative log-likelihood, in nats per word."""
        return -self.elbo.total.item() * self.sentences / self.words


@dataclass
class Watcher:
    """What is reported of the training as it goes; every function may be replaced."""

    stepped: Callable[[Step], None] = lambda _: None
    checked: Callable[[int, float], None] = lambda _step, _nll: None  # on the dev part, in nats per word
    report_errors: Callable[[str], None] = print
    stop: Callable[[], bool] = lambda: False  # asked after each step
    started: Callable[[int], None] = lambda _: None  # how many steps were done before


class NotFiniteError(ValueError):
    """The loss or its gradient is no longer a number."""


class Trainer:
    """A model in training: its weights, its optimiser, and how many steps were done."""

    def __init__(self, run: Run, corpus: Corpus, device: torch.device, processes: Processes) -> None:
        settings = run.settings
        if (shards := settings.shards) % processes.count:
            raise ValueError(f"shards must be a multiple of {processes.count}, the number of processes: got {shards}")
        self.run, self.corpus, self.device, self.processes = run, corpus, device, processes
        self.settings, self.sums = settings, settings.sums()
        self.model = build(settings, corpus.vocabulary).to(device).train()
        if isinstance(self.model.encoder, PretrainedEncoder):
            self.model.encoder.check_room([*corpus.train, *corpus.dev, *corpus.test])
        self.frozen = frozen_digest(self.model)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        for parameter in self.parameters:  # a process without a sentence to work on has zeros to add
            parameter.grad = torch.zeros_like(parameter)
        self.optimiser = torch.optim.Adam(self.parameters, settings.rate)
        self.order = Order([len(sentence) for sentence in corpus.train], settings.batch, settings.seed)
        self.done = 0
        self.best = math.inf

    def begin(self) -> None:
        """Start from classes of words by their neighbours, a state for each, if the encoder is one of our own."""
        settings, encoder = self.settings, self.model.encoder
        if settings.certainty and isinstance(encoder, LSTMEncoder | TransformerEncoder):
            generator = torch.Generator().manual_seed(mixed(settings.seed))
            classes = word_classes(self.corpus.train, len(self.corpus.vocabulary), settings.states, generator)
            start_from(classes.to(self.device), encoder.words, self.model.inference, settings.certainty)

    def step(self) -> Step:
        """One step on the next batch. The random numbers follow from the seed, the step and the shard."""
        number, settings = self.done, self.settings
        chosen = self.order.at(number)
        if number % LISTS_EVERY == 0:
            self.sums = self.sums.with_neighbours(self.model.inference.transition)
        totals = torch.zeros(settings.shards, 4, dtype=torch.double, device=self.device)
        self.optimiser.zero_grad(set_to_none=False)
        gradient = SumInTurn(self.processes, (p.grad for p in self.parameters if p.grad is not None))
        for shard in self.processes.mine(settings.shards):
            if mine := chosen[shard :: settings.shards]:
                batch = batch_of([self.corpus.train[i] for i in mine]).to(self.device)
                with seeded(mixed(settings.seed, number, shard), self.device):
                    elbo = self._elbo(batch)
                objective = (
                    elbo.words + elbo.states + settings.weight_at(number) * settings.entropy_weight * elbo.entropy
                )
                (-objective.sum() / len(chosen)).backward()
                totals[shard] = torch.stack([*(part.detach().double().sum() for part in elbo), batch.lengths.sum()])
            gradient.add()
        gradient.finish()
        self.processes.add_up([totals])  # each row is of one process, and zero elsewhere
        totals = totals.sum(0)
        norm = nn.utils.clip_grad_norm_(self.parameters, settings.clip)
        if not (totals.isfinite().all() and norm.isfinite()):
            self._give_up("the loss or the gradient", number + 1, chosen)
        for group in self.optimiser.param_groups:
            group["lr"] = settings.rate_at(number)
        self.optimiser.step()
        if not nn.utils.get_total_norm(self.parameters).isfinite():
            self._give_up("the size of all weights", number + 1, chosen)
        self.done += 1
        *parts, words = totals.cpu()
        return Step(self.done, Elbo(*(part / len(chosen) for part in parts)), len(chosen), int(words), norm.item())

    def _elbo(self, batch: Batch) -> Elbo:
        temperature, dropped = self.settings.temperature_at(self.done), self.settings.word_dropout_at(self.done)
        weight = self.settings.weight_at(self.done)
        return self.model.elbo(*batch, self.sums, temperature, self.settings.hard, dropped, weight)

    def _give_up(self, what: str, number: int, chosen: list[int]) -> None:
        """Keep the batch and the weights for study, and stop."""
        batch = batch_of([self.corpus.train[i] for i in chosen])
        path = self.run.folder / "failure.safetensors"
        if self.processes.first:
            tensors = {"words": batch.words, "lengths": batch.lengths, **self._tensors()}
            sentences = [" ".join(self.corpus.sentence(self.corpus.train[i])) for i in chosen]
            write(path, Checkpoint(tensors, {**self._facts(), "step": number, "sentences": sentences}))
        raise NotFiniteError(
            f"{what} at step {number} is not finite any more: its batch and the weights are in {path}. "
            "In a new run, with another --output, a lower rate or a lower clip may help"
        )

    @torch.no_grad()
    def check(self) -> float:
        """The negative log-likelihood of some of the dev part, in nats per word, by a few samples."""
        some, sums = evenly(self.corpus.dev, self.settings.check_sentences), sums_for(self.model, self.sums)
        seed = mixed(self.settings.seed, self.done)
        return likelihood(self.model, some, sums, self.settings.check_samples, seed).nll.per_word

    # Checkpoints.

    def checkpoint(self) -> Checkpoint:
        """Everything that training needs to go on."""
        return Checkpoint(self._tensors(), self._facts())

    def _tensors(self) -> dict[str, Tensor]:
        found = {f"model.{name}": value for name, value in learned(self.model).items()}
        for number, state in self.optimiser.state_dict()["state"].items():
            found |= {f"optimiser.{number}.{name}": value for name, value in state.items()}
        if isinstance(lists := self.sums.neighbours, Neighbours):  # as they were made some steps ago
            found |= dict(zip(LISTS, (lists.successors, lists.predecessors), strict=True))
        return found

    def _facts(self) -> dict[str, Any]:
        settings = self.settings.as_json()
        found = {"step": self.done, "best": self.best, "settings": settings, "digest": self.run.digest}
        return found if self.frozen is None else {**found, "frozen": self.frozen}

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint of this run."""
        self.run.put(checkpoint, self.model)
        states: dict[int, dict[str, Tensor]] = {}
        for name, value in checkpoint.tensors.items():
            if name.startswith("optimiser."):
                _, number, part = name.split(".")
                states.setdefault(int(number), {})[part] = value
        self.optimiser.load_state_dict({**self.optimiser.state_dict(), "state": states})
        if LISTS[0] in checkpoint.tensors:
            lists = Neighbours.of(*(checkpoint.tensors[name].to(self.device) for name in LISTS))
            self.sums = replace(self.sums, neighbours=lists)
        self.done, self.best = int(checkpoint.facts["step"]), float(checkpoint.facts["best"])


def train(trainer: Trainer, watcher: Watcher) -> bool:
    """Train to the end, from where the run's last checkpoint left off; False if `watcher.stop` ended it.

    At each check, and when `watcher.stop` says so, a checkpoint is written. Whatever ends the process in between, the next
    one goes on from the last checkpoint, and comes to the same weights, bit by bit, on the same machine. A ValueError if
    another process is training the same run.
    """
    run, settings, first = trainer.run, trainer.settings, trainer.processes.first
    with run.alone() if first else nullcontext():
        if checkpoint := run.keeper.latest(watcher.report_errors, run.accept):
            trainer.restore(checkpoint)
        else:
            trainer.begin()
        trainer.processes.wait()
        if first:
            run.cut_curve(trainer.done)
            watcher.started(trainer.done)
        stopped = False
        while trainer.done < settings.steps and not stopped:
            step = trainer.step()
            due = trainer.done % settings.check_every == 0 or trainer.done in settings.plan
            if first:
                run.add_to_curve(_row("train", step.number, step.nll, step.elbo))
                watcher.stepped(step)
            if first and due:
                _check(trainer, watcher)
            stopped = trainer.processes.any(watcher.stop(), trainer.device)
            if first and (due or stopped):
                run.keeper.save(trainer.checkpoint())
        return not stopped


def _check(trainer: Trainer, watcher: Watcher) -> None:
    nll = trainer.check()
    trainer.run.add_to_curve(_row("dev", trainer.done, nll))
    watcher.checked(trainer.done, nll)
    if nll < trainer.best:
        trainer.best = nll
        trainer.run.keeper.save_best(trainer.checkpoint())


def _row(part: str, step: int, nll: float, elbo: Elbo | None = None) -> dict[str, object]:
    parts = {} if elbo is None else {name: repr(value.item()) for name, value in elbo._asdict().items()}
    return {"step": step, "part": part, "nll": repr(nll), **parts}
