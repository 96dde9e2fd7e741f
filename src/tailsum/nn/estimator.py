"""Estimators of the sums over states in training."""

from dataclasses import dataclass, replace
from typing import Literal, get_args

from jaxtyping import Float
from torch import Tensor

from tailsum.chains.linear_chain import LinearChain
from tailsum.nn.decoder import Probes
from tailsum.numerics.check import at_least
from tailsum.scores.potential import Potential
from tailsum.sketch.neighbours import Neighbours
from tailsum.sketch.proposal import LocalGlobal, Lookahead
from tailsum.sketch.selection import Optimal, TopAndSample, TopK
from tailsum.structure.relaxed import RelaxedSample

Method = Literal["full", "topk", "rdp", "tailsum"]


@dataclass(frozen=True)
class Estimator:
    """Sums over all states in training ("full"), or over `kept` of them at each position.

    "topk" keeps the best by the paper's proposal. "rdp", the paper's method, draws `drawn` of them instead (by default
    half): more draws keep more states in use, fewer make less noise. "tailsum" chooses states given both neighbours
    (`Lookahead`, `Optimal`) and refines the entropy, or sums exactly if all states are kept. It takes the expectation of
    log p(x_t) over x_t, where the others take its value at the sample; with two or more `probes` it also takes the
    expectation of log p(y_t | x_t), over a weighted subset of that many states.

    `landmarks` and `neighbours` are those of `Lookahead`. Lists of neighbours are made at every step unless
    `with_neighbours` made them before; in training, call it every hundred steps or so.
    """

    method: Method
    kept: int
    landmarks: int = 256
    probes: int = 1
    drawn: int | None = None
    neighbours: int | Neighbours = 32

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            raise ValueError(f"method must be one of {', '.join(get_args(Method))}: got {self.method!r}")
        at_least(2, kept=self.kept)
        at_least(1, landmarks=self.landmarks, probes=self.probes)
        if self.drawn is not None:
            at_least(1, drawn=self.drawn)
            if self.drawn > self.kept:
                raise ValueError(f"drawn must be at most kept = {self.kept}: got {self.drawn}")

    def sketch(self, chain: LinearChain) -> LinearChain:
        """The chain that samples are drawn from: the chain itself, or a sketch of it."""
        kept = min(self.kept, chain.n_states)
        match self.method:
            case "topk":
                return chain.sketch(proposal=LocalGlobal(), selection=TopK(kept))
            case "rdp":
                drawn = min(self.drawn or (kept + 1) // 2, kept)
                return chain.sketch(proposal=LocalGlobal(), selection=TopAndSample(kept - drawn, drawn))
            case "tailsum" if kept < chain.n_states:
                return chain.sketch(kept, proposal=Lookahead(self.landmarks, neighbours=self.neighbours))
            case _:
                return chain

    def with_neighbours(self, transition: Potential) -> "Estimator":
        """The same with lists of neighbours under a transition, if the estimator uses them."""
        chooses = self.method == "tailsum" and max(self.kept, self.landmarks) < transition.n_from
        size = self.neighbours if isinstance(self.neighbours, int) else self.neighbours.successors.shape[-1]
        return replace(self, neighbours=Neighbours(transition, size)) if chooses and size else self

    def entropy(self, small: LinearChain) -> Float[Tensor, "*batch"]:
        """The entropy of the whole chain, from a sketch of it."""
        refined = self.method == "tailsum" and small.kept is not None
        return small.refine().entropy() if refined else small.entropy()

    def prior_weights(self, sample: RelaxedSample) -> Float[Tensor, "*batch T k"]:
        """The weights of log p(x_t): the probabilities from which x_t was drawn, or the relaxed sample."""
        assert sample.chances is not None
        return sample.chances if self.method == "tailsum" else sample.weights

    def probe(self, sample: RelaxedSample) -> Probes | None:
        """The states at which to take log p(y_t | x_t), by the probabilities of x_t; None: at the sample."""
        if self.method != "tailsum" or self.probes == 1:
            return None
        assert sample.chances is not None
        chances = sample.chances
        kept = Optimal(self.probes)(chances.detach().log())
        states = sample.states.expand(chances.shape).gather(-1, kept.index)
        return Probes(states, kept.log_weight.exp() * chances.gather(-1, kept.index))
