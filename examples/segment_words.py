"""English without spaces, taken apart into words by a lattice: `python examples/segment_words.py [LETTERS]`.

The nodes of the lattice are the places between letters, and an arc is a word of the dictionary that the text may have there;
its score is the log-probability of the word. The dictionary, with counts, is the text of Python's own documentation, which
comes with Python. A letter that is part of no word costs as much as a very rare word, so that any text can be taken apart.
"""

import math
import re
import sys
from collections import Counter
from pydoc_data.topics import topics

import torch

import tailsum as ts

LETTERS = "asetmaybeusedinplaceofalistbutnotinanotherone"
UNKNOWN = math.log(1e-8)  # the log-probability of a single letter that is no word


def dictionary() -> dict[str, float]:
    """The words of the documentation that occur twice or more, and their log-probabilities."""
    counts = Counter(re.findall(r"(?<![\w`'.])[a-z]+(?![\w`'.(])", " ".join(topics.values()).lower()))
    words = {word: n for word, n in counts.items() if n > 1 and (len(word) > 1 or word in ("a", "i"))}
    total = sum(words.values())
    return {word: math.log(n / total) for word, n in words.items()}


def segmentations(letters: str, words: dict[str, float]) -> tuple[ts.Lattice, list[str]]:
    """The lattice of all ways to take the letters apart, and the word of each arc."""
    longest = max(map(len, words))
    spans = [(i, j) for i in range(len(letters)) for j in range(i + 1, min(i + longest, len(letters)) + 1)]
    spans = [(i, j) for i, j in spans if letters[i:j] in words or j == i + 1]
    found = [letters[i:j] for i, j in spans]
    scores = torch.tensor([words.get(word, UNKNOWN) for word in found])
    return ts.Lattice(torch.tensor(spans).T, scores), found


def main() -> None:
    letters = re.sub("[^a-z]", "", (sys.argv[1] if len(sys.argv) > 1 else LETTERS).lower())
    lattice, found = segmentations(letters, dictionary())

    def text(path: torch.Tensor) -> str:
        return " ".join(found[arc] for arc in path.tolist() if arc >= 0)

    print(f"{letters}\n{lattice}: {lattice.entropy():.2f} nats of doubt\n")
    best = lattice.argmax()
    print(f"best: {text(best)}\n\nthe probability that each word is one:")
    chances = lattice.marginals()
    for arc in best[best >= 0].tolist():
        print(f"  {chances[arc]:.3f} {found[arc]}")
    print("\nfive best, with their probabilities:")
    configurations, _ = lattice.topk(5)
    for path, log_prob in zip(configurations, lattice.log_prob(configurations), strict=True):
        print(f"  {log_prob.exp():.4f} {text(path)}")
    print("\nsamples:")
    for path in lattice.sample((3,), generator=torch.Generator().manual_seed(0)):
        print(f"  {text(path)}")


if __name__ == "__main__":
    main()
