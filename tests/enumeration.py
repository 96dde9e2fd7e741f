"""The truth of chains, for the tests that import it from here: it lives in the harness."""

from harness.chains import ChainTruth

__all__ = ["ChainTruth"]
