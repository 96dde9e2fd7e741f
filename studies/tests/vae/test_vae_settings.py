"""Settings: what they refuse, what their JSON says, and the schedules that follow from them."""

import dataclasses
import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailsum_studies.vae.settings import EXACT_UP_TO, Settings


def test_settings_are_what_their_json_says():
    for settings in (
        Settings(),
        Settings(data="a/b.txt", kept=7, estimator="rdp", rate=1.0, hard=False, seed=-3, final_temperature=0.1),
        Settings(warm_up=0.0, entropy_weight=0.0, shards=3, encoder="some/model", frozen=False),
        Settings(steps=9, earlier=(3, 7)),
    ):
        assert Settings.from_json(json.loads(json.dumps(settings.as_json()))) == settings
    assert Settings.from_json({"steps": 7}) == Settings(steps=7)  # an earlier version had fewer names


def test_a_whole_number_may_stand_for_any(unchecked):
    assert Settings.from_json({"rate": 1, "warm_up": 0}) == Settings(rate=1.0, warm_up=0.0)


@pytest.mark.parametrize("content", [None, [], "text", 3, {"step": 3}, {"steps": 3, "Steps": 3}])
def test_what_is_no_settings_is_refused(content):
    with pytest.raises(ValueError, match="settings"):
        Settings.from_json(content)


WRONG = {
    int: ("3", 1.5, True, [1], None),
    float: ("3", True, [1.0], None),
    bool: (0, 1, "yes", None),
    str: (3, True, ["lstm"], None),
    tuple: (3, "3", ["3"], [1.5], [True], None),
}


def wrong_types():
    for field in dataclasses.fields(Settings):
        if field.name == "estimator":
            wrong = ("sum", None, 3, ["rdp"])
        elif field.default is None:
            kind = {"data": str, "kept": int, "drawn": int, "last_word_dropout": float}[field.name]
            wrong = tuple(x for x in WRONG[kind] if x is not None)
        else:
            wrong = WRONG[type(field.default)]
        yield from ((field.name, value) for value in wrong)


@pytest.mark.parametrize(("name", "value"), list(wrong_types()))
def test_a_value_of_a_wrong_type_is_named(name, value):
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        Settings.from_json({name: value})


BAD = {
    **dict.fromkeys(("words", "longest", "size", "state_size", "hidden", "steps", "batch", "shards"), (0, -1)),
    **dict.fromkeys(("check_every", "check_sentences", "check_samples", "landmarks", "probes", "drawn"), (0, -1)),
    **dict.fromkeys(("states", "kept"), (1, 0, -1)),
    **dict.fromkeys(("rate", "clip", "temperature", "final_temperature", "spread"), (0.0, -1.0, math.inf, math.nan)),
    "dropout": (-0.1, 1.0, math.inf, math.nan),
    **dict.fromkeys(("warm_up", "word_dropout", "last_word_dropout"), (-0.1, 1.1, math.inf, math.nan)),
    **dict.fromkeys(("entropy_weight", "certainty"), (-0.1, math.inf, math.nan)),
    "estimator": ("sum", "TopK"),
    "earlier": ((900,), (1000,), (0,), (5, 5), (6, 5)),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_a_bad_value_is_named(name, value, unchecked):
    with pytest.raises(ValueError, match=rf"\b{name}\b.*{re.escape(str(value))}"):
        Settings(**{name: value})


def test_a_batch_has_a_sentence_for_each_shard():
    Settings(batch=3, shards=3)
    with pytest.raises(ValueError, match="shards"):
        Settings(batch=3, shards=4)


def test_the_rate_grows_then_falls():
    settings = Settings(steps=1000, rate=0.5)
    rates = [settings.rate_at(step) for step in range(1000)]
    assert rates[0] == pytest.approx(0.5 / 100)
    assert rates[99:501] == [0.5] * 402
    assert rates[:100] == sorted(rates[:100])
    assert rates[500:] == sorted(rates[500:], reverse=True)
    assert rates[750] == pytest.approx(0.25)
    assert rates[-1] == pytest.approx(0.5 * 0.02)


@given(st.integers(1, 30), st.floats(1e-4, 1.0))
def test_the_rate_is_never_zero_nor_above_what_was_asked(steps, rate):
    settings = Settings(steps=steps, rate=rate)
    assert all(0 < settings.rate_at(step) <= rate for step in range(steps))


def test_the_weight_grows_to_its_end():
    settings = Settings(steps=100, warm_up=0.2, kl_weight=1.0)
    assert [settings.weight_at(step) for step in (0, 5, 20, 99)] == [0, 0.25, 1, 1]
    assert Settings(steps=10, warm_up=1.0, kl_weight=2.0).weight_at(9) == pytest.approx(1.8)
    assert Settings(steps=10, warm_up=0.0, kl_weight=0.7).weight_at(0) == 0.7


def test_the_temperature_changes_geometrically_in_the_second_half():
    settings = Settings(steps=100, temperature=2.0, final_temperature=0.5)
    found = [settings.temperature_at(step) for step in (0, 50, 75, 100)]
    assert found == pytest.approx([2.0, 2.0, 1.0, 0.5])
    assert Settings(temperature=0.7, final_temperature=0.7).temperature_at(999) == pytest.approx(0.7)


def test_word_dropout_changes_linearly_in_the_first_half():
    settings = Settings(steps=100, word_dropout=1.0, last_word_dropout=0.2)
    assert [settings.word_dropout_at(step) for step in (0, 25, 50, 99)] == pytest.approx([1.0, 0.6, 0.2, 0.2])
    assert Settings(steps=100, word_dropout=0.3).word_dropout_at(40) == 0.3
    assert Settings(steps=100, word_dropout=0.3, last_word_dropout=0.0).word_dropout_at(99) == pytest.approx(0.0)


def test_how_many_states_are_kept():
    def kept(**given):
        return Settings(**given).sums().kept

    many = EXACT_UP_TO + 1
    assert kept(states=500, estimator="tailsum") == kept(states=500, estimator="full") == 500
    assert kept(states=EXACT_UP_TO, estimator="tailsum") == EXACT_UP_TO
    assert kept(states=many, estimator="tailsum") == 200
    assert kept(states=500, estimator="rdp") == kept(states=500, estimator="topk") == 100
    assert kept(states=3, estimator="rdp") == 2
    assert kept(states=50, kept=70, estimator="rdp") == 50
    assert kept(states=many, kept=30, estimator="tailsum") == 30
