"""Structures inside the transforms of `torch.func`."""

import pytest
import torch
from torch.func import grad, hessian, jvp, vmap

import tailsum as ts
from harness.agree import close
from harness.registry import possible
from harness.ways import ONE_WAY

rand = torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
EMISSION, TRANSITION = rand[:12].reshape(4, 3), rand[12:21].reshape(3, 3)
SEVERAL = rand[30:54].reshape(2, 4, 3)
GOLD = torch.tensor([0, 2, 1, 1])
SUBSET = ts.Subset(torch.tensor([0, 2]).expand(4, 2), torch.tensor([0.0, 0.5]).expand(4, 2))


def chain(emission, transition=TRANSITION):
    return ts.LinearChain(emission, transition)


VALUES = {
    "log-partition": lambda x: chain(x).log_partition(),
    "entropy": lambda x: chain(x).entropy(),
    "marginals": lambda x: chain(x).marginals().square().sum(),
    "pair marginals": lambda x: chain(x).pair_marginals().square().sum(),
    "log-probability": lambda x: chain(x).log_prob(configuration=GOLD),
    "divergence": lambda x: chain(x).kl(chain(0.5 * x, 2 * TRANSITION)),
    "sketch": lambda x: chain(x).restrict(SUBSET).entropy(),
    "factors": lambda x: chain(x, ts.Factored(x[:3], TRANSITION)).log_partition(),
    "function": lambda x: chain(x, ts.Scored(lambda i, j: x[0, i] * x[1, j], 3, 3)).log_partition(),
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_derivatives_of_a_chain(value):
    wanted = torch.autograd.functional.jacobian(value, EMISSION)
    second = torch.autograd.functional.hessian(value, EMISSION)
    close(grad(value)(EMISSION), wanted)
    close(hessian(value)(EMISSION), second)  # forward over backward, both mapped over
    close(vmap(value)(SEVERAL), torch.stack([value(x) for x in SEVERAL]))
    close(vmap(grad(value))(SEVERAL), torch.stack([torch.autograd.functional.jacobian(value, x) for x in SEVERAL]))


def test_marginals_of_rules_and_of_words():
    def of_rules(x):
        return ts.PCFG(x[0, 0, :1], x, rand[:8].reshape(4, 2)).rule_marginals().square().sum()

    def of_words(x):
        tree = ts.DependencyTree(rand[:16].reshape(4, 4), node=x, transition=TRANSITION)
        return tree.state_marginals().square().sum()

    for value, x in ((of_rules, rand[:9].reshape(1, 3, 3)), (of_words, EMISSION)):
        close(grad(value)(x), torch.autograd.functional.jacobian(value, x))
        close(jvp(value, (x,), (x,))[1], (torch.autograd.functional.jacobian(value, x) * x).sum())


@pytest.mark.parametrize(("name", "way"), ONE_WAY)
@pytest.mark.parametrize("operation", ["log_partition", "entropy"])
def test_gradients_of_each_of_several_models(name, way, operation):
    case, model = possible(name, way)

    def value(*leaves):
        result = case.model(*leaves)
        return getattr(result if model.kept is None else result.restrict(model.kept), operation)().sum()

    several = [torch.stack((x, 0.5 * x)) for x in case.leaves]
    result = vmap(grad(value, tuple(range(len(several)))))(*several)
    for i in range(2):
        leaves = [x[i].clone().requires_grad_() for x in several]
        wanted = torch.autograd.grad(value(*leaves), leaves, materialize_grads=True)
        for x, y in zip(result, wanted, strict=True):
            close(x[i], y)


def test_lengths_and_batches_inside_vmap():
    lengths = torch.tensor([[4, 2], [1, 3]])
    emission = rand[:48].reshape(2, 2, 4, 3)
    result = vmap(lambda x, n: ts.LinearChain(x, TRANSITION, n).entropy())(emission, lengths)
    close(result, ts.LinearChain(emission, TRANSITION, lengths).entropy())
    nested = vmap(vmap(lambda x: chain(x).log_partition()))(emission)
    close(nested, chain(emission).log_partition())
    paths = torch.tensor([[0, 1, 2, 0], [1, 1, 1, 1]])
    close(vmap(lambda path: chain(EMISSION).log_prob(path))(paths), chain(EMISSION).log_prob(paths))
    with pytest.raises(ValueError, match="vmap over configurations needs at least one of them"):
        vmap(lambda path: chain(EMISSION).log_prob(path))(paths[:0])


def test_gradients_of_what_is_shared_for_each_of_what_is_not():
    def value(transition, emission):
        return chain(emission, transition).entropy()

    result = vmap(grad(value), (None, 0))(TRANSITION, SEVERAL)
    close(
        result,
        torch.stack([torch.autograd.functional.jacobian(lambda t, x=x: value(t, x), TRANSITION) for x in SEVERAL]),
    )


def test_choices_inside_grad_have_no_gradient():
    def surprise(x):
        model = chain(x).sketch(2, generator=torch.Generator().manual_seed(0))
        return -model.log_prob(model.sample(generator=torch.Generator().manual_seed(0))) - model.log_prob(
            model.argmax()
        )

    x = EMISSION.clone().requires_grad_()
    close(grad(surprise)(EMISSION), torch.autograd.grad(surprise(x), x)[0])


def test_what_does_not_go_through_transforms_says_so():
    for name in ("sample", "argmax"):
        with pytest.raises(RuntimeError, match=f"{name} does not run inside vmap: .* one model with a batch dimension"):
            vmap(lambda x, name=name: getattr(chain(x), name)())(SEVERAL)
    with pytest.raises(RuntimeError, match="sketch does not run inside vmap"):
        vmap(lambda x: chain(x).sketch(2).log_partition())(SEVERAL)
    with pytest.raises(RuntimeError, match=r"topk does not run inside the transforms of torch.func"):
        grad(lambda x: chain(x).topk(2).scores.sum())(EMISSION)
    with pytest.raises(RuntimeError, match=r"rsample does not run inside .* or differentiate by torch.autograd.grad"):
        grad(lambda x: chain(x).rsample().weights.sum())(EMISSION)
    with pytest.raises(RuntimeError, match=r"factor_marginals does not run inside"):
        grad(lambda x: ts.FactorGraph(x, [((0, 1), TRANSITION)]).factor_marginals()[0].sum())(EMISSION)


def test_bad_scores_inside_vmap():
    with pytest.raises(ValueError, match="emission must not hold NaN"):
        vmap(lambda x: chain(x).log_partition())(SEVERAL * torch.nan)
