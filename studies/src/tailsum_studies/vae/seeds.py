"""Random numbers that depend only on a seed and the step of training, so that training can be resumed at any step."""

import contextlib
from collections.abc import Iterator

import torch


def mixed(*numbers: int) -> int:
    """A seed from several numbers: other numbers, or the same in another order, give an unrelated one."""
    mask, found = (1 << 64) - 1, 0
    for number in numbers:  # the finaliser of splitmix64, after each number
        found = (found ^ (number & mask)) + 0x9E3779B97F4A7C15 & mask
        found = (found ^ (found >> 30)) * 0xBF58476D1CE4E5B9 & mask
        found = (found ^ (found >> 27)) * 0x94D049BB133111EB & mask
        found ^= found >> 31
    return found >> 1


@contextlib.contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers from a seed, on the CPU and the device; afterwards those of before go on, on all devices."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also seed the devices that are not forked
        for each in devices:
            with torch.cuda.device(each):
                torch.cuda.manual_seed(seed)
        yield
