"""The steps of a fit: of EM, whole or stochastic, and of gradients. Each goes once through the data."""

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from tailsum.hmm.core import MarkovModel
from tailsum.hmm.options import Fit
from tailsum.hmm.sequences import Sequences

if TYPE_CHECKING:
    from tailsum.hmm.counts import Counts


class Expectation:
    """EM: all counts, then new parameters; or, forgetting, new parameters after each batch."""

    def __init__(self, how: Fit, model: MarkovModel) -> None:
        self.how, self.model = how, model
        self.kept: Counts | None = None  # for stochastic EM, a mean over batches
        self.batches = 0

    def __call__(self, given: Sequences) -> float:
        """One step; the log-likelihood before it, with that of the priors."""
        how, total = self.how, self.model.log_prior().item()
        if how.forget < 1.0 and self.kept is not None:
            return total + self._stochastic(given)
        counts: Counts | None = None
        for batch in given.chunks(how.batch_size):
            here = self.model.expected(batch)
            counts = here if counts is None else counts + here
        assert counts is not None
        counts = counts.all_reduce() if how.all_reduce else counts
        self.model.maximise(counts)
        if how.forget < 1.0:  # the first step is of all data, so that nothing in them is impossible afterwards
            self.kept = counts
        return total + counts.log_likelihood.item()

    def _stochastic(self, given: Sequences) -> float:
        total, positions = 0.0, given.lengths.sum().item()
        for batch in given.chunks(self.how.batch_size, self.how.generator or torch.default_generator):
            counts = self.model.expected(batch)
            counts = counts.all_reduce() if self.how.all_reduce else counts
            total += counts.log_likelihood.item()
            counts = counts * (positions / counts.positions.item())  # as if all data were like these
            rate = (self.batches + 2.0) ** -self.how.forget
            assert self.kept is not None
            kept = self.kept = self.kept * (1.0 - rate) + counts * rate
            self.batches += 1
            self.model.maximise(kept)
        return total

    def state(self) -> dict[str, Any]:
        """What a resumed fit needs."""
        return {"batches": self.batches, "kept": None if self.kept is None else self.kept.tensors()}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.batches = state["batches"]
        if state["kept"] is not None:
            tensors = iter(state["kept"])
            with torch.no_grad():
                self.kept = self.model.no_counts().each(lambda _: next(tensors))


class Ascent:
    """Adam on the log-likelihood of a symbol, a batch at a time."""

    def __init__(self, how: Fit, model: MarkovModel) -> None:
        self.how, self.model = how, model
        self.optimizer = torch.optim.Adam(model.parameters(), how.learning_rate)

    @torch.enable_grad()
    def __call__(self, given: Sequences) -> float:
        """One step; the log-likelihood on the way, with that of the priors before it."""
        model, positions, total = self.model, given.lengths.sum().item(), self.model.log_prior().item()
        for batch in given.chunks(self.how.batch_size, self.how.generator or torch.default_generator):
            self.optimizer.zero_grad()
            chain = model.chain(batch)
            chain = chain if self.how.kept is None else chain.sketch(self.how.kept, generator=self.how.generator)
            value = chain.log_partition().sum()
            (-value / batch.lengths.sum() - model.log_prior() / positions).backward()
            if self.how.all_reduce:
                self._average()
            self.optimizer.step()
            total += value.item()
        return total

    def _average(self) -> None:
        for x in self.model.parameters():
            if x.grad is not None:
                dist.all_reduce(x.grad)
                x.grad /= dist.get_world_size()

    def state(self) -> dict[str, Any]:
        """What a resumed fit needs."""
        return self.optimizer.state_dict()

    def load(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.optimizer.load_state_dict(state)
