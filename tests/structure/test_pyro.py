"""Structures as distributions of Pyro."""

import pytest
import torch

import tailsum as ts

ts.LinearChain  # Pyro may be loaded after the structures  # noqa: B018
pyro = pytest.importorskip("pyro")
from pyro import distributions as dist  # noqa: E402
from pyro.infer import SVI, Importance, Predictive, Trace_ELBO, TraceGraph_ELBO  # noqa: E402

MEANS = torch.tensor([-2.0, 0.0, 2.0])
TRANSITION = torch.tensor([[1.0, 0.0, -1.0], [0.0, 1.0, 0.0], [-1.0, 0.0, 1.0]])
DATA = torch.tensor([[-2.1, 0.1, 2.0, 1.9], [2.0, 2.0, -1.0, 0.0]])


@pytest.fixture(autouse=True)
def _fresh():
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    with pyro.validation_enabled():
        yield


def model(data):
    with pyro.plate("sequences", len(data)):
        states = pyro.sample("states", ts.LinearChain(torch.zeros(4, 3), TRANSITION))
        pyro.sample("data", dist.Normal(MEANS[states], 1.0).to_event(1), obs=data)
    return states


def guide(data):
    emission = pyro.param("emission", torch.zeros(2, 4, 3))
    with pyro.plate("sequences", len(data)):
        pyro.sample("states", ts.LinearChain(emission, TRANSITION))


def evidence():
    scores = dist.Normal(MEANS, 1.0).log_prob(DATA[..., None])
    prior = ts.LinearChain(torch.zeros(4, 3), TRANSITION)
    return (ts.LinearChain(scores, TRANSITION).log_partition() - prior.log_partition()).sum()


def test_a_plate_broadcasts_a_chain():
    assert model(DATA).shape == (2, 4)
    trace = pyro.poutine.trace(model).get_trace(DATA)
    states = trace.nodes["states"]["value"]
    prior = ts.LinearChain(torch.zeros(4, 3), TRANSITION).log_prob(states).sum()
    likelihood = dist.Normal(MEANS[states], 1.0).log_prob(DATA).sum()
    torch.testing.assert_close(trace.log_prob_sum(), prior + likelihood)


def test_variational_inference_finds_the_posterior():
    elbo = Trace_ELBO(num_particles=20, vectorize_particles=True, max_plate_nesting=1)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.2}), elbo)
    losses = [svi.step(DATA) for _ in range(60)]
    assert sum(losses[:5]) / 5 > -evidence() + 5
    assert abs(sum(losses[-10:]) / 10 + evidence()) < 1.5
    posterior = ts.LinearChain(dist.Normal(MEANS, 1.0).log_prob(DATA[..., None]), TRANSITION)
    result = ts.LinearChain(pyro.param("emission").detach(), TRANSITION)
    assert (result.marginals() - posterior.marginals()).abs().mean() < 0.1


@pytest.mark.usefixtures("unchecked")  # Pyro passes tensors whose shape is a tuple
def test_baselines_by_the_graph_of_dependencies():
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.5}), TraceGraph_ELBO())
    losses = [svi.step(DATA) for _ in range(20)]
    assert sum(losses[-5:]) < sum(losses[:5])


def test_importance_sampling_estimates_the_evidence():
    scores = dist.Normal(MEANS, 1.0).log_prob(DATA[..., None])
    pyro.param("emission", 0.9 * scores)
    sampler = Importance(model, guide, num_samples=100).run(DATA)
    assert abs(sampler.get_log_normalizer() - evidence()) < 0.3
    assert Predictive(model, guide=guide, num_samples=3)(DATA)["states"].shape == (3, 2, 4)


def test_given_states_are_learned_from():
    states = torch.tensor([0, 1, 2, 2])

    def given():
        pyro.sample("z", ts.LinearChain(pyro.param("scores", torch.zeros(4, 3)), TRANSITION), obs=states)

    svi = SVI(given, lambda: None, pyro.optim.Adam({"lr": 0.2}), Trace_ELBO())
    losses = [svi.step() for _ in range(30)]
    assert losses[-1] < 0.3 * losses[0]


def test_methods_of_pyro_distributions():
    chain = ts.LinearChain(torch.randn(2, 4, 3), TRANSITION)
    states = chain()
    assert states.shape == chain.shape() == (2, 4)
    assert chain.event_dim == 1
    assert chain.expand_by((5,)).batch_shape == (5, 2)
    log_prob = chain.log_prob(states)
    assert torch.equal(chain.to_event(1).log_prob(states), log_prob.sum())
    masked = chain.mask(torch.tensor([True, False])).log_prob(states)
    assert torch.equal(masked, torch.stack((log_prob[0], torch.tensor(0.0))))
    assert torch.equal(chain.score_parts(states).score_function, log_prob)


CONFIGURATIONS = {
    "segments": lambda: ts.SemiMarkov(torch.randn(2, 4, 3, 3), TRANSITION),
    "trees": lambda: ts.SpanTree(torch.randn(2, 4, 4, 3)),
    "dependencies": lambda: ts.DependencyTree(torch.randn(2, 4, 4)),
}


@pytest.mark.parametrize("make", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_configurations_that_are_not_tensors(make):
    structure = make()

    def program(given=None):
        with pyro.plate("sequences", 2):
            return pyro.sample("z", structure, obs=given)

    given = program()
    trace = pyro.poutine.trace(program).get_trace(given)
    torch.testing.assert_close(trace.log_prob_sum(), structure.log_prob(given).sum())
    assert SVI(program, program, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO()).evaluate_loss() == 0.0
