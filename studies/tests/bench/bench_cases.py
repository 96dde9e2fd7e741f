"""Made-up results of a benchmark: exact sums that grow with N squared, sketches that grow with N, B and K."""

from dataclasses import replace

from tailsum_studies.bench.plan import SWEEPS, Plan, cells_of
from tailsum_studies.bench.predict import operations
from tailsum_studies.bench.rows import BOTH, FORWARD, MEASURED, Results, Row, Sizes

PLAN = Plan(
    states=(100, 1_000, 10_000, 100_000),
    batches=(8, 1),
    kept=("100", "10%"),
    base=Sizes(1_000, 20, 8, 100),
    lengths=(10, 100),
    many=(1, 16),
    keep=(10, 100),
    target=0.01,
)
TINY = Plan(
    states=(40, 100),
    batches=(2,),
    kept=("10%", "20"),
    base=Sizes(100, 3, 2, 20),
    lengths=(2, 3),
    many=(1, 2),
    keep=(10, 20),
    target=1e-6,
    quick=True,
)
MACHINE = {"device": 'two <cores> & "more"', "kind": "cpu", "threads": "2", "torch": "2.0", "triton": "3.0"}


def chain_row(sizes, operation):
    """Exact sums take N^2 microseconds, whatever B; sketches take 10 N B; sums over kept states K^2."""
    n, _, batch, kept = sizes
    seconds = 1e-6 * (n**2 if not kept else kept**2 if operation in {FORWARD, BOTH} else 10 * n * batch)
    found = {"fastest": seconds, "peak_bytes": 4000 * n, "repeats": 3, "error": 0.01, "tolerance": 0.5}
    return Row("chain", "tailsum", *sizes, operation, MEASURED, seconds, **found, reference="exact sum")


def peer_rows():
    row = chain_row(Sizes(20, 50, 32), FORWARD)
    peer = {"library": "torch-struct", "seconds": 3 * row.seconds, "peak_bytes": 7 * row.peak_bytes}
    ours = replace(row, subject="linear chain")
    return [ours, replace(ours, **peer)]


def made_up(path, plan=PLAN):
    sizes = {one for axis in SWEEPS for one in cells_of(plan, axis)}
    rows = [chain_row(one, what) for one in sorted(sizes) for what in operations(one)]
    return Results(path, [*rows, *peer_rows()])
