"""The whole chain behind a sketch of a sharded chain: the scores of paths, without anything that needs all states."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from tailsum.chains.linear_chain import LinearChain


class Whole(LinearChain):
    """Positions, ids and scores of paths of a sharded chain. Anything that needs all states on this rank is an error."""

    _score: Callable[[Tensor], Tensor]

    @classmethod
    def of(cls, small: LinearChain, n_states: int, score: Callable[[Tensor], Tensor]) -> "Whole":
        """The chain of N states with the positions, the batch and the lengths of `small`."""
        whole = object.__new__(cls)
        vars(whole).update(vars(small) | {"n_states": n_states, "_score": score})
        del whole._emission, whole._transition
        return whole

    def score_of(self, configuration: Int[Tensor, "*sample_batch T"]) -> Float[Tensor, "*sample_batch"]:
        return self._score(configuration)

    def __getattr__(self, name: str) -> Any:
        if name in {"_emission", "_transition"}:
            raise ValueError("the states of the whole chain are on several ranks: ask the sharded chain itself")
        raise AttributeError(f"{type(self).__name__} has no attribute {name}")
