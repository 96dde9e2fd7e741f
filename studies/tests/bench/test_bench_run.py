"""Measuring: small cells in the time that there is, kept at once, skipped where they would take too long."""

import math
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from bench_cases import PLAN, TINY, chain_row, made_up
from rich.console import Console

from tailsum_studies.bench import chains, peers, run
from tailsum_studies.bench.budget import Budget
from tailsum_studies.bench.machine import claim, device_from, read_machine
from tailsum_studies.bench.measure import measure
from tailsum_studies.bench.plan import GROUPS, SWEEPS, cells_of, groups_from, plan_of, read_plan
from tailsum_studies.bench.predict import predict
from tailsum_studies.bench.problems import Library
from tailsum_studies.bench.rows import (
    BEST,
    BOTH,
    CHOOSE,
    FAILED,
    FORWARD,
    MEASURED,
    SKIPPED,
    TOGETHER,
    WRONG,
    Results,
    Sizes,
    read_rows,
)

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("one_thread")


def measured(folder, groups=("N",), plan=TINY, **how):
    return run.bench(run.Settings(folder, CPU, plan, groups, **{"seconds": 60.0, **how}), Console(quiet=True))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the tests
    yield folder, measured(folder, ("N", "T", "B", "K"))
    torch.set_num_threads(threads)


def test_every_cell_is_measured_and_checked(finished):
    folder, results = finished
    rows = read_rows(folder / "results.csv")
    assert rows == list(results.rows.values())
    wanted = {sizes for axis in SWEEPS for sizes in cells_of(TINY, axis)}
    assert {row.sizes for row in rows} == wanted
    for row in rows:
        assert row.status == MEASURED
        assert 0 < row.fastest <= row.seconds < 10
        assert row.peak_bytes > 0
        assert row.error <= row.tolerance
        assert row.reference == ("exact sum" if row.kept else "float64")
    assert {row.operation for row in rows if row.kept} == {CHOOSE, FORWARD, BOTH, TOGETHER}
    assert {row.operation for row in rows if not row.kept} == {FORWARD, BOTH}
    assert read_plan(folder) == TINY
    assert read_machine(folder)["torch"] == torch.__version__


def test_finished_cells_are_not_measured_again(finished, monkeypatch):
    folder, before = finished
    monkeypatch.setattr(run, "measure", lambda *_: pytest.fail("measured again"))
    assert measured(folder).rows == before.rows


def test_fresh_results(tmp_path):
    old = made_up(tmp_path / "results.csv")
    old.add([])
    (tmp_path / "machine.json").write_text('{"device": "another"}')
    rows = measured(tmp_path, ("K",), plan=replace(TINY, keep=(10,)), fresh=True).rows
    assert {key[2] for key in rows} == {Sizes(100, 3, 2), Sizes(100, 3, 2, 10)}
    assert read_rows(tmp_path / "results.csv") == list(rows.values())


def test_what_was_stopped_goes_on(tmp_path, monkeypatch):
    calls = []

    def stopping(*arguments):
        calls.append(arguments)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return measure(*arguments)

    monkeypatch.setattr(run, "measure", stopping)
    with pytest.raises(KeyboardInterrupt):
        measured(tmp_path)
    kept = read_rows(tmp_path / "results.csv")
    assert len(kept) == 2  # the exact cell; what was measured of the next is not kept
    assert not list(tmp_path.glob("*.part"))
    monkeypatch.setattr(run, "measure", measure)
    rows = measured(tmp_path).rows
    assert {row.key: row for row in kept}.items() <= rows.items()
    assert {row.sizes for row in rows.values()} == set(cells_of(TINY, "N"))


def test_long_cells_are_skipped_with_what_was_predicted(tmp_path):
    results = Results(tmp_path / "results.csv", [chain_row(Sizes(10_000, 20, 1), what) for what in (FORWARD, BOTH)])
    settings = run.Settings(tmp_path, CPU, PLAN, ("N",), 60.0)
    runner = run.Runner(settings, results, Budget(60.0, ["N"]))
    rows = runner.chain(Sizes(100_000, 20, 1))
    assert [row.status for row in rows] == [SKIPPED, SKIPPED]
    for row in rows:  # a hundred times 100 s
        assert row.seconds == pytest.approx(10_000, rel=0.05)
        assert row.note.startswith("predicted to take ")
    results.add(rows)
    assert (
        predict(results, Sizes(100_000, 20, 1), BOTH, "cpu").seconds == rows[1].seconds
    )  # not from what was predicted
    assert not results.finished("chain", "tailsum", Sizes(100_000, 20, 1))


def test_large_cells_are_skipped(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "free_bytes", lambda device: 10)
    results = Results(tmp_path / "results.csv", [chain_row(Sizes(100, 3, 2), what) for what in (FORWARD, BOTH)])
    runner = run.Runner(run.Settings(tmp_path, CPU, TINY, ("N",), 60.0), results, Budget(60.0, ["N"]))
    assert {row.note for row in runner.chain(Sizes(200, 3, 2))} == {"predicted to need 0 GiB"}


def test_no_time_left(tmp_path):
    rows = measured(tmp_path, ("N", "peers"), seconds=1e-9).rows.values()
    assert {(row.status, row.note) for row in rows} == {(SKIPPED, "no time left")}
    assert {row.status for row in measured(tmp_path).rows.values() if row.subject == "chain"} == {MEASURED}


def test_a_wrong_result_has_no_time(tmp_path, monkeypatch):
    monkeypatch.setattr(chains, "plain_log_partition", lambda *_: 0.0)
    exact = [row for row in measured(tmp_path).rows.values() if not row.kept]
    assert {row.status for row in exact} == {WRONG}
    assert all(math.isnan(row.seconds) and row.error > row.tolerance for row in exact)


def test_too_little_memory_is_reported(tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("not enough memory: you tried to allocate\nmore than there is")

    monkeypatch.setattr(run, "embeddings", fail)
    rows = measured(tmp_path).rows.values()
    assert {(row.status, row.note) for row in rows} == {(FAILED, "not enough memory: you tried to allocate")}


def test_shares_of_the_time():
    now = [0.0]
    budget = Budget(110.0, GROUPS, lambda: now[0])
    budget.begin("N")
    assert budget.left == pytest.approx(60.0)
    now[0] = 10.0  # what N leaves goes to the others
    budget.begin("T")
    assert budget.left == pytest.approx(20.0)
    assert budget.refusal(9.0) == ""
    assert budget.refusal(10.0) == "predicted to take 10 s, more than 9 s"
    now[0] = 31.0
    assert budget.refusal(0.0) == "no time left"


def test_results_of_another_machine_are_not_mixed(tmp_path):
    claim(tmp_path, {"device": "one", "torch": "2.0"})
    claim(tmp_path, {"device": "one", "torch": "2.0"})
    with pytest.raises(ValueError, match=r"another machine \(device: one, here two\): name another --output"):
        claim(tmp_path, {"device": "two", "torch": "2.0"})


def test_damaged_results(tmp_path):
    path = tmp_path / "results.csv"
    with pytest.raises(ValueError, match="has no results"):
        read_rows(path)
    made_up(path).add([])
    assert read_rows(path) == list(made_up(path).rows.values())
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="not a file of `tailsum bench`"):
        read_rows(path)


def test_sizes_that_are_asked_for(monkeypatch):
    assert groups_from("K, N") == ["N", "K"]
    with pytest.raises(ValueError, match="got 'X'"):
        groups_from("N,X")
    assert plan_of("cuda", quick=False).states[-1] == 1_000_000
    assert plan_of("cpu", quick=True).states[-1] == 10_000
    with pytest.raises(ValueError, match="must be cpu, cuda"):
        device_from("abacus")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="finds no GPU"):
        device_from("cuda")


# Peers.


SMALL = {
    "chain": peers._chain(4, 5, 2),
    "hidden": peers._hidden(4, 6, 2),
    "spans": peers._spans(3, 5, 2),
    "grammar": peers._grammar(2, 4, 2),
    "arcs": peers._arcs(5, 2, projective=True),
    "arcs that cross": peers._arcs(5, 2, projective=False),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SMALL)
def test_peers_agree_with_ours(name):
    problem = SMALL[name]
    found = {who: problem.tasks(who, CPU) for who in problem.libraries if peers.installed(who)}
    for who, tasks in found.items():
        assert set(tasks) == set(problem.libraries[who].operations)
        for task in tasks.values():
            assert task.error <= task.tolerance
            task.run()


def test_another_answer_is_found_out():
    problem = SMALL["chain"]

    def twice(nodes, pairs):
        return problem.libraries["tailsum"].solve(2 * nodes, pairs)

    wrong = replace(problem, libraries={**problem.libraries, "peer": Library(twice)})
    assert all(task.error > 10 * task.tolerance for task in wrong.tasks("peer", CPU).values())


@pytest.mark.filterwarnings("ignore")
def test_peers_are_measured(tmp_path, monkeypatch):
    pytest.importorskip("torch_struct")
    monkeypatch.setattr(run, "problems", lambda device, quick=False: [SMALL["chain"]])
    rows = measured(tmp_path, ("peers",)).rows.values()
    assert {row.status for row in rows} == {MEASURED}
    assert {"tailsum", "torch-struct"} <= {row.library for row in rows}
    assert all(row.error <= row.tolerance and row.seconds > 0 for row in rows)


def test_long_peers_are_skipped(tmp_path):
    before = [replace(chain_row(Sizes(2, 5, 2), what), subject="linear chain") for what in (FORWARD, BOTH, BEST)]
    theirs = [replace(row, library="torch-struct", fastest=10.0) for row in before]
    results = Results(tmp_path / "r.csv", theirs)
    runner = run.Runner(run.Settings(tmp_path, CPU, TINY, ("peers",), 60.0), results, Budget(60.0, ["peers"]))
    rows = runner.peer(SMALL["chain"], "torch-struct")
    assert [(row.status, row.seconds) for row in rows] == [(SKIPPED, 80.0)] * 3  # its time grows with N cubed


def test_a_peer_that_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "installed", lambda library: library == "tailsum")
    assert peers.problems(CPU) == []
    settings = run.Settings(tmp_path, CPU, TINY, ("peers",), 60.0)
    with (console := Console()).capture() as said:
        assert run.bench(settings, console).rows == {}
    assert "No other library is installed (torch-struct, pytorch-crf, hmmlearn," in " ".join(said.get().split())
    monkeypatch.setattr(peers, "installed", lambda library: library in {"tailsum", "supar"})
    names = {name for problem in peers.problems(CPU) for name in problem.libraries}
    assert names == {"tailsum", "supar"}


def test_a_peer_that_refuses(tmp_path):
    (problem, *_) = (p for p in peers.problems(CPU, quick=True) if p.name == "linear chain")

    def refuse(*_):
        raise AttributeError("no such distribution")

    library = next(name for name in problem.libraries if name != "tailsum")
    broken = replace(problem.libraries[library], solve=refuse)
    problem = replace(problem, libraries={**problem.libraries, library: broken})
    runner = run.Runner(
        run.Settings(tmp_path, CPU, TINY, ("peers",), 60.0), Results(tmp_path / "r.csv"), Budget(60.0, ["peers"])
    )
    assert {(row.status, row.note) for row in runner.peer(problem, library)} == {(FAILED, "no such distribution")}


def test_measuring_needs_no_packages_of_the_page():
    code = """
import sys
sys.modules.update(dict.fromkeys(("pandas", "jinja2", "matplotlib")))  # an import of them fails
import tailsum_studies.bench.run
print("ok")
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "ok\n"


def test_tables_beyond_the_budget_are_not_counted(tmp_path):
    results = Results(tmp_path / "r.csv", [replace(chain_row(Sizes(30_000, 20, 8), BOTH), peak_bytes=8 << 30)])
    assert (
        predict(results, Sizes(300_000, 20, 8), BOTH, "cuda").peak_bytes < 8 << 30
    )  # it streams, at 100 times the pairs
    assert predict(results, Sizes(30_000, 20, 8), BOTH, "cuda").peak_bytes == 8 << 30


def test_large_sums_are_checked_on_fewer_positions(monkeypatch):
    made = chains.embeddings(Sizes(60, 5, 2), CPU)
    assert chains.exact_error(made)[1:] == ("float64", chains.EXACT_TOLERANCE)
    monkeypatch.setitem(chains.PAIRS, "cpu", 2 * 60.0**2)
    error, *rest = chains.exact_error(made)
    assert rest == ["float64, 3 positions", chains.EXACT_TOLERANCE]
    assert error < 1e-4
    monkeypatch.setitem(chains.PAIRS, "cpu", 60.0**2 / 100)
    monkeypatch.setattr(chains, "plain_log_partition", None)
    error, *rest = chains.exact_error(made)
    assert rest == ["sketch, 2 positions", chains.SKETCH_TOLERANCE]
    assert error < 1e-4  # with more states kept than there are, it is exact
