"""What an output's text is, where it ends, and what it may not say."""

from __future__ import annotations

import itertools

import pytest
from scripted import EOS, HALF, SHARP_S, TALK, TOKENIZER, piece, say, scripted_llm, spell

from vegas_spec import SamplingParams

# --- text -----------------------------------------------------------------------------------------------------------

TEXTS = [
    "plain words, and more of them than one iteration can say",
    "Größe 漢字 🙂 é",
    " leading and trailing ",
    "",
    "🙂",
    "tab\tand\n\nlines",
]


@pytest.mark.parametrize("wrong_every", [0, 1, 3])
@pytest.mark.parametrize("text", TEXTS)
def test_text(text: str, wrong_every: int) -> None:
    output = say(spell(text), TALK, wrong_every=wrong_every)
    assert output.outputs[0].text == text
    assert output.outputs[0].token_ids == [*spell(text), EOS]
    assert output.outputs[0].finish_reason == "stop"
    assert output.outputs[0].stop_reason is None
    assert output.prompt == "x"


def test_bytes_that_are_no_text() -> None:
    tokens = [*spell(b"a\xff\xfeb\xc3"), EOS]
    output = say(tokens[:-1], TALK)
    assert output.outputs[0].text == TOKENIZER.decode(tokens, skip_special_tokens=True)


@pytest.mark.parametrize("count", range(1, 12))
def test_the_text_is_that_of_the_tokens_wherever_they_end(count: int) -> None:
    tokens = [*spell("ä🙂 b"), *piece("ab"), *spell("漢")]
    output = say(tokens, SamplingParams(temperature=0, max_tokens=count))
    assert output.outputs[0].text == TOKENIZER.decode(tokens[:count])
    assert output.outputs[0].finish_reason == "length"


@pytest.mark.parametrize("text", ["what ? no , I ' m here . don ' t", "a . b !"])
def test_spaces_stay_as_they_were_said(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(TOKENIZER, "clean_up_tokenization_spaces", True)
    assert say(spell(text), TALK).outputs[0].text == text


def test_a_stream_never_shows_half_a_character() -> None:
    tokens = spell("Größe 漢字 🙂 ok")
    llm = scripted_llm(tokens, policy="full")
    texts = [update.output.outputs[0].text for update in llm.stream("x", TALK)]
    assert texts[-1] == "Größe 漢字 🙂 ok"
    assert not any("\ufffd" in text for text in texts)
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))


# --- stopping -------------------------------------------------------------------------------------------------------

ABC = [*spell("one "), *piece("ab"), *spell("c two "), *piece("abc"), *spell(" three END four")]


@pytest.mark.parametrize(
    ("stop", "text", "reason"),
    [
        ("c", "one ab", "c"),
        ("abc", "one ", "abc"),  # begins within one token and ends with another
        ("e a", "on", "e a"),
        (["zzz", "two"], "one abc ", "two"),
        ("END", "one abc two abc three ", "END"),
        (["three", " thr"], "one abc two abc", " thr"),
        ("nowhere", "one abc two abc three END four", None),
        ("o", "", "o"),
    ],
)
@pytest.mark.parametrize("wrong_every", [0, 3])
def test_stop_strings(stop: str | list[str], text: str, reason: str | None, wrong_every: int) -> None:
    output = say(ABC, SamplingParams(temperature=0, max_tokens=100, stop=stop), wrong_every=wrong_every)
    assert output.outputs[0].text == text
    assert output.outputs[0].stop_reason == reason
    assert output.outputs[0].finish_reason == "stop"
    # The tokens end with the one that completed the stop string.
    said = TOKENIZER.decode(output.outputs[0].token_ids, skip_special_tokens=True)
    assert said.startswith(text)
    if reason is not None:
        shorter = TOKENIZER.decode(output.outputs[0].token_ids[:-1])
        assert reason in said
        assert reason not in shorter


@pytest.mark.parametrize(
    ("tokens", "stop", "text"),
    [
        (spell("aé🙂b"), "🙂", "aé"),
        (spell("aé🙂b"), "é", "a"),
        (spell("aé🙂b"), "🙂b", "aé"),
        ([*spell("stra"), *piece(SHARP_S + "!"), *spell("x")], "ß", "stra"),
        # Completed by a token that also begins a character which is never finished.
        ([*spell("goo"), *piece(HALF)], "od", "go"),
    ],
)
def test_stop_strings_of_several_bytes(tokens: list[int], stop: str, text: str) -> None:
    output = say(tokens, SamplingParams(temperature=0, max_tokens=100, stop=stop))
    assert (output.outputs[0].text, output.outputs[0].stop_reason) == (text, stop)


def test_the_first_of_two_stop_strings_in_one_token_ends_the_text() -> None:
    tokens = [*spell("x"), *piece("abc"), *spell("y")]
    output = say(tokens, SamplingParams(temperature=0, max_tokens=9, stop=["c", "b"]))
    assert output.outputs[0].text == "xa"
    assert output.outputs[0].stop_reason == "b"


def test_of_stop_strings_the_one_that_is_complete_first_ends_the_text() -> None:
    tokens = [*spell("x"), *piece("abc"), *spell("y")]
    output = say(tokens, SamplingParams(temperature=0, max_tokens=9, stop=["abc", "b"]))
    assert (output.outputs[0].text, output.outputs[0].stop_reason) == ("xa", "b")


@pytest.mark.parametrize("wrong_every", [0, 3])
def test_before_the_least_length_nothing_ends_the_output(wrong_every: int) -> None:
    options = {"temperature": 0, "max_tokens": 9}
    stopped = say(spell("abcabc"), SamplingParams(min_tokens=2, stop="a", **options), wrong_every=wrong_every)
    assert (stopped.outputs[0].text, stopped.outputs[0].stop_reason) == ("abc", "a")
    b = spell("b")[0]
    stopped = say(spell("abcab"), SamplingParams(min_tokens=3, stop_token_ids=[b], **options), wrong_every=wrong_every)
    # The second token may not be "b": the next one that the model likes is said, and no stop token.
    assert len(stopped.outputs[0].token_ids) == 5
    assert stopped.outputs[0].token_ids[-1] == stopped.outputs[0].stop_reason == b
    stopped = say(spell("ab"), SamplingParams(min_tokens=5, **options), wrong_every=wrong_every)
    assert EOS not in stopped.outputs[0].token_ids[:5]
    assert stopped.outputs[0].token_ids[5:] == [EOS]


def test_bad_words_biases_and_allowed_tokens() -> None:
    options = {"temperature": 0, "max_tokens": 6, "ignore_eos": True}
    a, b, c = spell("abc")
    assert say(spell("ababab"), SamplingParams(logit_bias={c: 150.0}, **options)).outputs[0].token_ids == [c] * 6
    output = say(spell("ababab"), SamplingParams(allowed_token_ids=[a, c], **options)).outputs[0]
    assert output.token_ids[::2] == [a, a, a]
    assert b not in output.token_ids
    text = say(spell("ab a b"), SamplingParams(bad_words=["b"], **options)).outputs[0].text
    assert "b" not in text
    text = say(spell("ba a b"), SamplingParams(bad_words=["a b"], **options)).outputs[0].text
    assert text == "ba a "  # each token of a bad word may be said by itself


def test_what_ends_a_text_is_what_the_generation_config_or_the_tokenizer_names() -> None:
    """As in vLLM: models tuned for chat often name their end of turn in one of the two only."""
    z = spell("z")[0]
    for says, end in (("one", EOS), ("onez", z)):
        llm = scripted_llm(spell(says))
        llm.model.module.generation_config.eos_token_id = [z]
        output = llm.generate("x", TALK)[0].outputs[0]
        assert (output.token_ids[-1], output.text, output.finish_reason) == (end, "one", "stop")


def test_stop_tokens() -> None:
    token = spell("t")[0]
    output = say(ABC, SamplingParams(temperature=0, max_tokens=100, stop_token_ids=[0, token]))
    assert output.outputs[0].text == "one abc "
    assert output.outputs[0].token_ids[-1] == token
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", token)


def test_an_ignored_end_can_still_be_a_stop_token() -> None:
    tokens = [*spell("a"), EOS, *spell("b")]
    output = say(tokens, SamplingParams(temperature=0, max_tokens=9, ignore_eos=True, stop_token_ids=[EOS]))
    assert output.outputs[0].token_ids == tokens[:2]
    assert output.outputs[0].stop_reason == EOS
    output = say(tokens, SamplingParams(temperature=0, max_tokens=3, ignore_eos=True))
    assert output.outputs[0].text == "ab"  # special tokens are no text
    assert output.outputs[0].finish_reason == "length"


def test_the_last_token_stops_rather_than_runs_out() -> None:
    output = say(spell("ab"), SamplingParams(temperature=0, max_tokens=3))
    assert output.outputs[0].finish_reason == "stop"
    output = say(spell("ab"), SamplingParams(temperature=0, max_tokens=2, stop="b"))
    assert (output.outputs[0].finish_reason, output.outputs[0].text) == ("stop", "a")
