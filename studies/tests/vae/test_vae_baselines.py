"""The language models beside the autoencoder: against sums by hand, and on real sentences."""

import itertools
import math

import pytest
import torch

from tailsum_studies.text import Vocabulary
from tailsum_studies.vae import baselines
from tailsum_studies.vae.baselines import CountModel, WordLSTM, bigram, score, sentence_log_probs, unigram
from tailsum_studies.vae.settings import Settings

END = 3
TINY = [[1, 2, END], [1, 1, END], [1, 2, END]]  # of four words, 0 never seen


@pytest.fixture(scope="module")
def library(prose):
    """Sentences to train on and to test on, and the number of words they are made of."""
    train, test = ([[*sentence, "<end>"] for sentence in part] for part in (prose.train, prose.test))
    vocabulary = Vocabulary.of(train, 1999)
    return [*map(vocabulary.encode, train)], [*map(vocabulary.encode, test)], len(vocabulary)


def every_next(model: CountModel, before):
    """The probabilities of all words behind one."""
    words = torch.arange(model.n_words)
    return model.log_next(torch.full_like(words, before), words).exp()


def patterns(n, seed):
    """Sentences of four words that count upwards, modulo five, and end with 5."""
    starts = torch.randint(5, (n,), generator=torch.Generator().manual_seed(seed)).tolist()
    return [[*((start + i) % 5 for i in range(4)), 5] for start in starts]


def train_lstm(train, dev, n_words, steps=4000, batch=64, rate=3e-3, seed=0, *, dropout=0.3, clip=1.0, **options):
    """With settings as options; `size` and `hidden` too."""
    of_settings = {name: options.pop(name) for name in ("size", "hidden") if name in options}
    settings = Settings(steps=steps, batch=batch, rate=rate, seed=seed, dropout=dropout, clip=clip, **of_settings)
    return baselines.train_lstm(train, dev, n_words, settings, **options)


# Counts.


def test_unigram_by_hand():
    model = unigram(TINY, 4)
    expected = torch.tensor([1, 5, 3, 4]).double() / 13
    for before in range(5):
        torch.testing.assert_close(every_next(model, before), expected)
    torch.testing.assert_close(model.log_prob([[0, END], [END]]).exp(), torch.tensor([4 / 169, 4 / 13]).double())


def test_bigram_by_hand():
    model = bigram(TINY, 4)
    # Pairs: start-1 three times, 1-2 and 2-3 twice, 1-1 and 1-3 once: the discount is 2 / (2 + 2 * 2).
    # Words before 1: two, before 2: one, before 3: two: the discount is 1 / (1 + 2 * 2), and 0.2 * 3 / 5 is shared by four.
    continuation = torch.tensor([0.0, 1.8 / 5, 0.8 / 5, 1.8 / 5]).double() + 0.12 / 4
    third = 1 / 3
    expected = {
        4: torch.tensor([0, 3 - third, 0, 0]).double() / 3 + third / 3 * continuation,
        1: torch.tensor([0, 1 - third, 2 - third, 1 - third]).double() / 4 + 3 * third / 4 * continuation,
        2: torch.tensor([0, 0, 0, 2 - third]).double() / 2 + third / 2 * continuation,
        0: continuation,
    }
    for before, probability in expected.items():
        torch.testing.assert_close(every_next(model, before), probability)
    given = [[1, 2, END], [0, 2, 1, END]]
    by_hand = [math.prod(expected[a][b].item() for a, b in itertools.pairwise([4, *sentence])) for sentence in given]
    torch.testing.assert_close(model.log_prob(given).exp(), torch.tensor(by_hand).double())


@pytest.mark.parametrize(
    "train",
    [
        [[END]],  # a pair once, and nothing twice: all is taken off
        [[END]] * 2,  # nothing once
        [[1, END]] * 5,
        [[0, 1, 2, END], [2, 1, 0, END], [1, END]],
    ],
)
def test_no_word_is_impossible_however_little_was_seen(train):
    for model in (unigram(train, 4), bigram(train, 4)):
        for before in range(5):
            probability = every_next(model, before)
            assert probability.min() > 0
            assert abs(probability.sum().item() - 1) < 1e-9


def test_counts_of_real_sentences_sum_to_one(library):
    train, _, n_words = library
    words = [*range(0, n_words, 7), n_words]  # the last is the begin of a sentence
    for model in (unigram(train, n_words), bigram(train, n_words)):
        sums = torch.stack([every_next(model, before).sum() for before in words])
        torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=1e-9)


def test_bigrams_beat_words_alone_on_real_sentences(library):
    train, test, n_words = library
    lengths = [len(sentence) for sentence in test]
    alone, pairs = (score(kind(train, n_words).log_prob(test), lengths) for kind in (unigram, bigram))
    assert pairs.per_word < alone.per_word - 0.5
    assert pairs.per_sentence + 5 * pairs.standard_error < alone.per_sentence - 5 * alone.standard_error


def test_log_probs_come_in_the_order_of_the_sentences(library):
    train, test, n_words = library
    model, some = bigram(train, n_words), test[:20]
    alone = torch.cat([model.log_prob([sentence]) for sentence in some])
    torch.testing.assert_close(model.log_prob(some), alone)


# The LSTM.


def by_positions(model: WordLSTM, sentence):
    """The log-probability of a sentence, word by word, from the equations of an LSTM."""
    weight, recurrent, *biases = model.lstm.parameters()
    first, activation, second = model.to_word
    given, total = model.start, torch.zeros(()).double()
    hidden = cell = torch.zeros(model.lstm.hidden_size).double()
    for word in sentence:
        enter, keep, new, show = (weight @ given + recurrent @ hidden + sum(biases)).chunk(4)
        cell = keep.sigmoid() * cell + enter.sigmoid() * new.tanh()
        hidden = show.sigmoid() * cell.tanh()
        scores = model.words.weight @ second(activation(first(hidden))) + model.bias
        total = total + scores[word] - scores.exp().sum().log()
        given = model.words.weight[word]
    return total


def random_lstm():
    """A model of six words, all of whose parameters are at random, without dropout."""
    model = WordLSTM(6, size=4, hidden=5, dropout=0.5).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    return model


def test_lstm_by_positions():
    model = random_lstm()
    given = [[1, 0, 4, 5], [5], [2, 2, 5]]
    words = torch.tensor([[1, 0, 4, 5], [5, 0, 0, 0], [2, 2, 5, 0]])
    found = model.log_prob(words, torch.tensor([4, 1, 3]))
    expected = torch.stack([by_positions(model, sentence) for sentence in given])
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(sentence_log_probs(model, given, batch=2), expected.detach())


def test_lstm_is_a_distribution():
    words = torch.cartesian_prod(*[torch.arange(6)] * 3)
    model = random_lstm()
    probability = model.log_prob(words, torch.full((len(words),), 3)).exp()
    torch.testing.assert_close(probability.sum(), torch.ones(()).double())
    first = model.log_prob(torch.arange(6)[:, None], torch.ones(6, dtype=torch.long)).exp()
    torch.testing.assert_close(probability.reshape(6, -1).sum(-1), first)


@pytest.mark.parametrize("padding", [0, 3, -1, 99])
def test_padding_changes_nothing(padding):
    model = random_lstm()
    short = torch.tensor([[2, 4, 5]])
    alone = model.log_prob(short, torch.tensor([3]))
    padded = torch.full((2, 7), padding)
    padded[0, :3], padded[1] = short, torch.tensor([1, 2, 3, 4, 3, 2, 5])
    together = model.log_prob(padded, torch.tensor([3, 7]))
    torch.testing.assert_close(together[:1], alone)
    gradients = torch.autograd.grad(together[0], list(model.parameters()))
    expected = torch.autograd.grad(alone[0], list(model.parameters()))
    torch.testing.assert_close(gradients, expected)


def test_every_parameter_has_a_gradient():
    model = WordLSTM(6, size=4, hidden=5)
    model.log_prob(torch.tensor([[1, 2, 5], [4, 5, 0]]), torch.tensor([3, 2])).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name
    tables = [parameter for parameter in model.parameters() if parameter.shape == (6, 4)]
    assert len(tables) == 1


def test_dropout_stands_on_both_sides_of_the_lstm(monkeypatch):
    model, seen = WordLSTM(6, size=8, hidden=7, dropout=0.5), []
    monkeypatch.setattr(model.dropout, "forward", lambda x: seen.append(x.shape[-1]) or x)
    model.log_prob(torch.tensor([[1, 2, 5]]), torch.tensor([3]))
    assert seen == [8, 7]


def test_dropout_is_for_training_alone():
    model, words, lengths = WordLSTM(6, size=8, hidden=8, dropout=0.5), torch.tensor([[1, 2, 5]]), torch.tensor([3])
    assert not torch.equal(model.log_prob(words, lengths), model.log_prob(words, lengths))
    state = torch.get_rng_state()
    first, again = (sentence_log_probs(model, [[1, 2, 5]]) for _ in range(2))
    assert torch.equal(first, again)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    sentence_log_probs(model.eval(), [[1, 2, 5]])
    assert not model.training


# Training.


def test_lstm_learns_what_bigrams_cannot():
    train, dev, test = patterns(500, 0), patterns(50, 1), patterns(200, 2)
    lengths, calls = [5] * len(test), []
    found = train_lstm(
        train, dev, 6, 200, 32, 1e-2, size=16, hidden=32, dropout=0.1, n_checks=4, step=lambda: calls.append(1)
    )
    assert len(calls) == 200
    assert [step for step, _ in found.checks] == [50, 100, 150, 200]
    learned = score(sentence_log_probs(found.model, test), lengths).per_sentence
    assert learned < math.log(5) + 0.1  # where to start is all that is not certain
    assert score(bigram(train, 6).log_prob(test), lengths).per_sentence > math.log(5) + 1


def test_lstm_learns_from_real_sentences(library):
    train, test, n_words = library
    test = test[:200]
    found = train_lstm(train, test[:50], n_words, 100, 32, 1e-2, size=32, hidden=32, dropout=0.0, n_checks=1)
    lengths = [len(sentence) for sentence in test]
    learned = score(sentence_log_probs(found.model, test), lengths).per_word
    assert learned < score(unigram(train, n_words).log_prob(test), lengths).per_word - 0.2


@pytest.mark.parametrize("clip", [0.1, 0.25, 100.0])  # always reached, sometimes and never
def test_training_by_hand(clip):
    torch.manual_seed(3)
    model, rate, steps, n = WordLSTM(4, 3, 5), 0.1, 6, sum(map(len, TINY))
    mean, square = ([torch.zeros_like(p) for p in model.parameters()] for _ in range(2))
    for i in range(steps):
        loss = -model.log_prob(torch.tensor(TINY), torch.tensor([3, 3, 3])).sum() / n
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        norm = torch.stack([g.square().sum() for g in gradients]).sum().sqrt()
        now = rate * min(1, 2 * (1 - i / steps))
        with torch.no_grad():
            for p, g, m, s in zip(model.parameters(), gradients, mean, square, strict=True):
                g.mul_((clip / norm).clamp(max=1))
                m.add_(0.1 * (g - m))
                s.add_(0.001 * (g * g - s))
                p.sub_(now * (m / (1 - 0.9 ** (i + 1))) / ((s / (1 - 0.999 ** (i + 1))).sqrt() + 1e-8))
    found = train_lstm(TINY, TINY, 4, steps, 8, rate, 3, size=3, hidden=5, dropout=0.0, n_checks=1, clip=clip)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(found.model.state_dict()[name], value, rtol=1e-3, atol=1e-3)


def test_the_best_weights_on_dev_are_kept():
    train = patterns(20, 0)
    dev = [[4, 3, 2, 1, 5], [0, 0, 2, 5], [1, 5]]  # the better the pattern is known, the worse these do
    found = train_lstm(train, dev, 6, 60, 8, 1e-2, size=8, hidden=16, n_checks=10)
    losses = [loss for _, loss in found.checks]
    assert min(losses) < losses[-1] - 0.1
    kept = score(sentence_log_probs(found.model, dev), [len(sentence) for sentence in dev]).per_word
    assert kept == pytest.approx(min(losses), rel=1e-6)
    assert not found.model.training


def test_training_is_reproducible_and_leaves_the_random_state_alone():
    def trained(seed):
        return train_lstm(patterns(40, 0), patterns(10, 1), 6, 10, 8, 1e-2, seed, size=4, hidden=4, dropout=0.3)

    before = torch.get_rng_state()
    first = trained(0)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(5)
    second, other = trained(0), trained(1)
    assert first.checks == second.checks != other.checks
    for name, value in first.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name]), name


def test_the_random_state_comes_back_when_training_is_interrupted():
    def interrupt():
        raise KeyboardInterrupt

    before = torch.get_rng_state()
    with pytest.raises(KeyboardInterrupt):
        train_lstm(patterns(40, 0), patterns(10, 1), 6, 10, size=4, hidden=4, step=interrupt)
    assert torch.equal(torch.get_rng_state(), before)


def test_every_checked_step_is_one_of_the_steps():
    found = train_lstm(patterns(9, 0), patterns(3, 1), 6, 3, 4, size=4, hidden=4, n_checks=8)
    assert [step for step, _ in found.checks] == [1, 2, 3]


# Scores.


def test_score_by_hand():
    found = score(torch.tensor([-1.0, -2.0, -6.0]), torch.tensor([1, 2, 3]))
    assert found.per_word == pytest.approx(9 / 6)
    assert found.per_sentence == pytest.approx(3)
    assert found.standard_error == pytest.approx(math.sqrt((4 + 1 + 9) / 2 / 3))
    assert math.isnan(score(torch.tensor([-1.0]), [1]).standard_error)


def test_scores_take_trained_values_as_they_are():
    parameter = torch.tensor([-1.0, -3.0], requires_grad=True)
    assert score(parameter * 1, [2, 2]).per_word == 1.0


# Errors.


@pytest.mark.parametrize(
    "use",
    [
        lambda given: unigram(given, 4),
        lambda given: bigram(given, 4),
        lambda given: unigram(TINY, 4).log_prob(given),
        lambda given: bigram(TINY, 4).log_prob(given),
        lambda given: sentence_log_probs(WordLSTM(4, 2, 2), given),
        lambda given: train_lstm(given, TINY, 4, 1),
        lambda given: train_lstm(TINY, given, 4, 1),
    ],
)
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "must hold at least one sentence: got none"),
        ([[1, END], []], r"\[1\] must hold words, or at least \"<end>\": got none"),
        ([[1, END], [4, END]], r"\[1\] must hold numbers from 0 to V-1 = 3: got \[4, 3\]"),
        ([[-1, END]], r"\[0\] must hold numbers from 0 to V-1 = 3: got \[-1, 3\]"),
        ([[1, END], [1, 2]], r"\[1\] must have 3, the number of \"<end>\", at its end and nowhere else: got \[1, 2\]"),
        ([[1, END], [END, END]], "at its end and nowhere else"),
    ],
)
def test_errors_of_sentences(use, given, message):
    with pytest.raises(ValueError, match=message):
        use(given)


def test_errors_name_the_part():
    with pytest.raises(ValueError, match=r"^train must"):
        train_lstm([], TINY, 4)
    with pytest.raises(ValueError, match=r"^dev must"):
        train_lstm(TINY, [], 4)
    with pytest.raises(ValueError, match=r"^dev\[0\] must have 3"):
        train_lstm(TINY, [[1, 2]], 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps must be a whole number of at least 1: got 0"),
        ({"batch": 0}, "batch must be a whole number of at least 1: got 0"),
        ({"n_checks": 0}, "n_checks must be a whole number of at least 1: got 0"),
        ({"hidden": 0}, "hidden must be a whole number of at least 1: got 0"),
        ({"rate": 0.0}, "rate must be positive and finite: got 0.0"),
        ({"rate": math.nan}, "rate must be positive and finite: got nan"),
        ({"clip": -1.0}, "clip must be positive and finite: got -1.0"),
        ({"dropout": 1.0}, "dropout must be at least 0 and less than 1: got 1.0"),
        ({"steps": 4, "rate": 1e37}, "rate must be small enough for the loss to stay finite"),
    ],
)
def test_errors_of_training(options, message, unchecked):
    with pytest.raises(ValueError, match=message):
        train_lstm(TINY, TINY, 4, **options)


@pytest.mark.parametrize(
    ("words", "lengths", "message"),
    [
        ([[1, 2]], [3], "lengths must lie between 1 and 2"),
        ([[1, 2]], [0], "lengths must lie between 1 and 2"),
        ([[1, 9]], [2], "words must lie between 0 and V-1 = 3: got 9"),
        ([[1, -1]], [2], "words must lie between 0 and V-1 = 3: got -1"),
        ([[1, 2]], [1, 1], r"words must be \[B, T\] and lengths \[B\].*got \[1, 2\] and \[2\]"),
        ([1, 2], [1, 1], r"words must be \[B, T\] and lengths \[B\]"),
        ([[]], [1], "at least one sentence"),
    ],
)
def test_errors_of_batches(words, lengths, message, unchecked):
    with pytest.raises(ValueError, match=message):
        WordLSTM(4, 2, 2).log_prob(torch.tensor(words), torch.tensor(lengths))


def test_errors_of_scores(unchecked):
    with pytest.raises(ValueError, match=r"one or more sentences: got \[0\] and \[0\]"):
        score(torch.zeros(0), torch.zeros(0, dtype=torch.long))
    with pytest.raises(ValueError, match=r"got \[2\] and \[1\]"):
        score(torch.zeros(2), [1])
    with pytest.raises(ValueError, match="lengths must be at least 1"):
        score(torch.zeros(2), [1, 0])
    with pytest.raises(ValueError, match="lengths must be integers"):
        score(torch.zeros(2), [1.5, 1.0])  # pyright: ignore[reportArgumentType]
