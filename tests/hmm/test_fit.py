"""Fitting: by EM, by batches, by gradients; priors and constraints; interrupted and resumed."""

import math

import pytest
import torch
import torch.distributed as dist

import tailsum as ts
from tailsum.hmm import Categorical, Embedded, Entries, Fit, HiddenMarkov, Scores, left_to_right

N, V = 3, 5


@pytest.fixture(autouse=True)
def _double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def data():
    """Sequences of a model whose states last and have a symbol of their own."""
    stay = (torch.eye(N) * 0.8 + 0.2 / N).log()
    says = torch.cat((torch.eye(N) * 0.7, torch.full((N, V - N), 0.0)), -1) + 0.06
    model = HiddenMarkov(N, Categorical(V, logits=says.log()), transition=stay)
    return model.sample(30, 40, torch.Generator().manual_seed(0)).data


def table(model):
    return model.transition_table().detach().exp()


@pytest.mark.parametrize(
    "transition",
    [
        lambda: None,
        lambda: left_to_right(N, 1, prior=1.3),
        lambda: Entries(ts.Dense(torch.zeros(N, N)), prior=1.5, sticky=4.0),
    ],
    ids=["full", "left to right", "sticky"],
)
def test_a_step_never_goes_down(transition, data):
    model = HiddenMarkov(N, Categorical(V, prior=1.2), transition=transition(), initial_prior=2.0)
    course = model.fit(data, steps=25, tolerance=1e-9).fitted
    gains = torch.tensor(course.log_likelihoods).diff()
    assert (gains > -1e-9).all()
    assert gains[0] > 1.0


def test_the_model_that_made_the_data_is_found(data):
    model = HiddenMarkov(N, Categorical(V)).fit(data, steps=200, restarts=5, generator=torch.Generator().manual_seed(3))
    order = model.emission.logits.argmax(-1).argsort()
    assert (table(model)[order][:, order].diagonal() - (0.8 + 0.2 / N)).abs().max() < 0.08
    assert model.fitted.converged


def test_counts_add_up(data):
    model = HiddenMarkov(N, Categorical(V))
    whole, parts = model.counts(data), model.counts(data[:7]) + model.counts(data[7:])
    for one, other in zip(whole.tensors(), parts.tensors(), strict=True):
        torch.testing.assert_close(one, other)
    assert whole.transition[0].sum().item() == pytest.approx(30 * 39)
    assert whole.initial.sum().item() == pytest.approx(30)
    assert whole.emission[0].sum().item() == pytest.approx(30 * 40)
    torch.testing.assert_close((whole * 2.0).initial, whole.initial + whole.initial)


def test_batches_of_one_step_are_the_step(data):
    first, second = (HiddenMarkov(N, Categorical(V)) for _ in range(2))
    second.load_state_dict(first.state_dict())
    lengths = torch.randint(1, 41, (30,))
    first.fit(data, lengths, start="keep", steps=3)
    second.fit(data, lengths, start="keep", steps=3, batch_size=4)
    torch.testing.assert_close(table(first), table(second))
    assert first.fitted.log_likelihoods == pytest.approx(second.fitted.log_likelihoods)


def test_priors_are_counts(data):
    model = HiddenMarkov(
        N, Categorical(V, prior=3.0), transition=Entries(ts.Dense(torch.zeros(N, N)), prior=2.0, sticky=5.0)
    )
    counts = model.counts(data)
    model.maximise(counts)
    expected = counts.transition[0] + 1.0 + 5.0 * torch.eye(N)
    torch.testing.assert_close(table(model), expected / expected.sum(-1, keepdim=True))
    expected = counts.emission[0] + 2.0
    torch.testing.assert_close(model.emission.logits.softmax(-1).detach(), expected / expected.sum(-1, keepdim=True))


def test_forbidden_moves_and_symbols_stay_forbidden(data):
    says, moves = torch.zeros(N, V), torch.zeros(N, N)
    says[0, 4] = moves[0, 2] = moves[2, 2] = -math.inf
    starts = torch.tensor([0.0, -math.inf, 0.0])
    model = HiddenMarkov(N, Categorical(V, logits=says), transition=moves, initial=starts).fit(data, steps=5)
    assert ((table(model) > 0) == (moves > -math.inf)).all()
    assert ((model.emission.logits > -math.inf) == (says > -math.inf)).all()
    assert model.initial_logits[1] == -math.inf
    assert model.n_free == 1 + (2 * 2 + 3 - 3) + (N * (V - 1) - 1)


def test_tied_rows_are_equal(data):
    model = HiddenMarkov(N, Categorical(V), transition=Entries(ts.Dense(torch.zeros(N, N)), tied=[0, 1, 0]))
    model.fit(data, steps=4)
    assert (table(model)[0] == table(model)[2]).all()
    assert (table(model)[0] != table(model)[1]).any()
    assert model.n_free == 2 + 2 * 2 + N * (V - 1)
    gains = torch.tensor(model.fitted.log_likelihoods).diff()
    assert (gains > 0).all()


def test_states_that_nothing_visits_stay_as_they_are():
    model = HiddenMarkov(2, Categorical(2), initial=torch.tensor([0.0, -math.inf]), transition=torch.eye(2).log())
    before = model.emission.logits[1].clone()
    model.fit(torch.tensor([0, 1, 1]), start="keep", steps=2)
    assert (model.emission.logits[1] == before).all()
    assert table(model).tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert math.isfinite(model.score(torch.tensor([0, 1])))


def test_known_states_are_counted():
    symbols, states = torch.tensor([[0, 1, 2, 0], [2, 2, 1, -1]]), torch.tensor([[0, 1, 2, 0], [2, 2, 1, 1]])
    model = HiddenMarkov(N, Categorical(3)).fit(symbols, states=states)
    assert (model.emission.logits.argmax(-1) == torch.arange(3)).all()
    assert table(model)[2].tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3])
    assert table(model)[1].tolist() == pytest.approx([0.0, 0.5, 0.5])
    assert model.initial.exp().tolist() == pytest.approx([0.5, 0.0, 0.5])
    assert model.smooth(symbols, states=states).argmax(-1).tolist() == states.tolist()


def test_some_known_states_help(data):
    states = torch.full(data.shape, -1)
    states[:, ::4] = torch.where(data[:, ::4] < N, data[:, ::4], -1)
    model = HiddenMarkov(N, Categorical(V)).fit(data, states=states, steps=50)
    assert (model.emission.logits.argmax(-1) == torch.arange(N)).all()


@pytest.mark.parametrize("how", [{"forget": 0.7, "batch_size": 5}, {"method": "gradient", "batch_size": 10}])
def test_fits_by_batches_come_near_the_whole_one(how, data):
    generator = torch.Generator().manual_seed(0)
    first, second = (HiddenMarkov(N, Categorical(V)) for _ in range(2))
    first.fit(data, steps=10, generator=generator)
    second.load_state_dict(first.state_dict())
    best = first.fit(data, start="keep", steps=60).score(data)
    assert second.fit(data, start="keep", steps=25, generator=generator, **how).score(data) > best - 15.0


def test_any_potential_learns_by_gradients(data):
    model = HiddenMarkov(N, Categorical(V), transition=Scores(Embedded(N, 2)))
    with pytest.raises(NotImplementedError, match="method='gradient'"):
        model.fit(data, steps=1)
    before = model.score(data)
    assert model.fit(data, method="gradient", steps=20).score(data) > before + 20.0


def test_very_many_states_learn_from_few(data):
    torch.manual_seed(0)
    n = 120
    model = HiddenMarkov(n, Categorical(V), transition=Scores(Embedded(n, 4)))
    before = model.score(data)
    model.fit(data, method="gradient", steps=6, kept=20, generator=torch.Generator().manual_seed(0))
    assert model.score(data) > before + 20.0
    with pytest.raises(ValueError, match="kept must be None for EM"):
        model.fit(data, kept=20)


@pytest.mark.parametrize("how", [{}, {"forget": 0.8, "batch_size": 8}, {"method": "gradient"}])
def test_a_fit_goes_on_where_it_was_interrupted(how, data, tmp_path):
    models = [HiddenMarkov(N, Categorical(V)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    generators = [torch.Generator().manual_seed(1) for _ in range(2)]
    models[0].fit(data, start="keep", steps=6, tolerance=0.0, generator=generators[0], **how)
    path = tmp_path / "fit.pt"
    with pytest.raises(KeyboardInterrupt):
        models[1].fit(
            data, start="keep", steps=6, tolerance=0.0, generator=generators[1], checkpoint=path, monitor=_stops, **how
        )
    assert models[1].fitted.steps == 3
    resumed = HiddenMarkov(N, Categorical(V))
    resumed.fit(data, steps=6, tolerance=0.0, generator=generators[1], checkpoint=path, **how)
    torch.testing.assert_close(table(resumed), table(models[0]))
    assert resumed.fitted.log_likelihoods == pytest.approx(models[0].fitted.log_likelihoods)


def test_a_checkpoint_of_something_else(data, tmp_path):
    path = tmp_path / "fit.pt"
    HiddenMarkov(N, Categorical(V)).fit(data, steps=1, checkpoint=path)
    with pytest.raises(ValueError, match="checkpoint must be of a fit by gradient"):
        HiddenMarkov(N, Categorical(V)).fit(data, steps=1, checkpoint=path, method="gradient")
    with pytest.raises(ValueError, match="checkpoint must be of a fit by em"):
        HiddenMarkov(N + 1, Categorical(V)).fit(data, steps=1, checkpoint=path)


def test_restarts_of_no_steps(data):
    with torch.no_grad():
        assert HiddenMarkov(N, Categorical(V)).fit(data, steps=0, restarts=2).fitted.steps == 0
        assert HiddenMarkov(N, Categorical(V)).fit(data, steps=1, method="gradient").fitted.steps == 1


def _stops(_, course):
    if course.steps == 3:
        raise KeyboardInterrupt


def test_a_monitor_may_end_a_fit(data):
    seen = []
    model = HiddenMarkov(N, Categorical(V))
    model.fit(data, steps=9, monitor=lambda model, course: seen.append(course.steps) or course.steps >= 4)
    assert seen == [0, 1, 2, 3, 4]
    assert model.fitted.steps == 4


def test_counts_of_all_ranks(data, tmp_path):
    if not dist.is_available() or dist.is_initialized():
        pytest.skip("there is a process group already")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1)
    try:
        models = [HiddenMarkov(N, Categorical(V)) for _ in range(2)]
        models[1].load_state_dict(models[0].state_dict())
        models[0].fit(data, start="keep", steps=2)
        models[1].fit(data, start="keep", steps=2, all_reduce=True)
        torch.testing.assert_close(table(models[0]), table(models[1]))
    finally:
        dist.destroy_process_group()


def _of_one_rank(rank, place, data, found):
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    dist.init_process_group("gloo", init_method=f"file://{place}/ranks", rank=rank, world_size=2)
    model = HiddenMarkov(N, Categorical(V)).fit(data[rank::2], steps=3, restarts=2, all_reduce=True, progress=False)
    torch.save((table(model), model.fitted.log_likelihoods), f"{found}/{rank}")
    dist.destroy_process_group()


def test_two_ranks_begin_and_stay_together(data, tmp_path):
    torch.multiprocessing.spawn(_of_one_rank, (tmp_path, data, tmp_path), 2)
    first, second = (torch.load(tmp_path / str(rank)) for rank in range(2))
    torch.testing.assert_close(first, second)
    assert len(first[1]) == 3


def test_a_checkpoint_that_was_cut_off(data, tmp_path):
    path = tmp_path / "fit.pt"
    HiddenMarkov(N, Categorical(V)).fit(data, steps=1, checkpoint=path)
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(ValueError, match="checkpoint must be a file that a fit wrote"):
        HiddenMarkov(N, Categorical(V)).fit(data, steps=2, checkpoint=path)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="checkpoint must be a file that a fit wrote"):
        HiddenMarkov(N, Categorical(V)).fit(data, steps=2, checkpoint=path)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"method": "viterbi"}, 'method must be "em" or "gradient"'),
        ({"start": "zero"}, 'start must be "data" or "keep"'),
        ({"steps": -1}, "steps must be"),
        ({"forget": 0.3}, "forget must be above 0.5"),
        ({"batch_size": 0}, "batch_size must be"),
    ],
)
def test_wrong_options(how, words):
    with pytest.raises(ValueError, match=words):
        Fit(**how)


def test_no_data():
    with pytest.raises(ValueError, match="data must hold an observation"):
        HiddenMarkov(2, Categorical(2)).fit(torch.zeros(0, 4, dtype=torch.long))
