"""Texts against tokenizers that the tests build: the tokenizer is the oracle of every length."""

import asyncio
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from embbench.errors import ConfigError, TargetError
from embbench.inputs import (
    GATE,
    Demand,
    Recipe,
    TextSource,
    calibrate,
    open_tokenizer,
    recipe_from_tokenizer,
)
from embbench.inputs.words import OPENERS, WORDS

PROSE = "the quick brown fox jumps over the lazy dog and people may know how to read a page " * 3


def template(tokenizer: Tokenizer, single: str) -> processors.TemplateProcessing:
    """Adds the special tokens of ``single`` around each text."""
    special = [(name, tokenizer.token_to_id(name) or 0) for name in single.split() if name != "$A"]
    return processors.TemplateProcessing(single=single, special_tokens=special)


def word_level() -> Tokenizer:
    """Splits at white space; most words are unknown, one token each; no special tokens."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.train_from_iterator([PROSE], trainers.WordLevelTrainer(special_tokens=["[UNK]"]))
    return tokenizer


def word_level_closed() -> Tokenizer:
    """As `word_level`, with one special token at each end, as a post-processor adds them."""
    tokenizer = word_level()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.post_processor = template(tokenizer, "<s> $A </s>")
    return tokenizer


def bpe() -> Tokenizer:
    """Byte-level BPE with few merges: words cost one to many tokens, with their leading space."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator([PROSE], trainer)
    return tokenizer


def bpe_large() -> Tokenizer:
    """As large vocabularies do: nearly every common word is one token, with its leading space."""
    tokenizer = bpe()
    trainer = trainers.BpeTrainer(
        vocab_size=3000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator([" ".join(WORDS)] * 3, trainer)
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.post_processor = template(tokenizer, "$A <end>")
    return tokenizer


def byte_level() -> Tokenizer:
    """Every byte is a token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return tokenizer


def word_piece() -> Tokenizer:
    """WordPiece with [CLS] and [SEP], lower-casing; cuts at 20 tokens and pads, as files may."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=500, special_tokens=["[UNK]", "[CLS]", "[SEP]", "[PAD]"]
    )
    tokenizer.train_from_iterator([" ".join(WORDS[:150])] * 2 + list(WORDS), trainer)
    tokenizer.post_processor = template(tokenizer, "[CLS] $A [SEP]")
    tokenizer.enable_truncation(20)
    tokenizer.enable_padding(length=20)
    return tokenizer


def space_is_a_token() -> Tokenizer:
    """Every word and every space is a token: words alone make no text of even length."""
    tokenizer = word_level()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "isolated"), pre_tokenizers.Punctuation()]
    )
    return tokenizer


TOKENIZERS: dict[str, tuple[Callable[[], Tokenizer], int]] = {
    # how it is built, and its special tokens a text
    "word level": (word_level, 0),
    "word level, closed": (word_level_closed, 2),
    "small BPE": (bpe, 0),
    "large BPE": (bpe_large, 1),
    "byte level": (byte_level, 0),
    "WordPiece": (word_piece, 2),
    "space is a token": (space_is_a_token, 0),
}

every_tokenizer = pytest.mark.parametrize("kind", TOKENIZERS)


@cache
def as_saved(kind: str) -> str:
    """The tokenizer.json, built once: training does not give the same result twice."""
    return TOKENIZERS[kind][0]().to_str()


@cache
def oracle(kind: str) -> Tokenizer:
    tokenizer = Tokenizer.from_str(as_saved(kind))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def lengths(kind: str, texts: Iterable[str]) -> set[int]:
    """The different numbers of tokens that the oracle finds."""
    return {len(encoding.ids) for encoding in oracle(kind).encode_batch(list(texts))}


class Server:
    """Counts as a server does: one number a request. Keeps what it was asked."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.asked: list[list[str]] = []

    async def count(self, texts: list[str]) -> int:
        self.asked.append(texts)
        return sum(len(encoding.ids) for encoding in oracle(self.kind).encode_batch(texts))


@cache
def recipe_of(kind: str) -> Recipe:
    """Found by asking a server, once for all tests."""
    return asyncio.run(calibrate(Server(kind).count, [80], seed=1))


def measured(recipe: Recipe, seed: int = 0, tokens: int = 80, count: int = 1000) -> list[str]:
    source = TextSource(recipe, seed, [Demand("measured", tokens, count)])
    return source.texts(tokens, "measured", 0, count)


@every_tokenizer
def test_a_thousand_inputs_calibrated_against_a_server_are_80_tokens_each(kind: str) -> None:
    texts = measured(recipe_of(kind))
    assert len(set(texts)) == 1000
    assert lengths(kind, texts) == {80}


@every_tokenizer
def test_a_thousand_inputs_by_tokenizer_file_are_80_tokens_each(kind: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(as_saved(kind))
    recipe = asyncio.run(recipe_from_tokenizer(tmp_path, [80], seed=1))
    assert recipe.counted_by == "tokenizer"
    texts = measured(recipe)
    assert len(set(texts)) == 1000
    assert lengths(kind, texts) == {80}


@every_tokenizer
def test_the_shortest_text_and_the_special_tokens_are_found(kind: str) -> None:
    recipe = recipe_of(kind)
    special = TOKENIZERS[kind][1]
    assert lengths(kind, [""]) == {special}  # the oracle agrees with the table
    assert recipe.overhead == special
    assert recipe.shortest == special + 1
    text = TextSource(recipe, 3).text(recipe.shortest, GATE, 0)
    assert lengths(kind, [text]) == {special + 1}


@every_tokenizer
@pytest.mark.parametrize("tokens", [5, 6, 17, 80, 257, 2048])
def test_every_length_is_met_exactly(kind: str, tokens: int) -> None:
    source = TextSource(recipe_of(kind), 11)
    count = min(50, source.available(tokens, GATE))
    assert count >= 3
    texts = source.texts(tokens, GATE, 0, count)
    assert len(set(texts)) == count
    assert lengths(kind, texts) == {tokens}


@every_tokenizer
def test_a_server_is_asked_tens_of_times_with_short_requests(kind: str) -> None:
    server = Server(kind)
    recipe = asyncio.run(calibrate(server.count, [16], seed=1))
    assert recipe.probes == len(server.asked) < 100
    assert max(map(len, server.asked)) <= 16
    assert max(len(text) for request in server.asked for text in request) < 100


@every_tokenizer
def test_words_are_lower_case_english(kind: str) -> None:
    known = {*WORDS, *OPENERS}
    for text in measured(recipe_of(kind), count=50):
        assert {word.strip(".,!") for word in text.split()} <= known
        assert text == text.lower()


@pytest.mark.parametrize("kind", ["word level, closed", "WordPiece"])
@pytest.mark.parametrize("tokens", [-1, 0, 1, 2])
def test_an_impossible_length_is_named_with_the_least_possible(kind: str, tokens: int) -> None:
    source = TextSource(recipe_of(kind), 0)
    with pytest.raises(ConfigError, match=r"the shortest has 3, of which 2 are special tokens"):
        source.text(tokens, GATE, 0)


@every_tokenizer
def test_the_gates_probe_is_two_tokens_or_the_least_more_that_there_is(kind: str) -> None:
    source = TextSource(recipe_of(kind), 0)
    probe = source.at_least(2)
    assert probe == max(2, TOKENIZERS[kind][1] + 1)
    assert lengths(kind, [source.text(probe, GATE, 0)]) == {probe}


@given(
    seed=st.integers(-(2**70), 2**70),
    kind=st.sampled_from(["word level", "byte level", "small BPE"]),
    tokens=st.integers(10, 100),
    counts=st.lists(st.integers(1, 200), min_size=1, max_size=6),
)
@settings(max_examples=60, deadline=None)
def test_no_text_of_a_run_is_made_twice(
    seed: int, kind: str, tokens: int, counts: list[int]
) -> None:
    demands = [Demand(f"cell {i}", tokens, n) for i, n in enumerate(counts)]
    source = TextSource(recipe_of(kind), seed, [*demands, Demand("other", tokens + 1, 20)])
    texts = [text for d in demands for text in source.texts(tokens, d.namespace, 0, d.count)]
    texts += source.texts(tokens + 1, "other", 0, 20)
    for name in ("gate", "calibrate"):
        texts += source.texts(tokens, name, 0, source.available(tokens, name))
    assert len(set(texts)) == len(texts) > sum(counts)
    assert lengths(kind, texts[: sum(counts)]) == {tokens}


def test_a_length_with_little_room_is_used_to_the_last_text_and_no_further() -> None:
    # 12 openers, each with one of the words behind it
    room = len(OPENERS) * len(WORDS)
    recipe = recipe_of("word level")
    half = room // 2
    demands = [Demand("a", 2, half), Demand("b", 2, room - half)]
    source = TextSource(recipe, 5, demands)
    assert source.capacity(2) == room
    texts = source.texts(2, "a", 0, half) + source.texts(2, "b", 0, room - half)
    assert len(set(texts)) == room
    with pytest.raises(ConfigError, match=f"needs {room + 1} different texts of 2 tokens"):
        TextSource(recipe, 5, [*demands, Demand("c", 2, 1)])


def test_namespaces_at_hashed_places_are_kept_apart_where_they_would_meet() -> None:
    # 3000 stretches fill a thousandth of 12 * 293**3 numbers: some would meet, either way round
    demands = [Demand(str(i), 4, 90) for i in range(3000)]
    source = TextSource(recipe_of("word level"), 4, demands)
    assert sum(d.count for d in demands) * 1000 < source.capacity(4)
    texts = {text for d in demands for text in source.texts(4, d.namespace, 0, 90)}
    assert len(texts) == 3000 * 90


def test_texts_depend_on_seed_namespace_and_index_and_on_nothing_else() -> None:
    recipe = recipe_of("large BPE")
    alone = TextSource(recipe, 42, [Demand("b15/trial0", 80, 100)])
    among = TextSource(
        Recipe.from_json(recipe.to_json()),
        42,
        [Demand("b64/trial0", 80, 5000), Demand("b15/trial0", 80, 100), Demand("b1", 40, 7)],
    )
    texts = alone.texts(80, "b15/trial0", 0, 100)
    assert among.texts(80, "b15/trial0", 0, 100) == texts  # another target, a resumed run
    assert [among.text(80, "b15/trial0", i) for i in range(100)] == texts  # in any portions
    other_seed = TextSource(recipe, 43, [Demand("b15/trial0", 80, 100)])
    assert not {*other_seed.texts(80, "b15/trial0", 0, 100)} & {*texts}


def test_neighbours_share_no_prefix_that_a_cache_could_use() -> None:
    for kind in ("small BPE", "large BPE", "byte level", "WordPiece"):  # no unknown words there
        texts = measured(recipe_of(kind), count=200)
        blocks = [tuple(e.ids[:16]) for e in oracle(kind).encode_batch(texts)]
        assert len(set(blocks)) == 200


def test_asking_beyond_what_was_set_aside_is_refused() -> None:
    source = TextSource(recipe_of("word level"), 0, [Demand("a", 80, 10)])
    with pytest.raises(ConfigError, match="texts 9 to 10 of 'a' at 80 tokens"):
        source.texts(80, "a", 9, 2)


# --- servers that cannot be calibrated against


async def refuse_usage(texts: list[str]) -> int | None:
    return None


async def always_zero(texts: list[str]) -> int:
    return 0


async def one_a_text(texts: list[str]) -> int:
    return len(texts)


async def cut_at_40(texts: list[str]) -> int:
    return sum(min(40, len(text.split())) for text in texts)


async def merges_across_words(texts: list[str]) -> int:
    return sum(len(text.split()) - text.count("d w") for text in texts)


async def first_batch_item_only(texts: list[str]) -> int:
    return len(texts[0].split()) + len(texts) - 1


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (refuse_usage, "reports None prompt tokens"),
        (always_zero, "reports 0 prompt tokens"),
        (one_a_text, "does not follow the text"),
        (cut_at_40, r"made to be 80 tokens are counted as 40 tokens each"),
        (merges_across_words, "do not add up"),
        (first_batch_item_only, "counts of words do not add up"),
    ],
)
async def test_a_server_that_does_not_count_is_told_apart_with_advice(
    count: Callable[[list[str]], asyncio.Future[int | None]], said: str
) -> None:
    with pytest.raises(TargetError, match=said) as caught:
        await calibrate(count, [80], seed=1)
    assert "give the model's tokenizer" in str(caught.value)


async def test_a_length_below_the_special_tokens_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="the shortest has 3"):
        await calibrate(Server("WordPiece").count, [2], seed=1)


# --- tokenizer files


def test_truncation_and_padding_of_the_file_are_switched_off(tmp_path: Path) -> None:
    word_piece().save(str(tmp_path / "tokenizer.json"))
    tokenizer = open_tokenizer(tmp_path / "tokenizer.json")
    assert len(tokenizer.encode("the " * 50).ids) == 52
    assert len(tokenizer.encode("the").ids) == 3


def test_a_missing_or_damaged_tokenizer_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"name a directory with tokenizer\.json"):
        open_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="cannot be read as a tokenizer"):
        open_tokenizer(tmp_path)
