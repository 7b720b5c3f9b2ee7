"""Calibration: what words cost in tokens, asked of the model's tokenizer or of a server.

In: a function that counts the tokens of one request's texts (for a server, its own
``usage.prompt_tokens``). Out: a `Recipe`, verified on texts that it makes. A server is asked a few
dozen times: words are weighed in groups, because a group of n words that costs n tokens, or as
many tokens as bytes, says what each word costs. Only where that fails are words weighed singly.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from math import gcd
from pathlib import Path
from typing import TYPE_CHECKING

from embbench.errors import ConfigError, TargetError
from embbench.inputs.recipe import CountedBy, Recipe
from embbench.inputs.texts import CALIBRATE, TextSource
from embbench.inputs.words import CLOSERS, OPENERS, WORDS

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Count = Callable[[list[str]], Awaitable[int | None]]
"""Tokens of one request with these texts, special tokens included; None if it is not told."""

_GROUP_TEXTS, _WORDS_A_TEXT = 4, 8
_SINGLES = 32  # words weighed one by one, when groups do not tell
_DEAREST = 12  # words that cost more are left out
_SAMPLE = 16  # texts a length that are verified, of which _ALONE one by one
_ALONE = 3
_ADVICE = "give the model's tokenizer (a directory with tokenizer.json)"


def open_tokenizer(path: Path) -> "Tokenizer":
    """The tokenizer in a model directory, or a tokenizer.json. Raises `ConfigError`.

    Truncation and padding, which some files switch on, are switched off: they would hide the
    length of every text.
    """
    from tokenizers import Tokenizer

    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(f"tokenizer: there is no {file}; name a directory with tokenizer.json")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as exc:  # the library raises bare Exception for a file it cannot read
        raise ConfigError(f"tokenizer: {file} cannot be read as a tokenizer ({exc})") from exc
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


async def recipe_from_tokenizer(path: Path, lengths: Sequence[int], seed: int) -> Recipe:
    """A recipe from the model's own tokenizer; no request is sent. Raises `ConfigError`."""
    tokenizer = open_tokenizer(path)

    async def count(texts: list[str]) -> int:
        return sum(len(encoding.ids) for encoding in tokenizer.encode_batch(texts))

    return await calibrate(count, lengths, seed, counted_by="tokenizer")


async def calibrate(
    count: Count, lengths: Sequence[int], seed: int, *, counted_by: CountedBy = "server"
) -> Recipe:
    """Weigh words by ``count`` and verify texts of ``lengths`` tokens, and the shortest ones.

    Raises `TargetError` if counts are not told or do not add up, `ConfigError` if a length cannot
    be made.
    """
    scale = _Scale(count)
    openers = await _weigh_openers(scale)
    words = await _weigh_words(
        scale, openers, len(WORDS) if counted_by == "tokenizer" else _SINGLES
    )
    closers = await _weigh_closers(scale, openers, words)
    recipe = Recipe(counted_by, openers, words, closers, scale.probes)
    probe = TextSource(recipe, seed).at_least(2)
    for tokens in sorted({probe, *lengths}):
        await _verify(scale, recipe, tokens, seed)
    return Recipe(counted_by, openers, words, closers, scale.probes)


@dataclass
class _Scale:
    """Counts requests beside tokens, and takes nothing but a plausible answer."""

    count: Count
    probes: int = 0

    async def weigh(self, texts: list[str]) -> int:
        self.probes += 1
        tokens = await self.count(texts)
        if tokens is None or tokens < len(texts):
            raise TargetError(
                f"the server reports {tokens} prompt tokens for {len(texts)} texts, so texts of "
                f"exact length cannot be calibrated; {_ADVICE}"
            )
        return tokens


async def _weigh_openers(scale: _Scale) -> dict[str, int]:
    return {opener: await scale.weigh([opener]) for opener in OPENERS}


async def _weigh_words(scale: _Scale, openers: dict[str, int], singles: int) -> dict[str, int]:
    """Costs of words that follow. Groups that do not tell are halved or weighed one by one."""
    opener = OPENERS[0]
    size = _GROUP_TEXTS * _WORDS_A_TEXT
    units = [f" {word}" for word in WORDS]
    groups = deque(units[at : at + size] for at in range(0, len(units), size))
    costs: dict[str, int] = {}
    while groups:
        group = groups.popleft()
        if len(group) == 1:
            if singles == 0:
                continue
            singles -= 1
        texts = [
            opener + "".join(group[at : at + _WORDS_A_TEXT])
            for at in range(0, len(group), _WORDS_A_TEXT)
        ]
        tokens = await scale.weigh(texts) - len(texts) * openers[opener]
        if tokens <= 0:
            raise TargetError(
                f"the server counts {openers[opener]} tokens for '{opener}' and no more with "
                f"{len(group)} words behind it: its usage does not follow the text; {_ADVICE}"
            )
        if len(group) == 1:
            costs[group[0]] = tokens
        elif tokens == len(group):  # a word is at least one token, so each is one
            costs |= dict.fromkeys(group, 1)
        elif tokens == sum(map(len, group)):  # a token is at least one byte, so each byte is one
            costs |= {unit: len(unit) for unit in group}
        elif tokens - len(group) <= 2:  # one or two words are dearer: halves find them
            half = len(group) // 2
            groups += [group[:half], group[half:]]
        else:
            groups += [[unit] for unit in group]
    return {unit: cost for unit, cost in costs.items() if cost <= _DEAREST}


async def _weigh_closers(
    scale: _Scale, openers: dict[str, int], words: dict[str, int]
) -> dict[str, int]:
    """Endings for the lengths that sums of word costs leave out; most tokenizers need none."""
    step = gcd(*words.values())
    closers: dict[str, int] = {}
    missing = set(range(1, step))
    for closer in CLOSERS:
        if not missing:
            break
        cost = await scale.weigh([OPENERS[0] + closer]) - openers[OPENERS[0]]
        if 0 < cost <= _DEAREST and cost % step in missing:
            closers[closer] = cost
            missing.discard(cost % step)
    return closers


async def _verify(scale: _Scale, recipe: Recipe, tokens: int, seed: int) -> None:
    """Count texts that the recipe makes: some alone, then all of the sample together."""
    source = TextSource(recipe, seed)
    sample = min(_SAMPLE, source.available(tokens, CALIBRATE))
    texts = source.texts(tokens, CALIBRATE, 0, sample)
    for request in [*([text] for text in texts[:_ALONE]), texts[_ALONE:]]:
        counted = await scale.weigh(request) if request else 0
        if counted != tokens * len(request):
            told = f"{counted / len(request):g} tokens each, e.g. '{request[0][:60]}'"
            raise TargetError(
                f"texts made to be {tokens} tokens are counted as {told}: the counts of words do "
                f"not add up, or the server cuts texts off; {_ADVICE}, or ask for a shorter ISL"
            )
