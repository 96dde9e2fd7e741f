"""Peak memory of a computation: the tensors alive at once, on any device."""

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PeakMemory(TorchDispatchMode):
    """Within it, every new tensor is counted until it is freed; workspaces inside an operator are not counted.

    >>> with PeakMemory() as memory:
    ...     total = (torch.zeros(1000, 1000) + 1).sum()
    >>> memory.peak  # two tensors of 4 MB; the first is freed before the sum is made
    8000000
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = self.largest = 0
        self._seen: set[int] = set()

    def __repr__(self) -> str:
        return f"PeakMemory(now={self.now:,}, peak={self.peak:,} bytes)"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and count the storages of its results."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.layout == torch.strided:  # the parts of others were counted before
                self._count(leaf.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()  # noqa: SLF001  (an id that outlives the wrapper)
        if key in self._seen:
            return
        self._seen.add(key)
        self.now += size
        self.peak, self.largest = max(self.peak, self.now), max(self.largest, size)
        weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size
