"""Parts of a model that learn how many states there are from the model."""

from abc import abstractmethod
from typing import TypeVar

from torch import nn

from tailsum.numerics.check import at_least

This = TypeVar("This", bound="Part")


class Part(nn.Module):
    """Something with parameters for each of N states; the base class of emissions and durations."""

    name: str  # for errors
    n_states = 0  # until the model that takes it says how many

    def of(self: This, n_states: int) -> This:
        """This part, with parameters for so many states."""
        if self.n_states == 0:
            at_least(1, n_states=n_states)
            self.make(n_states)
            self.n_states = n_states
        if self.n_states != n_states:
            raise ValueError(f"{self.name} must be for {n_states} states: got {self.n_states}")
        return self

    @abstractmethod
    def make(self, n_states: int) -> None:
        """Set the parameters, random ones or those given, for so many states."""

    @property
    def n_free(self) -> int:
        """How many numbers the parameters hold that are free: for AIC and BIC."""
        return sum(x.numel() for x in self.parameters() if x.requires_grad)
