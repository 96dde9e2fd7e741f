"""Graphs of pairs: `score(x) = sum_v unary[v, x_v] + sum_(u, v) pairwise[x_u, x_v]`, the paper's Eq. 2.

Variables are `0 .. V-1`, states `0 .. N-1`. Edge e joins `edges[e, 0]` (from) with `edges[e, 1]` (to); the direction
matters for `pairwise` only.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.graphs.factor_scores import FactorGroups
from tailsum.graphs.graph import Graph
from tailsum.graphs.near_pairs import pairs_of
from tailsum.graphs.unary import as_scores, padded_tables
from tailsum.numerics.check import as_whole, at_least, check_broadcast, check_scores
from tailsum.numerics.tensors import working_type
from tailsum.scores.arguments import as_potential
from tailsum.scores.factored import Factored, embedding_norms
from tailsum.scores.potential import Potential
from tailsum.sketch.selection import Subset
from tailsum.structure.check import check_lead, check_potential, node_potential
from tailsum.structure.transforms import differentiable


class PairwiseGraph(Graph):
    """A pairwise Markov random field: exact on forests and small graphs, loopy elsewhere, or sketched on K states.

    `unary` is a tensor of scores `[*batch, V, N]`, `Factored(context [*batch, V, d], states [N, d])`, or a list of V
    tensors `[*batch, N_v]` where variables have different numbers of states. `edges` is `[E, 2]`, each pair of variables
    at most once. `pairwise` is a tensor `[N, N]` (from, to) or a potential with leading dimensions that broadcast against
    `[*batch, E]`, or a list of E tables `[*batch, N_u, N_v]`. Scores may be minus infinity (forbidden). The other options
    are those of `Graph`.

    >>> path = PairwiseGraph(torch.zeros(3, 2), [(0, 1), (1, 2)], torch.zeros(2, 2))
    >>> path
    PairwiseGraph(batch=[], V=3, factors=2, N=2, forest)
    >>> round(path.log_partition().exp().item())
    8
    """

    def __init__(
        self,
        unary: Float[Tensor, "*#batch V N"] | Factored | Sequence[Tensor],
        edges: Int[Tensor, "E 2"] | Sequence[Sequence[int]],
        pairwise: Float[Tensor, "*#lead N N"] | Potential | Sequence[Tensor],
        iterations: int = 100,
        damping: float = 0.0,
        tolerance: float | None = None,
        schedule: str = "sweep",
        gradient: str = "implicit",
        method: str = "auto",
    ) -> None:
        nodes, sizes = self._read_unary(unary)
        self.sizes = torch.Size(sizes)
        self.edges = _checked_edges(edges, len(sizes), self.device)
        given = pairwise if isinstance(pairwise, Tensor) else as_potential(pairwise)
        if given is None:
            given = padded_tables(pairwise, self.edges, sizes, working_type(*nodes.tensors))
        pairs = check_lead("pairwise", given, self.n_states, (len(self.edges),), self.device, "unary", "edges")
        self.batch_shape = check_broadcast("pairwise", pairs.lead[:-1], nodes.lead[:-1], "unary's")
        check_potential("pairwise", pairs)
        self.dtype = working_type(*nodes.tensors, *pairs.tensors)
        self.unary, self.pairwise = nodes.to(self.dtype), pairs.to(self.dtype)
        self.variables = [self.edges] if len(self.edges) else []
        self._configure(iterations, damping, tolerance, schedule, gradient, method)

    @classmethod
    def grid(
        cls,
        height: int,
        width: int,
        unary: Float[Tensor, "*#batch_node N"] | Factored,
        pairwise: Float[Tensor, "*#lead N N"] | Potential,
        **how: Any,
    ) -> "PairwiseGraph":
        """A grid of variables, each joined with its right and its lower neighbour.

        `unary` is `[*batch, height, width, N]`, or has all variables in one dimension, row after row. Edges are in the
        order of `grid_edges`.

        >>> PairwiseGraph.grid(3, 4, torch.zeros(3, 4, 5), torch.zeros(5, 5))
        PairwiseGraph(batch=[], V=12, factors=17, N=5, with loops, exact)
        """
        edges, form = grid_edges(height, width), f"[*batch, {height}, {width}, N]"
        if isinstance(unary, Tensor) and unary.dim() >= 3 and unary.shape[-3:-1] == (height, width):
            check_scores("unary", unary)
            unary = unary.flatten(-3, -2)
        nodes = node_potential("unary", unary, form)
        if nodes.lead[-1] != height * width:
            got = list(nodes.as_given().tensors[0].shape)
            raise ValueError(f"unary must be {form}, as height and width say: got {got}")
        return cls(unary, edges, pairwise, **how)

    @classmethod
    def from_networkx(cls, graph: Any, unary: Any = "unary", pairwise: Any = "pairwise", **how: Any) -> "PairwiseGraph":
        """From a `networkx` graph, variables and edges in its order of nodes and edges.

        `unary` and `pairwise` name the attributes of nodes and edges that hold their scores (tensors, arrays or lists of
        numbers, `[N_v]` and `[N_u, N_v]`), or are scores for all of them as in `PairwiseGraph`.

        >>> import networkx
        >>> path = networkx.path_graph(4)
        >>> PairwiseGraph.from_networkx(path, torch.zeros(4, 2), torch.zeros(2, 2))
        PairwiseGraph(batch=[], V=4, factors=3, N=2, forest)
        """
        number = {node: i for i, node in enumerate(graph.nodes)}
        edges = [(number[u], number[v]) for u, v in graph.edges()]
        if isinstance(unary, str):
            unary = [_attribute(data, unary, f"node {node!r}") for node, data in graph.nodes(data=True)]
        if isinstance(pairwise, str):
            pairwise = [_attribute(data, pairwise, f"edge {(u, v)!r}") for u, v, data in graph.edges(data=True)]
        model = cls(unary, edges, pairwise, **how)
        if model.node_shape[0] != len(number):
            raise ValueError(f"unary must have the {len(number)} variables of the graph: got {model.node_shape[0]}")
        return model

    # Scores of factors.

    def factor_scores(self) -> FactorGroups:
        return FactorGroups([self.pairwise.evaluated()] * len(self.variables))

    def pair_scores(self) -> list[Potential | None]:
        return [self.pairwise] * len(self.variables)

    def gather(self, index: Int[Tensor, "*#batch V k"]) -> "PairwiseGraph":
        pairs = self.pairwise.gather(index[..., self.edges[:, 0], :], index[..., self.edges[:, 1], :])
        return self.replaced(unary=self.unary.gather(None, index), pairwise=pairs)

    def extend(
        self, group: int, factors: Int[Tensor, " m"], position: int, others: Sequence[Subset | None]
    ) -> Float[Tensor, "B m N"]:
        pairs = pairs_of(self.pairwise, factors, self.batch_shape)
        other = others[1 - position]
        assert other is not None
        return (pairs if position == 1 else pairs.transposed()).message(other.index, other.log_weight)

    def factor_score(self, states: Int[Tensor, "*sample_batch V"]) -> Float[Tensor, "*sample_batch"]:
        return self.pairwise.at(states[..., self.edges[:, 0]], states[..., self.edges[:, 1]]).sum(-1)

    @differentiable
    def pair_marginals(self) -> Float[Tensor, "*batch E n n"]:
        """The belief in each pair of states of each edge: the gradient of the log-partition in the pairwise scores."""
        shape = (*self.batch_shape, len(self.edges), self.n_states, self.n_states)
        beliefs = self.term_gradients(1, lambda x: x.expand(shape))
        return beliefs[0] if beliefs else torch.zeros(shape, dtype=self.dtype, device=self.device)

    def state_norms(self) -> Float[Tensor, "*#batch_node n"]:
        return embedding_norms(
            self.unary, self.pairwise, "a Factored pairwise shared by all edges, or a Factored unary"
        )


def grid_edges(height: int, width: int) -> Int[Tensor, "E 2"]:
    """The edges of a grid: those to the right, row after row, then those down.

    >>> grid_edges(2, 2).tolist()
    [[0, 1], [2, 3], [0, 2], [1, 3]]
    """
    at_least(1, height=height, width=width)
    place = torch.arange(height * width).reshape(height, width)
    right = torch.stack((place[:, :-1], place[:, 1:]), -1).reshape(-1, 2)
    down = torch.stack((place[:-1], place[1:]), -1).reshape(-1, 2)
    return torch.cat((right, down))


def _checked_edges(edges: Any, n_nodes: int, device: torch.device) -> Int[Tensor, "E 2"]:
    if isinstance(edges, list | tuple) and not edges:
        edges = torch.zeros(0, 2, dtype=torch.long)
    edges = as_whole("edges", edges, device)
    if edges.dim() != 2 or edges.shape[1] != 2:
        raise ValueError(f"edges must be [E, 2]: got {list(edges.shape)}")
    on_host = edges.cpu()  # each operation on a GPU would cost more than all of them here
    outside, same = ((on_host < 0) | (on_host >= n_nodes)).any(1), on_host[:, 0] == on_host[:, 1]
    for e in (outside | same).nonzero()[:1, 0].tolist():
        if outside[e]:
            raise ValueError(
                f"edges must join variables 0 to {n_nodes - 1}, as unary has: got {on_host[e].tolist()} at {e}"
            )
        raise ValueError(f"edges must join different variables: got {on_host[e].tolist()} at {e}")
    low, high = on_host.aminmax(dim=1) if len(on_host) else (on_host[:, 0], on_host[:, 1])
    pairs = (low * n_nodes + high).sort().values
    for pair in pairs[1:][pairs[1:] == pairs[:-1]][:1].tolist():
        twice = list(divmod(pair, n_nodes))
        raise ValueError(f"edges must be given once each, add their scores: got {twice} more than once")
    return edges


def _attribute(data: dict[str, Any], name: str, where: str) -> Tensor:
    if name not in data:
        raise ValueError(f"{where} must have an attribute {name!r}: got {sorted(map(str, data))}")
    return as_scores(f"attribute {name!r} of {where}", data[name])
