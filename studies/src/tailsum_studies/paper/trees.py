"""Trees and grammars to measure estimators on: the paper's hypertrees (its Table 2), and grammars scored from embeddings."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum import PCFG, DependencyTree, Factored, FactoredRule, SpanTree
from tailsum_studies.paper.chains import Level, lower_entropy

ADAM_STEPS: dict[Level, int] = {"dense": 0, "intermediate": 30, "long-tail": 50}


def paper_tree(
    n_states: int = 2000,
    length: int = 15,
    level: Level = "dense",
    size: int = 100,
    generator: torch.Generator | None = None,
) -> SpanTree:
    """A hypertree as in the paper's Table 2: `sum_d(word_i + state_k + word_j)`, each span scaled to 0 .. 10.

    For N = 10,000 the paper has sentences of 5 words and embeddings of size 50.
    """
    states = torch.rand(n_states, size, generator=generator)
    words = torch.rand(length, size, generator=generator)
    lower_entropy(states, words, ADAM_STEPS[level])
    word, state = words.sum(-1), states.sum(-1)
    span = word[:, None, None] + word[:, None] + state
    low, high = span.amin(-1, keepdim=True), span.amax(-1, keepdim=True)
    return SpanTree(10 * (span - low) / (high - low))


def hard_grammar(
    n_heads: int = 500,
    n_leaves: int = 500,
    rule: float = 1.0,
    emission: float = 3.0,
    length: int = 15,
    size: int = 32,
    generator: torch.Generator | None = None,
) -> PCFG:
    """A grammar scored from Gaussian embeddings, with rule and emission scores of the given standard deviations."""
    head = torch.randn(n_heads, size, generator=generator) * (rule / math.sqrt(size))
    left, right = torch.randn(2, n_heads + n_leaves, size, generator=generator)
    root = _inner(torch.randn(1, size, generator=generator), torch.randn(n_heads, size, generator=generator))[0]
    words = torch.randn(length, size, generator=generator) * emission
    return PCFG(root, FactoredRule(head, left, right), _inner(words, left[n_heads:]))


def hard_dependencies(
    n_states: int = 5000,
    transition: float = 1.0,
    node: float = 3.0,
    length: int = 20,
    size: int = 32,
    generator: torch.Generator | None = None,
) -> DependencyTree:
    """Projective trees whose words have latent states, scored from Gaussian embeddings."""
    left, right = torch.randn(2, n_states, size, generator=generator)
    words = torch.randn(length, size, generator=generator) * node
    arc = torch.randn(length, length, generator=generator)
    pairs = Factored(left * (transition / math.sqrt(size)), right)
    return DependencyTree(arc, node=_inner(words, left), transition=pairs)


def _inner(words: Float[Tensor, "T d"], states: Float[Tensor, "n d"]) -> Float[Tensor, "T n"]:
    return words @ states.T / math.sqrt(words.shape[-1])
