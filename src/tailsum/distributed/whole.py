"""The whole chain as a sketch of a sharded one knows it: the scores of paths, and nothing that has all states."""

from typing import TYPE_CHECKING, Any, NoReturn

from jaxtyping import Float, Int
from torch import Tensor

from tailsum.chains.linear_chain import LinearChain

if TYPE_CHECKING:
    from tailsum.distributed.sharded_chain import ShardedChain


class Whole(LinearChain):
    """Positions, ids and scores of paths of a sharded chain. What it cannot do says so."""

    chain: "ShardedChain"

    @classmethod
    def of(cls, small: LinearChain, chain: "ShardedChain") -> "Whole":
        """The whole of which `small` has the positions, the batch and the lengths."""
        whole = object.__new__(cls)
        vars(whole).update(vars(small) | {"n_states": chain.n_states, "chain": chain})
        del whole._emission, whole._transition
        return whole

    def score_of(self, configuration: Int[Tensor, "*sample_batch T"]) -> Float[Tensor, "*sample_batch"]:
        return self.chain.score(configuration)

    def __getattr__(self, name: str) -> Any:
        if name in {"_emission", "_transition"}:
            return _refuse(self.chain)
        raise AttributeError(name)


def _refuse(chain: "ShardedChain") -> NoReturn:
    raise ValueError(f"the states of the whole chain are on several ranks: ask {chain} itself for it")
