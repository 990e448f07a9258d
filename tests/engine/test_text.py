"""Text as it grows is that of all tokens decoded at once, for every way in which tokenizers spell characters."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers.convert_slow_tokenizer import bytes_to_unicode

from vegas_spec.engine.text import TextStream

WORDS = ["a", "the", "cat", "é", "ß", "漢", "!", ".", "'", "  ", "\n", "\N{REPLACEMENT CHARACTER}"]
EMOJI = "🙂🚀👩‍💻🎉"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPECIAL = ["<pad>", "<s>", "</s>"]


def wrapped(core: Tokenizer) -> Any:
    core.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    core.add_tokens(["<tool>"])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )


def vocabulary(*pieces: Sequence[str]) -> dict[str, int]:
    return {piece: number for number, piece in enumerate(dict.fromkeys(itertools.chain(SPECIAL, *pieces)))}


def byte_level() -> Any:
    """GPT-2, Llama 3, Qwen: every byte is a letter of the vocabulary."""
    letters = bytes_to_unicode()
    words = ["".join(letters[byte] for byte in word.encode()) for word in [*WORDS, " the", " cat"]]
    halves = ["".join(letters[byte] for byte in part) for part in (b"d\xf0", b"\x9f\x99", b"\x82!", b"\xf0\x9f")]
    core = Tokenizer(models.BPE(vocabulary(letters.values(), words, halves), merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return wrapped(core)


def byte_fallback(*last: Any) -> Any:
    """Llama 2, Mistral and, without `last`, Gemma: what the vocabulary lacks is spelled by bytes with names."""
    pieces = [*WORDS, "▁", "▁▁", "▁the", "▁cat", "cat▁"]
    core = Tokenizer(models.BPE(vocabulary(BYTES, pieces), merges=[], byte_fallback=True, unk_token="<pad>"))
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *last])
    return wrapped(core)


def metaspace() -> Any:
    core = Tokenizer(models.Unigram([(piece, 0.0) for piece in vocabulary(WORDS, ["▁", "▁the", "▁cat", "▁a"])], 0))
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoders.Metaspace()
    return wrapped(core)


def word_piece(cleanup: bool) -> Any:
    core = Tokenizer(models.WordPiece(vocabulary(WORDS, ["##s", "##ing", "##é"]), unk_token="<pad>"))
    core.decoder = decoders.WordPiece(cleanup=cleanup)
    return wrapped(core)


def suffixed() -> Any:
    core = Tokenizer(models.BPE(vocabulary(WORDS, ["the</w>", "cat</w>", "</w>"]), merges=[]))
    core.decoder = decoders.BPEDecoder(suffix="</w>")
    return wrapped(core)


TOKENIZERS = {
    "byte level": byte_level(),
    "byte fallback, Llama": byte_fallback(decoders.Strip(" ", 1, 0)),
    "byte fallback, Gemma": byte_fallback(),
    "metaspace": metaspace(),
    "word piece": word_piece(cleanup=False),
    "word piece, cleaned up": word_piece(cleanup=True),
    "suffixes": suffixed(),
}


def at_once(tokenizer: Any, tokens: Sequence[int]) -> str:
    return str(tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def ids(tokenizer: Any, pieces: Sequence[str]) -> list[int]:
    return [tokenizer.convert_tokens_to_ids(piece) for piece in pieces]


def spelled(text: str) -> list[str]:
    return [BYTES[byte] for byte in text.encode()]


@st.composite
def sayings(draw: st.DrawFn, tokenizer: Any) -> list[int]:
    """Any tokens, whole characters spelled by bytes, and the same few tokens again and again."""
    vocab = tokenizer.get_vocab()
    letters = bytes_to_unicode()
    any_token = st.sampled_from(sorted(vocab.values())).map(lambda token: [token])
    parts = [any_token, st.integers(len(vocab), len(vocab) + 3).map(lambda token: [token])]
    if BYTES[0] in vocab:
        parts += [st.sampled_from(list(EMOJI)).map(lambda text: [vocab[each] for each in spelled(text)])] * 2
        parts.append(st.sampled_from(BYTES).map(lambda each: [vocab[each]]))
    if letters[0] in vocab:
        parts.append(st.sampled_from(list(EMOJI)).map(lambda text: [vocab[letters[byte]] for byte in text.encode()]))
    said = [token for part in draw(st.lists(st.one_of(parts), max_size=40)) for token in part]
    return said * draw(st.sampled_from([1, 1, 1, 4])) + said[: draw(st.integers(0, 3))]


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_text_is_what_all_tokens_decode_to(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    tokens = data.draw(sayings(tokenizer))
    stream = TextStream(tokenizer)
    text = ""
    for count, token in enumerate(tokens, start=1):
        longer, stop = stream.append(token)
        assert stop is None
        assert longer.startswith(text)
        text = longer
        whole = at_once(tokenizer, tokens[:count])
        spelling = str(tokenizer.convert_ids_to_tokens(token)) in BYTES
        if not spelling and token in tokenizer.get_vocab().values() and token not in tokenizer.all_special_ids:
            # All that can be known is shown: a character lacks three bytes at most.
            assert text == whole[: max(len(whole.rstrip("\ufffd")), len(whole) - 3)]
    assert at_once(tokenizer, tokens).startswith(text)
    assert stream.flush() == at_once(tokenizer, tokens)
    assert stream.flush() == at_once(tokenizer, tokens)


def stops_at(tokenizer: Any, tokens: Sequence[int], stops: Sequence[str], after: int) -> tuple[int, str, str] | None:
    """The first number of tokens whose text has a stop string, by decoding everything for each token."""
    length = 0
    for count in range(1, len(tokens) + 1):
        text = at_once(tokenizer, tokens[:count])
        text = text[: max(len(text.rstrip("\ufffd")), len(text) - 3)]
        ends = [
            (at + len(stop), place)
            for place, stop in enumerate(stops)
            for at in range(len(text))
            if text.startswith(stop, at) and at + len(stop) > length
        ]
        if count <= after:
            length = len(text)
        elif ends:
            end, place = min(ends)
            return count, text[: end - len(stops[place])], stops[place]
    return None


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_stop_strings_are_found_where_they_are_complete(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    tokens = data.draw(sayings(tokenizer))
    texts = st.sampled_from(["a", "the cat", "t", "🙂", "🚀🎉", "🙂a", " ", "\n", "é", "ca", "s", "👩‍💻"])
    stops = data.draw(st.lists(texts, min_size=1, max_size=3, unique=True))
    after = data.draw(st.sampled_from([0, 0, 2, 9]))
    stream = TextStream(tokenizer, stops, after)
    found = None
    for count, token in enumerate(tokens, start=1):
        text, stop = stream.append(token)
        if stop is not None:
            found = count, text, stop
            break
    assert found == stops_at(tokenizer, tokens, stops, after)


@pytest.mark.parametrize("name", ["byte fallback, Llama", "byte fallback, Gemma"])
def test_characters_spelled_by_bytes(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    tokens = ids(tokenizer, ["▁the", *spelled(EMOJI), "▁cat"])
    stream = TextStream(tokenizer)
    texts = [stream.append(token)[0] for token in tokens]
    assert texts[-1].strip() == f"the{EMOJI} cat"
    assert not any("\ufffd" in text for text in texts)
    seen = [TextStream(tokenizer, [EMOJI[:3]])]
    stopped = [seen[0].append(token)[1] for token in tokens]
    assert stopped.index(EMOJI[:3]) == len(EMOJI[:3].encode())


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_work_for_a_token_does_not_grow_with_the_text(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    vocab = tokenizer.get_vocab()
    cat = next(piece for piece in ("▁cat", "cat</w>", "cat") if piece in vocab)
    word = ids(tokenizer, ["a", cat, "!", "the", "</s>"])
    word += ids(tokenizer, spelled("🙂")) if BYTES[0] in vocab else []
    decoded = 0

    class Counting:
        def __getattr__(self, attribute: str) -> Any:
            return getattr(tokenizer, attribute)

        def decode(self, tokens: Sequence[int], **options: Any) -> str:
            nonlocal decoded
            decoded += len(tokens)
            return str(tokenizer.decode(tokens, **options))

    for says in (word, [token for token in word if token not in tokenizer.all_special_ids][:1]):
        for stops in ((), ("nowhere",)):
            decoded, tokens = 0, says * (2000 // len(says))
            stream = TextStream(Counting(), stops)
            for token in tokens:
                stream.append(token)
            assert stream.flush() == at_once(tokenizer, tokens)
            assert decoded < 50 * len(tokens)


def test_without_a_tokenizer_there_is_no_text() -> None:
    stream = TextStream(None)
    assert stream.append(3) == ("", None)
    assert stream.flush() == ""
