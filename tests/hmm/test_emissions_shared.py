"""What every emission keeps: statistics add up, EM does not go down, gradients, missing values, draws, states never visited."""

import pytest
import torch

from harness.emissions import CASES, N, model_of
from tailsum.hmm import Emission, Mixture
from tailsum.hmm.fit import Fit

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def _double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def objective(model, given):
    return (model.chain(given).log_partition().sum() + model.log_prior()).item()


@pytest.mark.parametrize("gaps", [False, True], ids=["", "gaps"])
@pytest.mark.parametrize("start", ["keep", "data"])
def test_a_step_of_em_never_goes_down(case, start, gaps):
    model = model_of(case.make())
    given = model.sequences(case.data(4, 30), [30, 9, 22, 1])
    if gaps:  # in single features, too
        given = given._replace(
            data=given.data.where(torch.rand(given.data.shape) > 0.1, model.emission.blank(given.data))
        )
    if start == "data":
        model.start(given)
    for _ in range(8):
        before = objective(model, given)
        model.maximise(model.expected(given))
        assert objective(model, given) > before - 1e-8


def test_steps_are_optima_of_the_expected_likelihood(case):
    """No small change of the parameters fits the statistics better: the gradient of their likelihood is zero."""
    data, emission = case.data(1, 300), case.make().of(N)
    emission.start(emission.checked(data)[0], torch.Generator().manual_seed(0))
    weight = torch.randn(1, 300, N).softmax(-1)
    steps, atol = (1000, 1e-3) if isinstance(emission, Mixture) else (1, 1e-8)  # a mixture has an EM of its own
    for _ in range(steps):
        with torch.no_grad():
            emission.maximise(emission.statistics(emission.checked(data), weight))
    total = (weight * emission(emission.checked(data))).sum() + emission.log_prior()
    for x in torch.autograd.grad(total, list(emission.parameters())):
        assert x.abs().max() < atol


def test_statistics_add_up(case):
    emission = case.make().of(N)
    data = emission.checked(case.data(5, 9))
    weight = torch.rand(5, 9, N)
    whole = emission.statistics(data, weight)
    parts = [emission.statistics(data[i], weight[i]) for i in range(5)]
    for x, *few in zip(whole, *parts, strict=True):
        torch.testing.assert_close(x, sum(few))


def test_gradients(case):
    emission = case.make().of(2)
    data = emission.checked(case.data(1, 4))
    names, leaves = zip(*emission.named_parameters(), strict=True)

    def densities(*values):
        return torch.func.functional_call(emission, dict(zip(names, values, strict=True)), (data,))

    assert torch.autograd.gradcheck(densities, [x.detach().clone().requires_grad_() for x in leaves])


def test_missing_observations_say_nothing(case):
    emission = case.make().of(N)
    data = emission.checked(case.data(2, 6))
    data[:, 2] = emission.blank(data[:, 2])
    weight = torch.rand(2, 6, N)
    assert emission.missing(data).equal(torch.arange(6).eq(2).expand(2, -1))
    torch.testing.assert_close(emission(data)[:, 2], torch.zeros(2, N))
    assert emission(data)[:, emission.lags + 3 :].ne(0).all()
    if emission.lags:
        return
    kept = [0, 1, 3, 4, 5]
    for x, y in zip(
        emission.statistics(data, weight), emission.statistics(data[:, kept], weight[:, kept]), strict=True
    ):
        torch.testing.assert_close(x, y)


def test_states_never_visited_stay_as_they_are(case):
    emission = case.make().of(N)
    data = emission.checked(case.data(2, 30))
    weight = torch.rand(2, 30, N) * torch.tensor([1.0, 0.0, 1.0])
    with torch.no_grad():
        emission.maximise(emission.statistics(data, weight))
        assert all(x.isfinite().all() for x in emission.parameters())
        assert emission(data).isfinite().all()
        emission.maximise(tuple(x * 0.0 for x in emission.statistics(data, weight)))
    assert all(x.isfinite().all() for x in emission.parameters())
    assert emission.log_prior().isfinite()


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_starts_from_few_observations(case, rows):
    emission = case.make().of(N)
    data = emission.checked(case.data(1, 6))[0]
    emission.start(data[:rows], torch.Generator().manual_seed(0))
    assert emission(data).isfinite().all()
    emission.start(data[:1].repeat_interleave(8, 0), None)  # all the same
    assert emission(data).isfinite().all()


def test_starts_are_repeatable(case):
    data, made = case.data(1, 60), []
    for _ in range(2):
        emission = case.make().of(N)
        emission.start(emission.checked(data)[0], torch.Generator().manual_seed(2))
        made.append(emission.state_dict())
    for name, x in made[0].items():
        torch.testing.assert_close(x, made[1][name], rtol=0, atol=0, msg=name)


def test_draws_are_data(case):
    model = model_of(case.make())
    states = torch.randint(N, (4, 7))
    past = case.data(28, 2).unflatten(0, (4, 7)) if model.emission.lags else None
    drawn = model.emission.draw(states, torch.Generator().manual_seed(0), past)
    again = model.emission.draw(states, torch.Generator().manual_seed(0), past)
    assert drawn.equal(again)
    assert drawn.shape[:2] == states.shape
    assert model.log_likelihood(drawn).isfinite().all()
    assert model.emission.draw(torch.tensor(1)).shape == drawn.shape[2:]


def test_draws_follow_the_densities(case):
    """The gradient of the log-density has mean zero over draws: here, in standard errors over forty groups of draws."""
    emission = case.make().of(N)
    emission.start(emission.checked(case.data(1, 60))[0], torch.Generator().manual_seed(0))
    states = torch.arange(N).repeat_interleave(4000)
    past = case.data(1, emission.lags)[0].expand(len(states), -1, -1) if emission.lags else None
    drawn = emission.draw(states, torch.Generator().manual_seed(5), past)
    drawn = torch.cat((past, drawn[:, None]), 1) if emission.lags else drawn[:, None]
    names, leaves = zip(*emission.named_parameters(), strict=True)
    data = emission.checked(drawn)
    for state in range(N):

        def means(*values, few=data[states == state], state=state):
            given = dict(zip(names, values, strict=True))
            return torch.func.functional_call(emission, given, (few,))[:, -1, state].view(40, -1).mean(-1)

        for x in torch.autograd.functional.jacobian(means, leaves):
            error = x.std(0).clamp(min=1e-12) / 40**0.5
            assert (x.mean(0).abs() < 6 * error + 1e-6).all()


def test_fits_in_single_precision(case):
    torch.set_default_dtype(torch.float32)
    data, model = case.data(3, 40), model_of(case.make())
    model.fit(data, steps=3, progress=False)
    assert all(x.dtype == torch.float32 and x.isfinite().all() for x in model.parameters())


def test_learned_by_gradients(case):
    data, model = case.data(4, 12), model_of(case.make())
    course = Fit(method="gradient", steps=12, progress=False, learning_rate=0.02)
    model.fit(data, **vars(course))
    assert model.fitted.log_likelihoods[-1] > model.fitted.log_likelihoods[0]


def test_moves_between_types_and_files(case, tmp_path):
    model = model_of(case.make())
    torch.save(model.state_dict(), tmp_path / "model")
    other = model_of(case.make())
    other.load_state_dict(torch.load(tmp_path / "model", weights_only=True))
    data = case.data(1, 8)
    torch.testing.assert_close(other.log_likelihood(data), model.log_likelihood(data))
    assert model.float().log_likelihood(data).dtype == torch.float32
    assert 0 < model.n_free <= sum(x.numel() for x in model.parameters())


def test_one_base_class(case):
    assert isinstance(case.make(), Emission)
    assert case.make().event_dim == len(case.data(1, 1).shape) - 2
