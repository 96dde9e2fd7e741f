"""Random configurations, with and without replacement."""

import math
from collections.abc import Callable, Sequence

import torch

from tailsum.audience import for_authors
from tailsum.numerics.check import check_sample_shape
from tailsum.numerics.precision import full_precision
from tailsum.numerics.reduce import Draw
from tailsum.numerics.tiles import tile_size
from tailsum.structure.distinct import Distinct, sample_distinct
from tailsum.structure.k_best import stacked
from tailsum.structure.model import Configuration
from tailsum.structure.operations.best import Searches
from tailsum.structure.terms import Terms, with_tables
from tailsum.structure.transforms import chosen_by_value, outside_transforms


class Samples(Searches[Terms, Configuration]):
    """Samples of configurations."""

    @chosen_by_value
    @torch.no_grad()
    def sample(self, sample_shape: Sequence[int] = (), generator: torch.Generator | None = None) -> Configuration:
        """Exact samples from the model, in global ids; -1 throughout where no configuration is possible."""
        check_sample_shape(sample_shape)
        with full_precision(self.device):
            return self.to_global(self.drawn(self.summed(), sample_shape, generator))

    @outside_transforms
    def sample_distinct(self, k: int, generator: torch.Generator | None = None) -> Distinct:
        """Draw k different configurations, without replacement, in global ids.

        Fewer where fewer exist. Each costs one sum and one draw per part of a configuration.

        >>> from tailsum import LinearChain
        >>> chain = LinearChain(torch.zeros(2, 2), torch.zeros(2, 2))
        >>> sorted(chain.sample_distinct(9).configurations.tolist())
        [[0, 0], [0, 1], [1, 0], [1, 1]]
        """
        return sample_distinct(self, k, generator)

    @for_authors
    def drawn(self, terms: Terms, sample_shape: Sequence[int], generator: torch.Generator | None) -> Configuration:
        """Samples under the given scores, in local ids; -1 throughout where no configuration is possible."""
        count = math.prod(sample_shape)
        size = sum(term.tensors[0].numel() for term in terms[: self.part_terms])
        chunk = max(1, tile_size(self.device) // max(1, size))

        def draw(count: int) -> Configuration:
            tables = [t.tensors[0].expand(count, *t.tensors[0].shape) for t in terms[: self.part_terms]]
            model = self.in_batch((count, *self.batch_shape))
            return model.read(model.chosen(with_tables(terms, tables), Draw(generator)))

        return self.chunked(draw, count, chunk, sample_shape)

    @for_authors
    def chunked(
        self, draw: Callable[[int], Configuration], count: int, chunk: int, sample_shape: Sequence[int]
    ) -> Configuration:
        """`count` configurations `[*sample_shape, *batch, ..]`, by calls of `draw(n) [n, *batch, ..]` for chunks of them."""
        drawn = [draw(min(chunk, count - start)) for start in range(0, max(1, count), chunk)]
        return stacked(drawn, lambda x: torch.cat(x).reshape(*sample_shape, *x[0].shape[1:]))
