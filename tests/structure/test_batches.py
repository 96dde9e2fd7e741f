"""Parts of a batch, and models in another precision or without gradients."""

import pytest
import torch
from torch import Tensor

import tailsum as ts
from harness.agree import close
from harness.registry import SEQUENCES, possible, small
from harness.rings import Ring
from harness.ways import ONE_WAY

INDICES = [0, slice(1, None), (slice(None), None), None, torch.tensor([1, 1, 0]), torch.tensor([False, True])]


@pytest.mark.parametrize(("name", "way"), ONE_WAY)
def test_some_of_a_batch(name, way):
    _, model = possible(name, way, forbidden=0.1)
    values = {operation: getattr(model, operation)() for operation in ("log_partition", "entropy", "marginals")}
    for index in INDICES:
        some = model[index]
        assert type(some) is type(model)
        for operation, whole in values.items():
            close(getattr(some, operation)(), whole[index])
        close(some.whole.log_partition(), model.whole.log_partition()[index])
        sample = some.sample((2,))
        close(some.score(sample), some.whole.score(sample))
        assert some.score(sample).shape == (2, *some.batch_shape)
    close(torch.stack([one.log_partition() for one in model]), values["log_partition"])
    close(model[..., None].log_partition(), values["log_partition"][..., None])


@pytest.mark.parametrize(("name", "way"), [x for x in ONE_WAY if x[0] in SEQUENCES])
def test_scores_that_a_batch_shares(name, way):
    wide = small(name, shared=True, lengths=[3, 2]).model().expand((3, 2))
    wide = wide if way == "whole" else wide.sketch(2, generator=torch.Generator().manual_seed(0))
    close(wide[1, 0].log_partition(), wide.log_partition()[1, 0])
    close(wide[:, 1].entropy(), wide.entropy()[:, 1])


def test_a_sketch_of_some_is_refined_as_that_of_all():
    chain = ts.LinearChain(torch.randn(2, 5, 40), torch.randn(40, 40))
    sketch = chain.sketch(10, generator=torch.Generator().manual_seed(0))
    close(sketch[1].refine().entropy(), sketch.refine().entropy()[1], rtol=1e-5, atol=1e-5)


def test_indices_that_are_not_of_the_batch():
    chain = ts.LinearChain(torch.zeros(2, 5, 3), torch.zeros(3, 3))
    with pytest.raises(IndexError, match="index must be of the 1 dimensions of the batch: got "):
        chain[0, 0]
    with pytest.raises(IndexError):
        chain[2]
    with pytest.raises(TypeError, match="has no batch to iterate over"):
        iter(chain[0])
    with pytest.raises(TypeError):
        len(chain)  # of what: the batch, or the positions?


class Tilted(Ring):
    """A ring with a field whose batch dimensions cannot be inferred."""

    def __init__(self, nodes: Tensor, pairs: ts.Potential, tilt: Tensor) -> None:
        super().__init__(nodes, pairs)
        self.tilt = tilt


def test_a_field_that_has_to_be_explained():
    ring = Tilted(torch.zeros(2, 5, 3), ts.Dense(torch.zeros(3, 3)), torch.zeros(2))
    with pytest.raises(ValueError, match=r"Tilted must say how many dimensions of its field tilt, \[2\], follow"):
        ring[0]


@pytest.mark.parametrize(("name", "way"), ONE_WAY)
def test_another_precision(name, way):
    _, model = possible(name, way)
    single = model.float()
    assert single.dtype == single.whole.dtype == torch.float32
    for operation in ("log_partition", "entropy", "marginals"):
        result, exact = getattr(single, operation)(), getattr(model, operation)()
        assert result.dtype == torch.float32
        close(result.double(), exact, rtol=1e-4, atol=1e-4)
        assert getattr(single.to(dtype=torch.float64, device="cpu"), operation)().dtype == torch.float64
    assert model.to(torch.float64).cpu().dtype == torch.float64


def test_half_precision_is_no_precision_to_compute_in():
    chain = ts.LinearChain(torch.zeros(2, 5, 3), torch.zeros(3, 3))
    with pytest.raises(ValueError, match=r"computed in float32 or float64.* got torch.float16"):
        chain.to(torch.float16)


def test_a_graph_converges_to_the_precision_it_is_moved_to():
    graph = ts.PairwiseGraph.grid(3, 3, torch.randn(3, 3, 4).double(), torch.randn(4, 4).double(), method="propagation")
    assert graph.float().tolerance == pytest.approx(torch.finfo(torch.float32).eps ** 0.5)
    assert graph.float().convergence().converged
    given = ts.PairwiseGraph(torch.zeros(2, 3).double(), [(0, 1)], torch.zeros(3, 3).double(), tolerance=0.1)
    assert given.float().tolerance == 0.1


@pytest.mark.parametrize(("name", "way"), [x for x in ONE_WAY if "scored" not in x[0]])  # functions are the user's
def test_without_gradients(name, way):
    case, model = possible(name, way)
    leaves = [x.clone().requires_grad_() for x in case.leaves]
    attached = case.model(*leaves)
    attached = attached if model.kept is None else attached.restrict(model.kept)
    assert attached.log_partition().requires_grad
    detached = attached.detach()
    assert not detached.log_partition().requires_grad
    assert not detached.whole.log_partition().requires_grad
    close(detached.log_partition(), model.log_partition())
