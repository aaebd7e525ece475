"""JSON out of files without holding them: one line, or one element of a list, at a time.

Strings may come out with lone surrogates in them, for bytes that are not UTF-8 as well: no message may hold any, and
so a bad message is told apart from the conversation that it stands in. ijson does not do that (3.6: its C backend
turns a lone high surrogate into "?" without a word and ends the file at a low one; its Python backend reads 8 MB/s).
"""

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, BinaryIO

from app.importing.records import BadRecord

# What one line or one element may measure: it is held as a whole.
MAX_LENGTH = 64 * 1024 * 1024

_CHUNK = 1024 * 1024
BOM = b"\xef\xbb\xbf"
_BETWEEN_ELEMENTS = re.compile(r"\s*[\[,]?\s*")

_TOO_LONG = f"This is over {MAX_LENGTH:,} bytes long."


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A JSON value and where it stands."""

    place: str
    value: Any


def lines(source: BinaryIO) -> Iterator[Value | BadRecord]:
    """The lines of NDJSON; places are line numbers. Blank lines are none."""
    number = 0
    while line := source.readline(MAX_LENGTH + 1):
        number += 1
        if len(line) > MAX_LENGTH:
            while line and not line.endswith(b"\n"):
                line = source.readline(_CHUNK)
            yield BadRecord(place=str(number), reason=_TOO_LONG)
        elif text := line.removeprefix(BOM).strip():
            yield _decoded(str(number), text)


def elements(source: BinaryIO) -> Iterator[Value | BadRecord]:
    """The elements of the list that the file is; places are `[0]`, `[1]`, … The first broken one is the last."""
    reader = codecs.getreader("utf-8-sig")(source, "surrogateescape")
    text, start, index = "", 0, 0
    while True:
        start = _BETWEEN_ELEMENTS.match(text, start).end()  # type: ignore[union-attr]  # it matches anything
        if text.startswith("]", start):
            return
        try:
            value, start = _decoder.raw_decode(text, start)
        except (ValueError, ArithmeticError, RecursionError) as error:
            # Broken, or not read to its end yet. Reading as much again keeps the work linear.
            text, start = text[start:], 0
            more = reader.read(max(_CHUNK, len(text))) if len(text) <= MAX_LENGTH else ""
            if not more:
                yield BadRecord(place=f"[{index}]", reason=f"The file is broken or cut off here: {_sentence(error)}")
                return
            text += more
        else:
            yield Value(place=f"[{index}]", value=value)
            index += 1


def whole(source: BinaryIO) -> Value | BadRecord:
    """The one value that the file is."""
    data = source.read(MAX_LENGTH + 1)
    if len(data) > MAX_LENGTH:
        return BadRecord(place="", reason=_TOO_LONG)
    return _decoded("", data.removeprefix(BOM))


def decode(data: bytes) -> Any:
    """Raises ValueError, with a sentence."""
    try:
        return _decoder.decode(data.decode(errors="surrogateescape"))
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise ValueError(_sentence(error)) from None


def _decoded(place: str, data: bytes) -> Value | BadRecord:
    try:
        return Value(place=place, value=decode(data))
    except ValueError as error:
        return BadRecord(place=place, reason=str(error))


def _sentence(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "The JSON is nested too deeply."
    if isinstance(error, ArithmeticError):
        return "A number is outside every usable range."
    return f"This is not valid JSON: {error}."


def _integer(digits: str) -> int | Decimal:
    return int(digits) if len(digits) < 19 else Decimal(digits)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON value")


_decoder = json.JSONDecoder(parse_float=Decimal, parse_int=_integer, parse_constant=_refuse)
