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

    def gathered(self, tensor: Tensor) -> list[Tensor]:
        """A tensor of each process."""
        parts = [torch.empty_like(tensor) for _ in range(self.count)]
        dist.all_gather(parts, tensor)
        return parts

    def any(self, mine: bool, device: torch.device) -> bool:
        """Whether something holds for one of them or more."""
        total = torch.tensor([float(mine)], device=device)
        self.add_up([total])
        return bool(total.item())

    def wait(self) -> None:
        """Go on when all have come here."""
        if self.count > 1:
            dist.barrier()


class SumInTurn:
    """What tensors of all processes hold after each part of the work, summed in the order of the parts.

    Sums of the same numbers in another order have other last digits, and training amplifies these. In this order they are
    the same for any number of processes: what is `mine` for all of them are parts that follow one another.
    """

    def __init__(self, processes: Processes, tensors: Iterable[Tensor]) -> None:
        self.processes, self.tensors = processes, list(tensors)
        self.total: Tensor | None = None  # one process alone adds up in the tensors themselves

    def add(self) -> None:
        """After a part, with every process: what the tensors hold goes to the sum."""
        if self.processes.count == 1:
            return
        flat = parameters_to_vector(self.tensors)
        self.total = torch.zeros_like(flat) if self.total is None else self.total
        for part in self.processes.gathered(flat):
            self.total += part
        for tensor in self.tensors:
            tensor.zero_()

    def finish(self) -> None:
        """The tensors hold the sum."""
        if self.total is not None:
            vector_to_parameters(self.total, self.tensors)


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
        dist.barrier()  # none closes its connections while another, which writes a checkpoint, still has its own open
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
