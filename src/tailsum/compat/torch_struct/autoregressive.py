"""Autoregressive models: sequences of N classes, where a network scores each class given those before it.

No dynamic program exists for them, so a beam search looks for the best. Beams and samples are `[K, B, ..]`; the network
sees them as one batch `[K B, ..]`.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Int
from torch import Tensor
from torch.distributions.distribution import Distribution

from tailsum.numerics.check import at_least, check_sample_shape
from tailsum.numerics.noise import gumbel

State = tuple[Tensor, ...]


class AutoregressiveModel(torch.nn.Module):
    """The interface of a network: logits `[batch, N, C]` of the class after each of `inputs [batch, N]`, and the next state."""

    def forward(self, inputs: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Logits of the next classes, and the state after them, a tuple of tensors `[batch, ..]`."""
        raise NotImplementedError("write the forward of your own network")


class Autoregressive(Distribution):
    """A distribution over sequences of `n_length` classes out of `n_classes`, by a network with a state.

    `initial_state` is a tuple of tensors `[B, ..]`, and `start_class` the class before the first. Without `normalize`,
    logits are used as log-probabilities as they are.
    `end_class` has no effect, as in torch-struct.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        initial_state: State,
        n_classes: int,
        n_length: int,
        normalize: bool = True,
        start_class: int = 0,
        end_class: int | None = None,
    ) -> None:
        at_least(1, n_classes=n_classes, n_length=n_length)
        if not 0 <= start_class < n_classes:
            raise ValueError(f"start_class must lie between 0 and {n_classes - 1}: got {start_class}")
        self.model, self.init, self.normalize = model, initial_state, normalize
        self.n_classes, self.n_length, self.start_class, self.end_class = n_classes, n_length, start_class, end_class
        self.device = initial_state[0].device
        super().__init__(initial_state[0].shape[:1], torch.Size((n_length, n_classes)), validate_args=False)

    @property
    def arg_constraints(self) -> dict[str, Any]:
        """None: arguments are checked by the constructor."""
        return {}

    def log_prob(self, value: Tensor, sparse: bool = False) -> Float[Tensor, "*sample batch"]:
        """Log-probability of one-hot events `[*sample, B, N, C]`, or of their classes `[*sample, B, N]` if `sparse`."""
        classes = (value if sparse else value.argmax(-1)).long()
        *samples, batch, length = classes.shape
        count = math.prod(samples)
        flat = F.pad(classes.reshape(count * batch, length), (1, 0), value=self.start_class)
        logits, _ = self.model(flat, self._start(count)[0])
        self._check(logits, (count * batch, length + 1, self.n_classes))
        return self._scored(logits)[:, :-1].gather(-1, flat[:, 1:, None]).sum((-2, -1)).reshape(*samples, batch)

    def greedy_max(self) -> tuple[Tensor, Tensor, Tensor]:
        """The best class at each step after those before: events `[B, N, C]`, their scores `[B]`, and all logits."""
        paths, scores, logits = self._beam_search(1)
        return paths[0], scores[0], logits

    def greedy_tempmax(self, alpha: float) -> tuple[Tensor, Tensor, Tensor]:
        """Like `greedy_max`, but the network sees `softmax(alpha * logits)` instead of the best class: differentiable.

        Its inputs are `[B, 1]` at the first step, and then `[B, 1, C]` (Goyal et al. 2017).
        """
        state, tokens = self._start(1)
        steps = list[Tensor]()
        for _ in range(self.n_length):
            logits, state = self._step(tokens, state, 1)
            steps.append(self._scored(logits)[0])
            tokens = (alpha * steps[-1]).softmax(-1)[:, None]
        logits = torch.stack(steps, 1)
        classes = logits.argmax(-1)
        scores = logits.gather(-1, classes[..., None]).sum((-2, -1))
        return F.one_hot(classes, self.n_classes).to(logits.dtype), scores, logits

    def beam_topk(self, K: int) -> Float[Tensor, "K batch N C"]:
        """The best K events of a beam search with K beams; zeros where there are fewer."""
        at_least(1, K=K)
        return self._beam_search(K)[0]

    def _beam_max(self, K: int) -> Float[Tensor, "K batch"]:
        return self._beam_search(K)[1]

    def sample_without_replacement(self, sample_shape: Sequence[int] = ()) -> Float[Tensor, "K batch N C"]:
        """K different events `[K, B, N, C]`, as if drawn one after the other without replacement (Kool et al. 2019)."""
        check_sample_shape(sample_shape)
        if len(sample_shape) != 1:
            raise ValueError(f"sample_shape must be (K,): got {tuple(sample_shape)}")
        at_least(1, K=sample_shape[0])
        return self._beam_search(sample_shape[0], perturbed=True)[0]

    @torch.no_grad()
    def sample(self, sample_shape: Sequence[int] = ()) -> Int[Tensor, "*sample batch N C"]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Samples `[*sample_shape, B, N, C]`."""
        check_sample_shape(sample_shape)
        count, drawn = math.prod(sample_shape), list[Tensor]()
        state, tokens = self._start(count)
        for _ in range(self.n_length):
            logits, state = self._step(tokens, state, count)
            drawn.append(gumbel(logits, None).argmax(-1))
            tokens = drawn[-1].reshape(-1, 1)
        classes = torch.stack(drawn, -1).reshape(*sample_shape, *self.batch_shape, self.n_length)
        return F.one_hot(classes, self.n_classes)

    # Calls of the network, with K sequences for each element of the batch.

    def _start(self, count: int) -> tuple[State, Int[Tensor, "all 1"]]:
        state = tuple(x.expand(count, *x.shape).flatten(0, 1) for x in self.init)
        return state, torch.full((count * self.batch_shape[0], 1), self.start_class, device=self.device)

    def _step(self, tokens: Tensor, state: State, count: int) -> tuple[Float[Tensor, "K batch C"], State]:
        logits, state = self.model(tokens, state)
        rows = count * self.batch_shape[0]
        self._check(logits, (rows, 1, self.n_classes))
        for x in state:
            if len(x) != rows:
                raise ValueError(f"the model must return a state of tensors [{rows}, ..]: got {list(x.shape)}")
        return logits.reshape(count, -1, self.n_classes), state

    @staticmethod
    def _check(logits: Tensor, shape: tuple[int, ...]) -> None:
        if logits.shape != shape:
            raise ValueError(f"the model must return logits {list(shape)}: got {list(logits.shape)}")

    def _scored(self, logits: Tensor) -> Tensor:
        return logits.log_softmax(-1) if self.normalize else logits

    def _beam_search(self, k: int, perturbed: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Events `[k, B, N, C]` and their scores, best first, and the logits along the best; `perturbed` adds noise to ranks."""
        (batch,) = self.batch_shape
        row = torch.arange(batch, device=self.device)
        state, tokens = self._start(k)
        paths = torch.zeros(k, batch, 0, dtype=torch.long, device=self.device)
        total, rank, steps = torch.zeros(()), torch.zeros(()), list[Tensor]()
        for t in range(self.n_length):
            logits, state = self._step(tokens, state, k)
            if t == 0:  # only one beam has begun
                alive = torch.arange(k, device=self.device)[:, None].expand(k, batch) == 0
                total = torch.where(alive, 0.0, -math.inf).to(logits.dtype)
                rank = total
            step = logits.log_softmax(-1) if perturbed else self._scored(logits)
            steps.append(step[0])
            extended = total[..., None] + step
            ranked = given_highest(gumbel(extended.detach(), None), rank) if perturbed else extended
            chosen = ranked.movedim(0, 1).flatten(1).topk(k)
            rank, parent, token = chosen.values.T, chosen.indices.T // self.n_classes, chosen.indices.T % self.n_classes
            total = extended[parent, row, token]
            paths = torch.cat((paths[parent, row], token[..., None]), -1)
            state = tuple(x.unflatten(0, (k, batch))[parent, row].flatten(0, 1) for x in state)
            tokens = token.reshape(-1, 1)
        events = F.one_hot(paths, self.n_classes).to(total.dtype)
        return events * (total > -math.inf)[..., None, None], total, torch.stack(steps, 1)


def given_highest(noisy: Float[Tensor, "*batch C"], highest: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch C"]:
    """Perturbed log-probabilities, conditioned on their maximum being `highest`; minus infinity where `highest` is."""
    gap = noisy - noisy.amax(-1, keepdim=True)
    below = highest[..., None] - noisy + torch.log1p(-gap.exp())  # minus infinity at the highest
    moved = highest[..., None] - below.clamp(min=0.0) - torch.log1p(torch.exp(-below.abs()))
    impossible = (noisy == -math.inf) | (highest == -math.inf)[..., None]
    return moved.masked_fill(impossible, -math.inf)
