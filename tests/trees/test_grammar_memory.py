"""What grammars hold, and for how long: counted tensor by tensor."""

import torch

import tailsum as ts
from tailsum.numerics.memory import PeakMemory


def test_a_sketched_grammar_builds_no_table_of_rules():
    n, p, size, length, k = 3000, 50, 4, 5, 6
    head, left, right = (torch.randn(m, size).mul_(0.3).requires_grad_() for m in (n, n + p, n + p))
    grammar = ts.PCFG(torch.zeros(n), ts.FactoredRule(head, left, right), torch.randn(length, p))
    with PeakMemory() as memory:
        small = grammar.sketch(k, proposal=ts.Lookahead(2))
        small.log_partition().backward()
    assert memory.largest < n * n  # a quarter of [N, N] numbers; all rules would be [N, N+P, N+P]
    assert memory.peak < 8 * n * n


def test_rules_beyond_the_budget_are_built_a_few_heads_at_a_time(monkeypatch):
    monkeypatch.setattr("tailsum.numerics.tiles._TILE", {"cpu": 1 << 10})
    n, p, size = 24, 8, 4
    head, left, right = (torch.randn(m, size).double().requires_grad_() for m in (n, n + p, n + p))
    for kind in (ts.FactoredRule, ts.LowRankRule):
        grammar = ts.PCFG(torch.zeros(n).double(), kind(head, left, right), torch.randn(4, p).double())
        with PeakMemory() as memory, ts.table_budget(0):
            entropy = grammar.entropy()
            gradient = torch.autograd.grad(entropy, head)
        assert memory.largest < 8 * n * (n + p) ** 2 / 4
        torch.testing.assert_close(grammar.entropy(), entropy)
        torch.testing.assert_close(torch.autograd.grad(grammar.entropy(), head), gradient)
