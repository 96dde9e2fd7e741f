"""Models in the UAI file format: equal to sums over all configurations in explicit loops; every wrong word is an error
that names the file and what is wrong."""

import itertools
import math
import re

import numpy as np
import pytest
import torch

import tailsum as ts
from tailsum.numerics.memory import PeakMemory

EXACT = {"rtol": 0, "atol": 1e-10}


def close(found, expected):
    torch.testing.assert_close(found, torch.as_tensor(np.asarray(expected)), **EXACT)


@pytest.fixture
def write(tmp_path):
    """Writes a file, and gives its path."""

    def written(text, name="model.uai"):
        path = tmp_path / name
        path.write_bytes(text) if isinstance(text, bytes) else path.write_text(text, encoding="utf-8")
        return path

    return written


def text_of(sizes, factors, kind="MARKOV"):
    """A file's text: factors are `(variables, table)`, the table's last axis fastest."""
    lines = [kind, str(len(sizes)), " ".join(map(str, sizes)), str(len(factors))]
    lines += [" ".join(map(str, (len(scope), *scope))) for scope, _ in factors]
    for _, table in factors:
        numbers = np.asarray(table).flatten()
        lines += ["", str(len(numbers)), " ".join(map(repr, numbers.tolist()))]
    return "\n".join(lines) + "\n"


def products(sizes, factors, evidence=None):
    """The product of the tables at every configuration that agrees with the evidence."""
    found = {}
    for x in itertools.product(*map(range, sizes)):
        if any(x[v] != state for v, state in (evidence or {}).items()):
            continue
        value = 1.0
        for scope, table in factors:
            value *= table[tuple(x[v] for v in scope)] if scope else float(table)
        found[x] = value
    return found


def agrees(model, sizes, factors, evidence=None):
    values = products(sizes, factors, evidence)
    total = sum(values.values())
    close(model.log_partition(), math.log(total))
    marginals = np.zeros((len(sizes), max(sizes)))
    for x, value in values.items():
        for v, state in enumerate(x):
            marginals[v, state] += value / total
    close(model.marginals(), marginals)
    scores = model.score(torch.tensor(list(values)))
    close(scores.exp(), np.array(list(values.values())))


SIZES = [2, 3, 4, 2, 1]


def tables(scopes, sizes=SIZES, seed=0, zeros=0.0):
    random = np.random.default_rng(seed)
    made = []
    for scope in scopes:
        table = random.random([sizes[v] for v in scope]) + 0.1
        never = np.array(random.random(table.shape) < zeros)
        never[(0,) * len(scope)] = False  # one configuration stays possible
        made.append((scope, np.where(never, 0.0, table)))
    return made


FORESTS = {
    "pairs": [(0, 1), (1, 2), (2, 3), (3, 4)],
    "pairs the other way": [(1, 0), (2, 1), (3, 2), (4, 3)],
    "a triple": [(2, 0, 1), (3, 2), (4, 3)],
    "a triple in order": [(0, 1, 2), (2, 3)],
    "four at once": [(3, 0, 2, 1)],
    "one at once": [(2,), (0,), (4,)],
    "pairs and ones": [(1, 0), (2,), (0,), (3, 1), (1,)],
    "repeated ones": [(1,), (1,), (0, 1), (1,)],
    "repeated pairs": [(0, 1), (1, 0), (0, 1)],
    "repeated triples": [(0, 1, 2), (2, 0, 1), (1, 0, 2)],
    "constants": [(), (0, 1), (), (2, 3)],
    "nothing": [],
    "all alike": [(1, 3), (3, 0)],
}


@pytest.mark.parametrize("kind", ["MARKOV", "BAYES", "markov"])
@pytest.mark.parametrize("name", FORESTS)
def test_models_equal_products_in_explicit_loops(name, kind, write):
    factors = tables(FORESTS[name])
    model = ts.read_uai(write(text_of(SIZES, factors, kind)))
    assert isinstance(model, ts.FactorGraph)
    assert model.is_forest
    assert model.dtype == torch.float64
    agrees(model, SIZES, factors)


@pytest.mark.parametrize("name", FORESTS)
def test_zeros_are_forbidden(name, write):
    factors = tables(FORESTS[name], seed=2, zeros=0.25)
    assert not FORESTS[name] or 0.0 in np.concatenate([table.flatten() for _, table in factors])
    agrees(ts.read_uai(write(text_of(SIZES, factors))), SIZES, factors)


def test_a_model_in_which_nothing_is_possible(write):
    model = ts.read_uai(write("MARKOV\n2\n2 2\n1\n2 0 1\n4\n0 0 0.0 0\n"))
    assert model.log_partition() == -math.inf


def test_a_constant_of_zero(write):
    model = ts.read_uai(write("MARKOV\n1\n2\n1\n0\n1\n0.0\n"))
    assert model.log_partition() == -math.inf


@pytest.mark.parametrize("scopes", [[(0, 1), (2, 1), (0, 2)], [(2, 1, 0), (3, 2), (0, 3)]])
def test_models_with_loops_score_as_products(scopes, write):
    factors = tables(scopes)
    model = ts.read_uai(write(text_of(SIZES, factors)))
    assert not model.is_forest
    values = products(SIZES, factors)
    close(model.score(torch.tensor(list(values))).exp(), np.array(list(values.values())))


def test_repeated_scopes_become_one_factor(write):
    factors = tables([(0, 1), (1, 0), (1, 2, 3), (3, 1, 2)])
    assert sum(map(len, ts.read_uai(write(text_of(SIZES, factors))).variables)) == 2


def test_scopes_within_others_are_absorbed(write):
    factors = tables([(0, 1), (1, 0), (1, 2, 0), (0, 1, 2)])
    model = ts.read_uai(write(text_of(SIZES, factors)))
    assert sum(map(len, model.variables)) == 1
    agrees(model, SIZES, factors)


def test_a_model_with_loops_is_exact(write):
    factors = tables([(0, 1), (2, 1), (0, 2), (3, 2), (0, 3)], zeros=0.2)
    model = ts.read_uai(write(text_of(SIZES, factors)))
    assert not model.is_forest
    agrees(model, SIZES, factors)


@pytest.mark.parametrize("separator", [" ", "\n", "\r\n", "\t", "  \n\n ", " \t\r\n"])
def test_line_breaks_are_free(separator, write):
    factors = tables([(2, 0, 1), (3, 2), (0,)])
    words = text_of(SIZES, factors).split()
    agrees(ts.read_uai(write(separator.join(["", *words, ""]).encode())), SIZES, factors)


def test_numbers_in_all_forms(write):
    model = ts.read_uai(write("MARKOV 2 2 2 1 2 0 1 4 1 2.5E-1 .5 1e+2"))
    assert model.score(torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])).exp().tolist() == pytest.approx(
        [1, 0.25, 0.5, 100]
    )


def test_very_small_numbers_stay_possible(write):
    model = ts.read_uai(write("MARKOV 1 2 2 1 0 1 0 2 1e-300 0 2 1e-300 1"))
    close(model.log_partition(), -600 * math.log(10))


@pytest.mark.parametrize(("word", "log"), [("1e-400", -400), ("1e999", 999), ("2.5E+1", math.log10(25))])
def test_numbers_beyond_the_range_of_floats(word, log, write):
    graph = ts.read_uai(write(f"\ufeffMARKOV\n1\n1\n1\n1 0\n1 {word}"))
    close(graph.log_partition(), log * math.log(10))


def test_options_go_to_the_graph(write):
    path = write(text_of(SIZES, tables([(0, 1), (1, 2)])))
    model = ts.read_uai(path, dtype=torch.float32, iterations=7, damping=0.25, schedule="flooding", gradient="unrolled")
    assert model.dtype == torch.float32
    assert (model.iterations, model.damping, model.schedule, model.gradient) == (7, 0.25, "flooding", "unrolled")
    with pytest.raises(ValueError, match="iterations must be a whole number of at least 1: got 0"):
        ts.read_uai(path, iterations=0)


def test_paths_may_be_strings(write):
    factors = tables([(0, 1)])
    path, evidence = write(text_of(SIZES, factors)), write("1 1 2", "model.uai.evid")
    agrees(ts.read_uai(str(path), str(evidence)), SIZES, factors, {1: 2})


# Evidence.

EVIDENCE = {
    "none": ("0", {}),
    "one": ("1 2 3", {2: 3}),
    "two": ("2 2 3 0 1", {2: 3, 0: 1}),
    "lines": ("2\n2 3\n0 1\n", {2: 3, 0: 1}),
    "all": ("5 0 0 1 1 2 2 3 1 4 0", {0: 0, 1: 1, 2: 2, 3: 1, 4: 0}),
    "twice the same": ("2 1 1 1 1", {1: 1}),
    "older, none": ("1\n0", {}),
    "older, one": ("1\n1 2 3\n", {2: 3}),
    "older, two": ("1\n2 2 3 0 1", {2: 3, 0: 1}),
    "older, in one line": ("1 3 2 3 0 1 1 0", {2: 3, 0: 1, 1: 0}),
}


@pytest.mark.parametrize("scopes", [FORESTS["pairs"], FORESTS["a triple"], FORESTS["pairs and ones"]])
@pytest.mark.parametrize("name", EVIDENCE)
def test_evidence_in_both_forms(name, scopes, write):
    text, observed = EVIDENCE[name]
    factors = tables(scopes, seed=1)
    model = ts.read_uai(write(text_of(SIZES, factors)), write(text, "model.uai.evid"))
    agrees(model, SIZES, factors, observed)
    for v, state in observed.items():
        close(model.marginals()[v, state], 1.0)


def test_observed_variables_keep_their_numbers_in_samples_and_argmax(write, generator):
    factors = tables(FORESTS["pairs"])
    model = ts.read_uai(write(text_of(SIZES, factors)), write("2 1 2 2 1", "e"))
    assert model.sample((50,), generator=generator)[:, 1:3].unique(dim=0).tolist() == [[2, 1]]
    values = products(SIZES, factors, {1: 2, 2: 1})
    assert tuple(model.argmax().tolist()) == max(values, key=values.get)


RAIN = np.array([0.8, 0.2])
SPRINKLER = np.array([[0.6, 0.4], [0.99, 0.01]])  # [rain, sprinkler]
GRASS = np.array([[[1.0, 0.0], [0.2, 0.8]], [[0.1, 0.9], [0.01, 0.99]]])  # [sprinkler, rain, wet]


def bayes_net():
    return text_of([2, 2, 2], [((0,), RAIN), ((0, 1), SPRINKLER), ((1, 0, 2), GRASS)], "BAYES")


@pytest.mark.parametrize(
    ("evidence", "probability"),
    [
        ("0", 1.0),
        ("1 0 1", 0.2),
        ("1 1 1", 0.8 * 0.4 + 0.2 * 0.01),
        ("1 2 1", 0.8 * (0.6 * 0.0 + 0.4 * 0.9) + 0.2 * (0.99 * 0.8 + 0.01 * 0.99)),
        ("2 0 1 2 1", 0.2 * (0.99 * 0.8 + 0.01 * 0.99)),
        ("3 0 0 1 1 2 0", 0.8 * 0.4 * 0.1),
        ("3 0 0 1 0 2 1", 0.0),
    ],
)
def test_evidence_probability_of_a_bayes_net_by_the_product_rule(evidence, probability, write):
    """The sprinkler's table is multiplied into that of the grass: apart they form a loop."""
    sizes, factors = [2, 2, 2], [((0,), RAIN), ((1, 0, 2), SPRINKLER.T[:, :, None] * GRASS)]
    path = write(text_of(sizes, factors, "BAYES"))
    found = ts.read_uai(path, write(evidence, "model.uai.evid")).log_partition()
    torch.testing.assert_close(found.exp().item(), probability, **EXACT)


def test_evidence_of_all_variables_is_exact_also_with_loops(write):
    factors = tables([(0, 1), (2, 1), (0, 2)])
    model = write(text_of(SIZES, factors), "loop.uai")
    given = write("5 0 1 1 2 2 3 3 0 4 0", "loop.uai.evid")
    for method in ("exact", "propagation"):
        whole = ts.read_uai(model, given, method=method)
        assert not whole.is_forest
        (value,) = products(SIZES, factors, {0: 1, 1: 2, 2: 3, 3: 0, 4: 0}).values()
        close(whole.log_partition(), math.log(value))
    path = write(bayes_net())
    found = ts.read_uai(path, write("3 0 0 1 1 2 0", "model.uai.evid")).log_partition()
    torch.testing.assert_close(found.exp().item(), 0.8 * 0.4 * 0.1, **EXACT)


def test_scores_of_a_bayes_net_are_the_product_rule(write):
    model = ts.read_uai(write(bayes_net()))
    for r, s, w in itertools.product(range(2), repeat=3):
        expected = RAIN[r] * SPRINKLER[r, s] * GRASS[s, r, w]
        torch.testing.assert_close(model.score(torch.tensor([r, s, w])).exp().item(), expected, **EXACT)


def test_evidence_probability_of_a_chain_of_conditional_tables(write):
    random = np.random.default_rng(3)
    sizes = [3, 2, 4]
    first = random.dirichlet(np.ones(3))
    second, third = random.dirichlet(np.ones(2), size=3), random.dirichlet(np.ones(4), size=2)
    path = write(text_of(sizes, [((0,), first), ((0, 1), second), ((1, 2), third)], "BAYES"))
    torch.testing.assert_close(ts.read_uai(path).log_partition().item(), 0.0, **EXACT)
    for state in range(4):
        expected = sum(first[a] * second[a, b] * third[b, state] for a in range(3) for b in range(2))
        found = ts.read_uai(path, write(f"1 2 {state}", "e")).log_partition()
        torch.testing.assert_close(found.exp().item(), expected, **EXACT)


# Malformed files.


def fails(path, words, evidence=None):
    """An error that names the file that is wrong."""
    wrong = path if evidence is None else evidence
    with pytest.raises(ValueError, match=words) as caught:
        ts.read_uai(path, evidence)
    assert str(wrong) in str(caught.value)


SMALL = "MARKOV 3 2 3 1 4 2 1 0 1 2 0 3 0 2 1 6 0.1 0.2 0.3 0.4 0.5 0.6 1 0.5 1 7 6 1 2 3 4 5 6"


def test_the_small_file_is_in_order(write):
    assert ts.read_uai(write(SMALL)).log_partition().isfinite()


@pytest.mark.parametrize("count", range(len(SMALL.split())))
def test_a_file_cut_after_any_word(count, write):
    path = write(" ".join(SMALL.split()[:count]))
    fails(path, f"{re.escape(str(path))} must go on with .*: got the end of the file")


@pytest.mark.parametrize("text", ["", " \n\n", "\n"])
def test_an_empty_file(text, write):
    fails(write(text), "must go on with MARKOV or BAYES: got the end of the file")


def changed(place, word):
    words = SMALL.split()
    words[place] = word
    return " ".join(words)


NO_COUNT = ["-1", "1.5", "x", "2.0", "1e0", "nan", "inf", "", "--1", "+-1", "-", "+", "\u00b2", "1_0", "0x1"]


@pytest.mark.parametrize(
    ("place", "what"),
    [
        (1, "the number of variables"),
        (2, "a number of states"),
        (5, "the number of factors"),
        (6, "the number of variables of a factor"),
        (7, "a factor's variable"),
        (16, "the size of a table"),
    ],
)
@pytest.mark.parametrize("word", [word for word in NO_COUNT if word])
def test_words_that_are_no_counts(place, what, word, write):
    fails(write(changed(place, word)), rf", line 1: {what} must be a whole number, .*: got '{re.escape(word)}'")


@pytest.mark.parametrize(
    ("place", "word", "words"),
    [
        (0, "CSP", "must begin with MARKOV or BAYES: got 'CSP'"),
        (0, "3", "must begin with MARKOV or BAYES: got '3'"),
        (0, "MARKOVIAN", "must begin with MARKOV or BAYES: got 'MARKOVIAN'"),
        (1, "0", "the number of variables must be a whole number, at least 1: got '0'"),
        (2, "0", "a number of states must be a whole number, at least 1: got '0'"),
        (7, "3", "a factor's variable must be a whole number, 0 to 2: got '3'"),
        (7, "99", "a factor's variable must be a whole number, 0 to 2: got '99'"),
        (8, "1", r"must have factors over different variables: got \[1, 1\]"),
        (14, "0", r"must have factors over different variables: got \[0, 0"),
        (16, "5", r"must have a table of 6 numbers over variables \[1, 0\]: got 5"),
        (16, "7", r"must have a table of 6 numbers over variables \[1, 0\]: got 7"),
        (16, "0", r"must have a table of 6 numbers over variables \[1, 0\]: got 0"),
        (23, "2", r"must have a table of 1 numbers over variables \[2\]: got 2"),
        (25, "0", r"must have a table of 1 numbers over variables \[\]: got 0"),
        (27, "999999999999", r"must have a table of 6 numbers over variables \[0, 2, 1\]: got 999999999999"),
    ],
)
def test_a_wrong_word(place, word, words, write):
    fails(write(changed(place, word)), words)


@pytest.mark.parametrize("place", [17, 22, 24, 26, 33])
@pytest.mark.parametrize(
    "word", ["-0.5", "-1e-9", "nan", "NaN", "inf", "+inf", "-inf", "x", "0.5.5", "1,5", "None", "1_0"]
)
def test_wrong_numbers_of_tables(place, word, write):
    fails(write(changed(place, word)), f", line 1: tables must hold numbers from 0 up: got '{re.escape(word)}'")


def test_errors_tell_the_line(write):
    fails(write("MARKOV\n2\n2 2\n1\n2 0 1\n\n4\n1 1\n1 -3"), "line 9: tables must hold numbers from 0 up: got '-3'")


@pytest.mark.parametrize("more", [" 1", "\nMARKOV", " x"])
def test_words_after_the_end(more, write):
    fails(write(SMALL + more), rf"line \d: the model ends here: got '{more.strip()}' after it")


@pytest.mark.parametrize("sizes", ["1 1000000000000", "2 3 1000000000000", f"1 1{'0' * 5000}"])
def test_huge_numbers_of_states_that_no_table_has_fail_before_they_are_allocated(sizes, write):
    with PeakMemory() as memory:
        fails(write(f"MARKOV {sizes} 0"), "states")
    assert memory.peak == 0


def test_many_variables_by_many_states_fail_before_they_are_allocated(write):
    """The table of all of them would have a million times as many numbers as the file."""
    text = f"MARKOV 30000 {'1 ' * 29999} 1000000 0"
    fails(write(text), r"30003 words .*: got 1000000 states of variable 29999, with 30000 variables")


def test_a_variable_without_factors_may_have_more_states_than_the_file_has_words(write):
    close(ts.read_uai(write("MARKOV 1 1000 0")).log_partition(), math.log(1000))


@pytest.mark.parametrize("word", ["1e99999999999999999999", "1e-99999999999999999999", "0e99999999999999999999"])
def test_exponents_beyond_all_numbers(word, write):
    fails(write(f"MARKOV 1 1 1 1 0 1 {word}"), f", line 1: tables must hold numbers from 0 up: got '{word}'")


def test_huge_counts_fail_at_once(write):
    fails(write("MARKOV 1000000000000000000000 2 2"), "must go on with a number of states: got the end of the file")
    fails(write("MARKOV 1 2 1000000000000000000000 0"), "must go on with the number of variables of a factor")


@pytest.mark.parametrize("content", [bytes(range(256)), b"\xff\xfe\x00\x01", b"MARKOV 1 2 1 1 0 2 1 \xe9"])
def test_binary_files(content, write):
    fails(write(content), "must be a text file: got something else")


def test_a_file_of_zero_bytes(write):
    fails(write(b"\0" * 64), "must begin with MARKOV or BAYES")


def test_missing_files(write, tmp_path):
    with pytest.raises(FileNotFoundError):
        ts.read_uai(tmp_path / "none.uai")
    with pytest.raises(FileNotFoundError):
        ts.read_uai(write(SMALL), tmp_path / "none.evid")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must go on with the number of observations: got the end of the file"),
        ("x", "the number of observations must be a whole number, at least 0: got 'x'"),
        ("-1", "the number of observations must be a whole number, at least 0: got '-1'"),
        ("1.5 0 0", "the number of observations must be a whole number, at least 0: got '1.5'"),
        ("1", "must hold 1 pairs of a variable and its state: got 0 numbers"),
        ("2 0 1", "must hold 2 pairs of a variable and its state: got 2 numbers"),
        ("2 0 1 1", "must hold 2 pairs of a variable and its state: got 3 numbers"),
        ("0 0 1", "must hold 0 pairs of a variable and its state: got 2 numbers"),
        ("3 0 1 1 1", "must hold 3 pairs of a variable and its state: got 4 numbers"),
        ("1 2 0 1", "must go on with .*: got the end of the file"),
        ("1 1 0 1 5", "ends here: got '5' after it"),
        ("1 -2 0 1", "the number of observations must be a whole number, at least 0: got '-2'"),
        ("1 3 0", "an observed variable must be a whole number, 0 to 2: got '3'"),
        ("1 -1 0", "an observed variable must be a whole number, 0 to 2: got '-1'"),
        ("1 x 0", "an observed variable must be a whole number, 0 to 2: got 'x'"),
        ("1 0 2", "the state of variable 0 must be a whole number, 0 to 1: got '2'"),
        ("1 1 3", "the state of variable 1 must be a whole number, 0 to 2: got '3'"),
        ("1 2 1", "the state of variable 2 must be a whole number, 0 to 0: got '1'"),
        ("1 0 -1", "the state of variable 0 must be a whole number, 0 to 1: got '-1'"),
        ("1 0 0.5", "the state of variable 0 must be a whole number, 0 to 1: got '0.5'"),
        ("2 0 0 0 1", "must give each variable one state: got 0 and 1 for 0"),
        ("1\n2 1 0 1 2", "must give each variable one state: got 0 and 2 for 1"),
        (b"\xff\xfe", "must be a text file: got something else"),
    ],
)
def test_wrong_evidence(text, words, write):
    fails(write(SMALL), words, write(text, "wrong.evid"))


@pytest.mark.parametrize(("text", "fine"), [("2 0 1 1 2", None), ("1\n2 0 1 1 2", 3)])
def test_evidence_cut_after_any_word(text, fine, write):
    """But for one place, where it is in order by the other form."""
    words = text.split()
    model = write(SMALL)
    for count in set(range(len(words))) - {fine}:
        fails(model, "must go on with|must hold", write(" ".join(words[:count]), "cut.evid"))
