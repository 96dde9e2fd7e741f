"""What an experiment measures: rows of plain values, read from and written to CSV files."""

import gzip
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from tailsum_studies.files import whole

EXACT = "exact"  # the method of rows that have what the exact sum takes, and no error


@dataclass(frozen=True)
class Estimate:
    """One replicate of an estimator: how far it is from the exact value, in nats, and what it cost."""

    model: str  # such as "chain, dense", "hypertree, long-tail", "s=3 e=1", "trained CRF"
    states: int  # N
    quantity: str  # "log Z" or "entropy"
    method: str  # "TopK", "paper", "tailsum", a proposal's name, or EXACT
    label: str  # the share of the states as the paper labels it: "1%", "20%", or "K=500" where it used another
    kept: int  # K
    replicate: int
    estimate: float
    exact: float
    seconds: float
    peak_bytes: int  # of one sketch and its answers, beyond what the model itself holds

    @property
    def error(self) -> float:
        """Estimate less exact value, in nats."""
        return self.estimate - self.exact


@dataclass(frozen=True)
class Direction:
    """One replicate of a sketched gradient, against the exact one, in one parameter ("all" of them: as one vector)."""

    model: str
    states: int
    method: str
    label: str
    kept: int
    replicate: int
    quantity: str  # what is differentiated: "log Z" or "entropy"
    parameter: str
    cosine: float
    relative_error: float  # size of the difference over the size of the exact gradient


@dataclass(frozen=True)
class Check:
    """A statement of the theory, predicted and measured."""

    statement: str  # such as "unbiased", "lower bound", "tail variance", "1/K2"
    setting: str
    at: float  # where on the statement's axis, such as K2
    predicted: float
    measured: float
    standard_error: float


@dataclass(frozen=True)
class SplitError:
    """What all replicates of an estimator add up to, where K is split into states kept for certain and states drawn."""

    model: str
    states: int
    method: str  # "paper", "tailsum" or a variant
    label: str
    kept: int  # K
    sampled: int  # K2, how many of them are drawn; 0 where the selection decides that itself
    quantity: str
    replicates: int
    exact: float
    bias: float  # nats
    bias_error: float  # its standard error
    variance: float  # about the mean: squared bias and variance add up to the mean square error
    mse: float
    mse_error: float


@dataclass(frozen=True)
class StepCost:
    """A training step: the gradient of log Z + entropy in all parameters."""

    model: str  # where the transition scores come from
    states: int
    method: str  # "autograd", "exact", "paper", "tailsum" or a variant
    label: str  # the share of the states that is kept
    kept: int
    seconds: float
    peak_bytes: int  # of everything alive at once, parameters and their gradients included
    parameter_bytes: int  # parameters and their gradients alone


@dataclass(frozen=True)
class GradientError:
    """How far gradients from samples are from the gradient of the expectation, over the size of that gradient."""

    model: str
    states: int
    method: str  # such as "relaxed, 0.5" or "score function, leave one out"
    label: str  # "exact", or what was sketched how
    kept: int
    parameter: str
    replicates: int
    samples: int  # for each sentence and replicate
    norm: float  # of the true gradient
    bias: float
    bias_error: float  # its standard error
    deviation: float  # the root of the total variance of a replicate
    seconds: float  # for a replicate


@dataclass(frozen=True)
class Trained:
    """One structured VAE of Table 5: how it was trained, how well it does, in nats a sentence, and what a step cost."""

    scale: str  # "small", "medium" or "full"
    encoder: str
    states: int  # N
    row: str  # such as "TopK", "RDP", "ours, exact"
    estimator: str
    kept: int  # K; N where sums are exact
    drawn: int
    dropout: float
    steps: int
    batch: int
    seed: int
    dev: float  # negative log-likelihood
    test: float
    sampling_error: float  # of the test part's: what more samples of the states would remove
    kl: float  # of the test part
    told: float  # I(state; word) in nats a word, net of chance
    used: int  # states that occur in a sample for each sentence
    seconds: float  # of a step; on a CPU those of the processor
    peak_bytes: int  # of a step
    device: str


@dataclass(frozen=True)
class StateUse:
    """One state of one model of Figure 2: its share of all words, the most frequent state having rank 1."""

    scale: str
    states: int
    row: str
    top: int  # K1
    drawn: int  # K2
    seed: int
    rank: int
    share: float


Row = TypeVar("Row", Estimate, Direction, Check, SplitError, StepCost, GradientError, Trained, StateUse)


def write_rows(path: Path, rows: Iterable[Row], kind: type[Row]) -> None:
    """Write a CSV file, whole or not at all; compressed if its name ends in `.gz`. The same rows give the same bytes."""
    columns = [f.name for f in fields(kind)]
    text = pd.DataFrame(list(rows), columns=columns).to_csv(None, index=False, na_rep="nan", lineterminator="\n")
    content = text.encode()
    with whole(path, "wb") as file:
        file.write(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def read_rows(path: Path, kind: type[Row]) -> list[Row]:
    """The rows of a CSV file, or a ValueError that says what is wrong with it."""
    wanted: dict[str, Any] = {f.name: f.type for f in fields(kind)}
    undefined = {name: "nan" for name, value in wanted.items() if value is float}
    how: dict[str, Any] = {"keep_default_na": False, "na_values": undefined, "float_precision": "round_trip"}
    try:
        found = pd.read_csv(path, dtype=wanted, **how)
    except (ValueError, EOFError, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} must have rows of {kind.__name__}: {error}") from None
    if list(found) != list(wanted):
        raise ValueError(f"{path} must have the columns {', '.join(wanted)}: got {', '.join(found)}")
    return [kind(*row) for row in found.itertuples(index=False, name=None)]
