"""The gradient of the ELBO's CRF part in the state embeddings, by sketches, against the exact one.

    python -m benchmarks.vae_gradients --data captions [--run FOLDER]

The CRF part is H(q) + E_q[log p(x, y)]. Its second term is taken with the decoder's memory fixed at one sample of the
states: then it is a sum over positions and states of q's marginals times what the decoder says of each state, and can
be had exactly. 1 - cosine, mean over sketches, 2,000 states, 10% kept: at the start of training, and after it (of a run).
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from tailsum import LinearChain
from tailsum.nn import Estimator, StructuredVAE, as_sample
from tailsum_studies.vae.build import build
from tailsum_studies.vae.data import Batch, Corpus, batch_of, evenly
from tailsum_studies.vae.run import Run
from tailsum_studies.vae.settings import Settings


@torch.no_grad()
def what_the_decoder_says(model: StructuredVAE, batch: Batch) -> Tensor:
    """Of each state at each position `[B, T, N]`: log p(state) + log p(word | state), the memory fixed at a sample."""
    states = model.posterior(*batch).sample()
    embedded = as_sample(states).mix(model.decoder.states.weight)
    context = model.decoder.read(batch.words, embedded)
    scores = model.decoder.state_logits(context).log_softmax(-1)
    for b in range(len(states)):
        for t in range(int(batch.lengths[b])):
            every, word = context[b, t].expand(scores.shape[-1], -1), batch.words[b, t].expand(scores.shape[-1])
            scores[b, t] += model.decoder.say(every, model.decoder.states.weight, word)
    inside = torch.arange(states.shape[1]) < batch.lengths[:, None]
    return torch.where(inside[..., None], scores, 0.0)


def crf_part(estimator: Estimator, chain: LinearChain, scores: Tensor) -> tuple[Tensor, Tensor]:
    """The two terms, summed over sentences."""
    small = estimator.sketch(chain)
    if small.kept is not None and estimator.method == "tailsum":
        marginals = small.refine().marginals()
    else:
        marginals = small.scatter(small.marginals())
    return estimator.entropy(small).sum(), (marginals * scores).sum()


def compare(model: StructuredVAE, batch: Batch, repeats: int, say: Callable[[str], None]) -> dict[str, float]:
    """One minus the cosine with the exact gradient, of each estimator, and how many times smaller ours is."""
    scores, e = what_the_decoder_says(model, batch), model.inference.states

    def gradient(estimator: Estimator) -> list[Tensor]:
        parts = crf_part(estimator, model.posterior(*batch), scores)
        both = [torch.autograd.grad(part, e, retain_graph=True)[0] for part in parts]
        return [*both, both[0] + both[1]]

    exact = gradient(Estimator("full", 2))
    found: dict[str, float] = {}
    kept = e.shape[0] // 10
    for name, estimator in (
        ("TopK", Estimator("topk", kept)),
        ("paper", Estimator("rdp", kept)),
        ("ours", Estimator("tailsum", kept)),
    ):
        draws = [gradient(estimator) for _ in range(1 if name == "TopK" else repeats)]
        for i, part in enumerate(("entropy", "decoder's scores", "both")):
            off = [_off(draw[i], exact[i]) for draw in draws]
            found[f"{name}, {part}"] = sum(off) / len(off)
            say(f"  {name:6} {part:18} {found[f'{name}, {part}']:.2e}")
    for part in ("entropy", "decoder's scores", "both"):
        say(f"  paper / ours, {part}: {found[f'paper, {part}'] / found[f'ours, {part}']:.1f}")
    return found


def _off(found: Tensor, exact: Tensor) -> float:
    return 1 - cosine_similarity(found.double().flatten(), exact.double().flatten(), 0, 1e-30).item()


def main() -> None:
    """At the start, and after training."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--run", type=Path, help="the folder of a run of tailsum train or of tailsum reproduce table5")
    parser.add_argument("--sentences", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=10)
    given = parser.parse_args()
    run = Run.open(given.run) if given.run else None
    settings = run.settings if run else Settings(states=2000, state_size=128)
    corpus = Corpus.read(given.data, settings.words, longest=settings.longest)
    torch.manual_seed(0)
    batch = batch_of(evenly(corpus.dev, given.sentences))
    model = build(settings, corpus.vocabulary).eval()
    print("at the start")
    compare(model, batch, given.repeats, print)
    if run:
        run.put(run.best(), model)
        print("after training")
        compare(model, batch, given.repeats, print)


if __name__ == "__main__":
    main()
