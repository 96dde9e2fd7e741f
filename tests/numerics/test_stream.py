"""The combined results of tiles."""

import weakref

import pytest
import torch

from tailsum.numerics.stream import Parts, in_tiles, streamed


@pytest.mark.parametrize("chunk", [1, 3, 7, 8])
def test_rows_stand_side_by_side_and_whole_outputs_are_summed(chunk):
    x, y = torch.randn(2, 7, 3), torch.randn(7, 4)

    def tile(start, stop):
        return Parts((x[:, start:stop] * 2, y[start:stop].long()), (y[start:stop].sum(0, keepdim=True),))

    result = in_tiles(tile, 7, chunk)
    assert torch.equal(result.rows[0], x * 2)
    assert torch.equal(result.rows[1], y.long())
    torch.testing.assert_close(result.whole[0], y.sum(0, keepdim=True))


def test_no_row_at_all():
    result = in_tiles(lambda start, stop: Parts((torch.randn(2, stop - start, 3),)), 0, 4)
    assert result.rows[0].shape == (2, 0, 3)


def test_results_of_tiles_are_not_kept():
    """Between the large intermediate tensors of tiles, results would keep the heap from using its memory again."""
    kept = []

    def tile(start, stop):
        assert not any(result() is not None for result in kept[:-1])
        result = torch.zeros(stop - start, 2)
        kept.append(weakref.ref(result))
        return Parts((result,))

    in_tiles(tile, 20, 2)
    assert len(kept) == 10


def test_an_output_that_does_not_depend_on_what_is_differentiated_in():
    """The gradient of a linear function is constant, and its own derivative is zero."""
    x, y = torch.randn(5, 3, requires_grad=True), torch.randn(5, 3)
    whole = streamed(
        lambda parts: Parts((), ((parts.rows[0] * parts.rows[1]).sum(0, keepdim=True),)), Parts((x, y)), 2, 0
    )
    (slope,) = torch.autograd.grad(whole.whole[0].sum(), x, create_graph=True)
    torch.testing.assert_close(slope, y)
    (curvature,) = torch.autograd.grad(slope.square().sum(), x, allow_unused=True, materialize_grads=True)
    assert not curvature.any()
