"""Several processes that train one model together, as `torchrun` starts them; or one alone."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters


@dataclass(frozen=True)
class Processes:
    """This process's number among all; what one of them must do alone, and what they must agree on."""

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and speaks."""
        return self.rank == 0

    def mine(self, parts: int) -> range:
        """The numbers of the parts that this process works on."""
        return range(self.rank, parts, self.count)

    def add_up(self, tensors: Iterable[Tensor]) -> None:
        """Replace tensors by their sums over all processes; all in one message."""
        if self.count == 1:
            return
        tensors = list(tensors)
        flat = parameters_to_vector(tensors)
        dist.all_reduce(flat)
        vector_to_parameters(flat, tensors)

    def any(self, mine: bool, device: torch.device) -> bool:
        """Whether something holds for one of them or more."""
        total = torch.tensor([float(mine)], device=device)
        self.add_up([total])
        return bool(total.item())

    def wait(self) -> None:
        """Go on when all have come here."""
        if self.count > 1:
            dist.barrier()


@contextmanager
def processes(device: torch.device) -> Iterator[Processes]:
    """Those that `torchrun` started together with this one, by its environment variables; or this one alone."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield Processes()
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Processes(dist.get_rank(), count)
    finally:
        dist.destroy_process_group()


def device_of(name: str | None = None) -> torch.device:
    """The device to train on: the one named, or a GPU of this process's own if there is one, or the CPU."""
    if name is not None:
        try:
            return torch.empty(0, device=name).device
        except (AssertionError, RuntimeError) as error:
            raise ValueError(f"device must be one that torch has here, such as cpu: got {name!r} ({error})") from None
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")
