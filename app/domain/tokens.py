"""Token counts, without a network: the vocabulary ships with the package."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import bpe_openai

from app.domain.messages import count_of_other_parts, render

ENCODING = "o200k_base"

# The tokenizer refuses 1,000,000 characters or more in one piece. Cutting adds at most a token a cut.
PIECE_LENGTH = 50_000

# Texts from this length on are worth a thread: about 2 ms.
LONG_TEXT = 50_000

CountTokens = Callable[[Mapping[str, Any]], int]


def count_text(text: str) -> int:
    """Tokens of a text; special tokens in it are ordinary text."""
    encode = _encoding().encode_ordinary
    return sum(len(encode(text[start : start + PIECE_LENGTH])) for start in range(0, len(text), PIECE_LENGTH))


def counter(tokens_per_part: int) -> CountTokens:
    """A count of a message's rendered form, with a flat price for every part that is not text."""

    def count(message: Mapping[str, Any]) -> int:
        return count_text(render(message)) + tokens_per_part * count_of_other_parts(message)

    return count


@lru_cache(maxsize=1)
def _encoding() -> Any:
    return bpe_openai.get_encoding(ENCODING)
