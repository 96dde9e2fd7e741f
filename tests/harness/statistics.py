"""Checks of estimates that scatter: how far off their mean is, and a selection that is wrong on purpose."""

import dataclasses
import math

import tailsum as ts


def z_score(estimates, truth):
    """By how many standard errors the mean of the estimates misses the truth, at most."""
    spread = estimates.std(0) / math.sqrt(len(estimates))
    return ((estimates.mean(0) - truth).abs() / spread.clamp(min=1e-12)).max().item()


def off(sketch, whole):
    """By how many standard errors the mean of a sketch's estimates misses the truth; they are divided by it."""
    truth = whole.log_partition()
    assert (truth > -math.inf).all()
    return z_score((sketch.log_partition() - truth).exp(), 1.0)


class Broken(ts.Selection):
    """A selection whose uncertain weights are 2% too large."""

    def __init__(self, selection):
        self.selection = selection

    def __call__(self, log_q, generator=None):
        subset = self.selection(log_q, generator)
        return dataclasses.replace(subset, log_weight=subset.log_weight + math.log(1.02) * (subset.log_weight != 0))
