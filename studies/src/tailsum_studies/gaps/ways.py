"""Ways to sum over the vocabulary in training: ours, and what people do otherwise.

Each gives the log-probability of the missing words, whose normaliser is what they differ in. Where states are kept by their
scores, the missing words are among them, as is usual: without them such a loss has no lower bound.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum import LinearChain, Local, LocalGlobal, Lookahead, Optimal, Potential, Subset, TopAndSample
from tailsum_studies.gaps.candidates import draw
from tailsum_studies.gaps.data import Gaps
from tailsum_studies.gaps.model import GapFiller
from tailsum_studies.gaps.next_word import NextWord

UNPAIRED = ("independent", "next-word")  # they have no scores of pairs


@dataclass(frozen=True)
class Way:
    """How to train: `kept` states of `candidates`, of the `n_states` most frequent words (None: of all).

    Scores of pairs have a size of at most `bound`, or any (0).
    """

    name: str
    label: str
    kept: int = 64
    candidates: int = 0
    n_states: int | None = None
    bound: float = 0.0

    def model(self, n_words: int) -> GapFiller | NextWord:
        """A model to be trained in this way."""
        if self.name == "next-word":
            return NextWord(n_words)
        n_states, paired = min(self.n_states or n_words, n_words), self.name not in UNPAIRED
        return GapFiller(n_words, n_states, paired=paired, bound=self.bound)


def ways(kept: int = 64, candidates: int = 512, n_states: int = 300, bound: float = 0.0) -> dict[str, Way]:
    """All of them, ours first.

    >>> ways(kept=100)["topk"].label
    'TopK, 100 words'
    """
    found = (
        Way("tailsum", f"tailsum, {kept} of {candidates:,} candidates", kept, candidates),
        Way("local", f"tailsum by single positions, {kept} of {candidates:,} candidates", kept, candidates),
        Way("paper", f"the paper's, {kept // 2} + {kept - kept // 2} words", kept),
        Way("paper-candidates", f"the paper's, of {candidates:,} candidates", kept, candidates),
        Way("sampled", f"sampled, {kept} draws", kept),
        Way("topk", f"TopK, {kept} words", kept),
        Way("beam", f"beam of {kept} words", kept),
        Way("small", f"exact, the {n_states} commonest words", n_states=n_states),
        Way("exact", "exact"),
        Way("independent", "exact, no pairs of words"),
        Way("next-word", "another model: word after word, no sum"),
    )
    return {way.name: way if way.name in UNPAIRED else replace(way, bound=bound) for way in found}


def log_likelihood(
    way: Way,
    model: GapFiller | NextWord,
    gaps: Gaps,
    log_q: Float[Tensor, " n"],
    generator: torch.Generator | None = None,
) -> Float[Tensor, " B"]:
    """The log-probability of the missing words of each sentence, as training sees it; `log_q` is for candidates."""
    if isinstance(model, NextWord):
        return model.log_prob(gaps)
    if way.candidates:
        candidates = draw(log_q, gaps.words, way.candidates, generator)
        # A word that is needed has weight one: its score is the model's own.
        chain, words = model(gaps, candidates), candidates.local(gaps.words, model.n_words)
    else:
        chain, words = model(gaps), gaps.words.masked_fill(gaps.words >= model.n_states, 0)
    if not model.paired:
        return independent(chain, words)
    return chain.score(words) - sketch(way, chain, words, generator).log_partition()


def independent(chain: LinearChain, words: Int[Tensor, "B T"]) -> Float[Tensor, " B"]:
    """The log-probability of words where pairs score nothing: a softmax at each position."""
    chosen = chain.node_scores().log_softmax(-1).gather(-1, words[..., None])[..., 0]
    return torch.where(chain.inside(), chosen, 0.0).sum(-1)


def sketch(way: Way, chain: LinearChain, words: Tensor, generator: torch.Generator | None = None) -> LinearChain:
    """The chain that training sums over in place of the whole one. Where states are kept by scores, the given words are kept too."""
    if way.name in ("exact", "small"):
        return chain
    if way.name in ("topk", "beam"):
        index = _beams(chain, way.kept, words) if way.name == "beam" else _best(chain.node_scores(), way.kept, words)
        return chain.restrict(Subset(index, torch.zeros(index.shape, dtype=chain.dtype, device=index.device)))
    half = TopAndSample(way.kept // 2, way.kept - way.kept // 2)
    # Each step of each sentence has transitions of its own: there is nothing to make lists of neighbours for. Candidates
    # differ from position to position, and have no norms in common, which the paper's global proposal asks for.
    proposal, selection = {
        "tailsum": (Lookahead(max(1, way.kept // 4), rounds=0, neighbours=0), Optimal(way.kept)),
        "local": (Local(), Optimal(way.kept)),
        "paper": (LocalGlobal(), half),
        "paper-candidates": (Local(), half),
        "sampled": (Local(), TopAndSample(0, way.kept)),
    }[way.name]
    return chain.sketch(proposal=proposal, selection=selection, generator=generator)


@torch.no_grad()
def _best(scores: Float[Tensor, "*batch n"], kept: int, words: Int[Tensor, "*batch"]) -> Int[Tensor, "*batch k"]:
    """The best states, the given ones among them."""
    return scores.scatter(-1, words[..., None], torch.inf).topk(min(kept, scores.shape[-1])).indices


@torch.no_grad()
def _beams(chain: LinearChain, kept: int, words: Int[Tensor, "B T"]) -> Int[Tensor, "B T k"]:
    """The states with the highest sums over the paths that lead to them from those kept before."""
    nodes, pairs = chain.node_scores(), chain.transition
    reached = nodes[..., 0, :]
    found = [_best(reached, kept, words[..., 0])]
    for t in range(1, chain.n_nodes):
        reached = nodes[..., t, :] + _message(pairs.at_step(t - 1), found[-1], reached.gather(-1, found[-1]))
        found.append(_best(reached, kept, words[..., t]))
    return torch.stack(found, -2)


def _message(pairs: Potential, kept: Int[Tensor, "B k"], reached: Float[Tensor, "B k"]) -> Float[Tensor, "B n"]:
    """The log of the sums over the kept states, at every state that comes next."""
    return (reached[..., None] + pairs.block(kept)).logsumexp(-2)
