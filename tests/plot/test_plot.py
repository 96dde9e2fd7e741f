"""Pictures: everything is drawn, once, within the figure, and nothing on top of anything else."""

import itertools
import random
from types import SimpleNamespace

import matplotlib as mpl
import pytest
import torch
from matplotlib import pyplot as plt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, PathPatch, Polygon
from matplotlib.text import Text

from tailsum import plot
from tailsum.plot.arcs import Arc, levelled
from tailsum.plot.lettering import visible
from tailsum.plot.style import SMALL
from tailsum.plot.table import COLUMNS

mpl.use("Agg")

TEXT = """The committee that reviewed the unexpectedly controversial proposal last week has decided , after several
    long meetings , to postpone its final recommendation until antidisestablishmentarianism is , by all accounts , no
    $ 5 or $ 6 matter in Rindfleischetikettierungsüberwachungsgesetz offices ."""
SENTENCE = TEXT.split()[:40]
TAGS = ("DET", "NOUN", "VERB", "ADP", "PUNCT", "a rather long name", "AUX", "PROPN", "PART")
PHRASES = ("S", "NP", "VP", "PP", "SBAR")
RELATIONS = ("nsubj", "obj", "det", "nmod:poss", "punct")
SIZES = (1, 2, 7, 25, 40)


def random_states(rng, n, count):
    return torch.tensor([rng.randrange(count) for _ in range(n)])


def random_segments(rng, n):
    cuts = sorted({0, n, *(rng.randrange(n) for _ in range(n // 2))})
    starts, durations = cuts[:-1], [b - a for a, b in itertools.pairwise(cuts)]
    padding = n - len(starts)
    states = random_states(rng, len(starts), 5).tolist()
    return SimpleNamespace(
        starts=torch.tensor(starts + [-1] * padding),
        durations=torch.tensor(durations + [0] * padding),
        states=torch.tensor(states + [-1] * padding),
    )


def random_tree(rng, n, padding=0):
    def grow(first, last):
        if first == last:
            return [(first, last)]
        middle = rng.randrange(first, last)
        return [(first, last), *grow(first, middle), *grow(middle + 1, last)]

    spans = grow(0, n - 1)
    states = random_states(rng, len(spans), 5).tolist()
    return SimpleNamespace(
        spans=torch.tensor(spans + [(-1, -1)] * padding), states=torch.tensor(states + [-1] * padding)
    )


def projective_heads(rng, n):
    heads = [0] * n

    def hang(first, last, head):
        if first > last:
            return
        root = rng.randint(first, last)
        heads[root] = root if head is None else head
        for low, high in ((first, root - 1), (root + 1, last)):
            if low <= high:
                cut = rng.randint(low, high)
                hang(low, cut, root)
                hang(cut + 1, high, root)

    hang(0, n - 1, None)
    return heads


def random_dependencies(rng, n, *, projective=True, bare=False):
    heads = projective_heads(rng, n) if projective else [rng.randrange(n) for _ in range(n)]
    labels = None if bare else random_states(rng, n, 5)
    return SimpleNamespace(heads=torch.tensor(heads), labels=labels, states=None if bare else random_states(rng, n, 9))


def drawn(axes):
    """All texts and their boxes, after drawing."""
    figure = axes.figure
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw_without_rendering()
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
    texts = [text for text in texts if text.axes and (text in text.axes.texts or _is_tick_or_label(text))]
    return [(text, text.get_window_extent(renderer)) for text in texts]


def _is_tick_or_label(text):
    axes = text.axes
    return axes.axison and text in (
        *axes.get_xticklabels(),
        *axes.get_yticklabels(),
        axes.xaxis.label,
        axes.yaxis.label,
    )


def assert_tidy(axes):
    """Everything lies within the figure, and no text on another. The texts and their boxes."""
    boxes, whole = drawn(axes), axes.figure.bbox
    shapes = [(patch, patch.get_window_extent()) for patch in axes.patches]
    for what, box in boxes + shapes:
        assert 0 <= box.x0 <= box.x1 <= whole.x1, f"{what} lies outside"
        assert 0 <= box.y0 <= box.y1 <= whole.y1, f"{what} lies outside"
    for (a, a_box), (b, b_box) in itertools.combinations(boxes, 2):
        apart = a_box.x1 <= b_box.x0 or b_box.x1 <= a_box.x0 or a_box.y1 <= b_box.y0 or b_box.y1 <= a_box.y0
        assert apart, f"{a.get_text()} overlaps {b.get_text()}"
    return boxes


def texts_of(axes):
    return [text.get_text() for text in axes.texts]


def of_kind(axes, kind):
    return [patch for patch in axes.patches if type(patch) is kind]


def arc_paths(axes):
    """Arcs, not the stems of roots: those are straight."""
    return [patch for patch in of_kind(axes, PathPatch) if len(patch.get_path()) > 2]


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("n", SIZES)
def test_chain(n, named):
    states = random_states(random.Random(n), n, 9)
    words, names = (SENTENCE[:n], TAGS) if named else (None, None)
    axes = plot.chain(states, words=words, names=names)
    assert_tidy(axes)
    assert len(of_kind(axes, FancyBboxPatch)) == n
    shown = [TAGS[s] if named else str(s) for s in states.tolist()]
    below = [visible(word) for word in words] if named else [str(i) for i in range(n)]
    assert texts_of(axes) == [text for pair in zip(shown, below, strict=True) for text in pair]
    assert axes.figure.get_figwidth() <= 11


@pytest.mark.parametrize("n", SIZES)
def test_segmentation(n):
    segments = random_segments(random.Random(n), n)
    axes = plot.segmentation(segments, words=SENTENCE[:n], names=PHRASES)
    assert_tidy(axes)
    states = [s for s in segments.states.tolist() if s >= 0]
    assert len(of_kind(axes, FancyBboxPatch)) == len(states)
    assert [text for text in texts_of(axes) if text in PHRASES] == [PHRASES[s] for s in states]
    assert len(texts_of(axes)) == n + len(states)


def test_a_segment_that_is_longer_than_a_line_is_taken_apart():
    segments = SimpleNamespace(starts=[0, 1], durations=[1, 39], states=[0, 1])
    axes = plot.segmentation(segments, words=SENTENCE, names=("short", "long"))
    assert_tidy(axes)
    titles = [text for text in texts_of(axes) if "long" in text and text != "long"]
    assert titles[0] == "long …"
    assert titles[-1] == "… long"


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("n", SIZES)
def test_tree(n, named):
    tree = random_tree(random.Random(n), n, padding=2)
    options = {"words": SENTENCE[:n], "names": PHRASES, "leaf_names": TAGS} if named else {}
    axes = plot.tree(tree, **options)
    boxes = assert_tidy(axes)
    assert len(of_kind(axes, FancyBboxPatch)) == 2 * n - 1
    assert len(of_kind(axes, PathPatch)) == 2 * n - 2
    assert len(texts_of(axes)) == 3 * n - 1
    for edge in of_kind(axes, PathPatch):  # an edge meets the names of its parent and its child alone
        path = edge.get_transform().transform_path(edge.get_path())
        assert sum(bool(path.intersects_bbox(box, filled=False)) for _, box in boxes) <= 2
    heights = {text.get_position()[1] for text in axes.texts[:n]}
    assert len(heights) == 1  # the words stand on one line


def test_tree_names():
    tree = SimpleNamespace(spans=[(0, 2), (0, 0), (1, 2), (1, 1), (2, 2)], states=[0, 0, 1, 1, -1])
    words = ["the", "old", "man"]
    assert texts_of(plot.tree(tree, words=words, names=["S", "NP"])) == [*words, "S", "S", "NP", "NP"]
    axes = plot.tree(tree, words=words, names=lambda s: f"phrase {s}", leaf_names=["DET", "ADJ"])
    assert texts_of(axes) == [*words, "phrase 0", "DET", "phrase 1", "ADJ"]
    bare = SimpleNamespace(spans=tree.spans, states=[-1] * 5)
    assert texts_of(plot.tree(bare, words=words)) == words
    assert_tidy(plot.tree(bare, words=words))


@pytest.mark.parametrize("bare", [True, False])
@pytest.mark.parametrize("n", SIZES)
def test_dependencies(n, bare):
    tree = random_dependencies(random.Random(n), n, bare=bare)
    axes = plot.dependencies(tree, words=SENTENCE[:n], names=TAGS, labels=RELATIONS)
    boxes = assert_tidy(axes)
    arcs = arc_paths(axes)
    assert len(arcs) == n - 1
    assert len(of_kind(axes, Polygon)) == n  # an arrow's head for each word
    assert sum(text.startswith("root") for text in texts_of(axes)) == 1
    assert len(texts_of(axes)) == n + 1 + (0 if bare else n + n - 1)
    paths = [arc.get_transform().transform_path(arc.get_path()) for arc in arcs]
    for a, b in itertools.combinations(paths, 2):
        assert not a.intersects_path(b, filled=False)
    labels = [(text, box) for text, box in boxes if text.get_bbox_patch() is not None]
    assert len(labels) == (0 if bare else n - 1)
    for _, box in labels:  # no arc but its own passes through a label
        assert sum(bool(path.intersects_bbox(box, filled=False)) for path in paths) == 1


@pytest.mark.parametrize("projective", [True, False])
def test_longer_arcs_are_higher(projective):
    tree = random_dependencies(random.Random(0), 20, projective=projective)
    axes = plot.dependencies(tree, words=SENTENCE[:20], names=TAGS, labels=RELATIONS)
    arcs = [(head, child) for child, head in enumerate(tree.heads.tolist()) if head != child]
    found = levelled(Arc(head, child, "") for head, child in arcs)
    for a, b in itertools.permutations(found, 2):
        if a.right - a.left > b.right - b.left:
            assert a.level > b.level
        assert not (a.overlaps(b) and a.level == b.level)
    assert_tidy(axes)
    heights = sorted(arc.get_path().vertices[:, 1].max() for arc in arc_paths(axes))
    assert len(set(heights)) == len({arc.level for arc in found})
    for nested in itertools.pairwise(sorted(set(heights))):
        assert nested[1] - nested[0] > SMALL  # room for a label


def test_several_roots_and_labels_of_roots():
    tree = SimpleNamespace(heads=[0, 0, 2, -1], labels=[0, 1, 2, -1], states=None)
    axes = plot.dependencies(tree, words=["so", "it", "goes"], labels=["root", "obj", "ccomp"])
    assert_tidy(axes)
    assert texts_of(axes) == ["so", "it", "goes", "root", "root: ccomp", "obj"]


@pytest.mark.parametrize("n", SIZES)
def test_marginals(n):
    table = torch.randn(n, 9).softmax(-1).requires_grad_()
    axes = plot.marginals(table, words=SENTENCE[:n], names=TAGS)
    assert_tidy(axes)
    assert torch.allclose(torch.tensor(axes.images[0].get_array()), table.detach().double())
    assert [label.get_text() for label in axes.get_xticklabels()] == list(TAGS)
    assert len(axes.get_yticklabels()) == n
    assert axes.figure.axes[1].get_ylabel() == "probability"
    square = plot.marginals(torch.rand(n, n), words=SENTENCE[:n])
    assert_tidy(square)
    assert [label.get_text() for label in square.get_xticklabels()] == [visible(w) for w in SENTENCE[:n]]


def test_of_very_many_states_the_likeliest_are_shown():
    table = torch.full((5, 3000), 1e-4)
    chosen = torch.randperm(3000)[:COLUMNS].sort().values
    table[torch.arange(COLUMNS) % 5, chosen] = 0.05
    axes = plot.marginals(table)
    assert_tidy(axes)
    assert [label.get_text() for label in axes.get_xticklabels()] == [str(state) for state in chosen.tolist()]
    assert axes.get_xlabel() == "the 48 likeliest of 3,000 states"
    assert axes.images[0].get_clim() == pytest.approx((0.0, 0.05))
    assert_tidy(plot.marginals(torch.rand(300, 300)))


def test_a_state_has_one_colour():
    axes = plot.chain([3, 0, 3, 11])
    colours = [to_hex(patch.get_facecolor()) for patch in axes.patches]
    assert colours[0] == colours[2]
    assert len(set(colours)) == 3
    blocks = plot.segmentation(SimpleNamespace(starts=[0], durations=[2], states=[3]))
    assert to_hex(blocks.patches[0].get_facecolor()) == colours[0]


def every_kind(**options):
    rng = random.Random(1)
    yield lambda **more: plot.chain(random_states(rng, 8, 5), **options, **more)
    yield lambda **more: plot.segmentation(random_segments(rng, 8), **options, **more)
    yield lambda **more: plot.tree(random_tree(rng, 8), **options, **more)
    yield lambda **more: plot.dependencies(random_dependencies(rng, 8), **options, **more)
    yield lambda **more: plot.marginals(torch.rand(8, 8), **options, **more)


def test_on_axes_that_are_given():
    figure = Figure(figsize=(12, 24))
    for axes, draw in zip(figure.subplots(5, 1), every_kind(words=SENTENCE[:8]), strict=True):
        assert draw(ax=axes) is axes
        assert axes.figure is figure
    for axes in figure.axes:
        assert_tidy(axes)
    small = Figure(figsize=(3, 2)).subplots()
    plot.tree(random_tree(random.Random(0), 12), words=SENTENCE[:12], ax=small)
    FigureCanvasAgg(small.figure).draw()
    for patch in small.patches:
        box = patch.get_window_extent()
        assert small.bbox.x0 <= box.x0 <= box.x1 <= small.bbox.x1
        assert small.bbox.y0 <= box.y0 <= box.y1 <= small.bbox.y1


@pytest.mark.parametrize("style", ["default", "ggplot", {"figure.constrained_layout.use": True, "axes.grid": True}])
def test_pyplot_knows_nothing_of_it(style):
    with plt.style.context(style):
        for draw in every_kind(words=["$", "a_b", "\n", "", "x^2", "{", "\\", "é"]):
            axes = draw()
            drawn(axes)
            assert "\\n" in texts_of(axes) + [label.get_text() for label in axes.get_yticklabels()]
    assert plt.get_fignums() == []


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (
            lambda: plot.chain(torch.zeros(2, 3).long()),
            r"states must be \[T\].* got \[2, 3\] .*choose one element first",
        ),
        (lambda: plot.chain(torch.tensor(3)), r"states must be \[T\], of one structure: got \[\]$"),
        (lambda: plot.chain(torch.zeros(3)), "states must be integers: got torch.float32"),
        (lambda: plot.chain([]), "states must have at least one position"),
        (lambda: plot.chain(None), r"states must be integers, \[T\]: got NoneType"),
        (lambda: plot.chain([1, -1, 2]), r"states must be at least 0, and -1 only beyond .* got \[1, -1, 2\]"),
        (lambda: plot.chain([-1, -1]), "states must be at least 0"),
        (lambda: plot.chain([0, 1], words=["a"]), "words must be as many as there are positions, 2: got 1"),
        (lambda: plot.chain([0, 2], names=["a", "b"]), "names must have a name for 2, which occurs: got 2 names"),
        (lambda: plot.segmentation([0]), "segments must have the attribute starts: got list"),
        (
            lambda: plot.segmentation(SimpleNamespace(starts=[0, 3], durations=[2, 1], states=[0, 0])),
            "segments.starts must follow each other without gaps: got 3 for segment 1, not 2",
        ),
        (
            lambda: plot.segmentation(SimpleNamespace(starts=[0, 2], durations=[2, 0], states=[0, 0])),
            r"segments.durations must have 2 numbers of at least 1: got \[2, 0\]",
        ),
        (
            lambda: plot.segmentation(SimpleNamespace(starts=[[0]], durations=[[1]], states=[[0]])),
            r"segments.starts must be \[T\].*choose one element first",
        ),
        (
            lambda: plot.tree(SimpleNamespace(spans=torch.zeros(4, 3, 2).long(), states=torch.zeros(4, 3).long())),
            r"tree.spans must be \[2T-1, 2\].* got \[4, 3, 2\] .*choose one element first",
        ),
        (
            lambda: plot.tree(SimpleNamespace(spans=[(0, 1), (0, 0), (1, 1)], states=[0])),
            r"tree.states must have 3 numbers of at least -1: got \[0\]",
        ),
        (
            lambda: plot.tree(SimpleNamespace(spans=[(0, 0), (0, 1), (1, 1)], states=[0, 0, 0])),
            r"tree.spans must begin with the root.* got \[0, 1\] as number 1",
        ),
        (
            lambda: plot.tree(SimpleNamespace(spans=[(0, 2), (0, 1), (1, 2)], states=[0, 0, 0])),
            r"tree.spans must be split into their parts: got \[0, 2\]",
        ),
        (
            lambda: plot.tree(random_tree(random.Random(0), 3), names=["S"] * 5, leaf_names=[]) and plot.tree(3),
            "tree must have the attribute spans: got int",
        ),
        (
            lambda: plot.dependencies(SimpleNamespace(heads=[0, 2], labels=None, states=None)),
            r"tree.heads must be positions, below 2: got \[0, 2\]",
        ),
        (
            lambda: plot.dependencies(SimpleNamespace(heads=[0, 0], labels=[0], states=None)),
            r"tree.labels must have 2 numbers of at least -1: got \[0\]",
        ),
        (
            lambda: plot.dependencies(SimpleNamespace(heads=[0, 0], labels=[0, 3], states=None), labels=["a"]),
            "labels must have a name for 3",
        ),
        (
            lambda: plot.dependencies(SimpleNamespace(heads=[[0]], labels=None, states=None)),
            r"tree.heads must be \[T\].*choose one element first",
        ),
        (lambda: plot.marginals(torch.rand(2, 3, 4)), r"probabilities must be .* got \[2, 3, 4\] .*choose one element"),
        (lambda: plot.marginals(torch.zeros(0, 4)), r"probabilities must be .* got \[0, 4\]"),
        (lambda: plot.marginals(-torch.ones(2, 3)), "probabilities must lie between 0 and 1: got -1.0"),
        (lambda: plot.marginals(torch.full((2, 3), torch.nan)), "probabilities must lie between 0 and 1: got nan"),
        (lambda: plot.marginals(torch.rand(2, 3), names=["a"]), "names must have a name for 2"),
    ],
)
def test_errors(draw, words):
    with pytest.raises(ValueError, match=words):
        draw()
