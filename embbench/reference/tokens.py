"""A word tokenizer that needs no files: the same text gives the same ids everywhere.

In: a text. Out: one id a word or punctuation mark, and one special token at the end, where
last-token pooling reads. A word is a run of letters, digits and underscores; any other character
that is not white space is a token of its own. Ids are hashes of the token's UTF-8 bytes.
"""

import re
from functools import lru_cache
from hashlib import blake2b

END = 0
"""Id of the special token at the end; no word has it."""

_PIECE = re.compile(r"\w+|[^\w\s]")


class WordTokenizer:
    """Maps texts to ids below ``vocabulary``."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self._id = lru_cache(maxsize=1 << 18)(self._hash)

    def encode(self, text: str) -> list[int]:
        """Ids of a text, the special token last."""
        ids = [self._id(piece) for piece in _PIECE.findall(text)]
        ids.append(END)
        return ids

    def _hash(self, piece: str) -> int:
        # surrogatepass: a lone surrogate is legal in JSON and must not be a server error
        digest = blake2b(piece.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return 1 + int.from_bytes(digest, "little") % (self.vocabulary - 1)
