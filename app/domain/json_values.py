"""JSON values kept exactly: no float rounding, no lone surrogates, a bound on nesting."""

import decimal
import hashlib
import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import msgspec

MAX_DEPTH = 64

_decoder = msgspec.json.Decoder(float_hook=Decimal)
_encoder = msgspec.json.Encoder(decimal_format="number")
_sorted_encoder = msgspec.json.Encoder(decimal_format="number", order="sorted")


class InvalidJson(ValueError):
    """The text is not strict JSON (RFC 8259), or is nested too deeply."""


def decode(data: bytes | str) -> Any:
    """Parse strict JSON. Fractions become `Decimal`, so that every number is kept as it was written."""
    try:
        value = _decoder.decode(data)
    except RecursionError:
        raise InvalidJson(f"JSON may be nested at most {MAX_DEPTH} levels deep.") from None
    except (ValueError, ArithmeticError) as error:
        raise InvalidJson(_reason(data, error)) from None
    if is_deeper_than(value, MAX_DEPTH):
        raise InvalidJson(f"JSON may be nested at most {MAX_DEPTH} levels deep.")
    return value


def decode_leniently(data: bytes | str) -> Any:
    """Parse what others write: NaN and Infinity, which are null here, and halves of surrogate pairs as well."""
    try:
        return decode(data)
    except InvalidJson as error:
        try:
            value = json.loads(data, parse_constant=lambda _: None)
        except (ValueError, RecursionError):
            raise error from None
        if is_deeper_than(value, MAX_DEPTH):
            raise
        return value


def well_formed(text: str) -> str:
    """The text with halves of surrogate pairs put together, and U+FFFD for those that have no other."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def encode(value: Any) -> str:
    return _encoder.encode(value).decode()


def encode_lines(values: Sequence[Any]) -> bytes:
    """NDJSON: one value a line. In one piece, as lines may be long."""
    return _encoder.encode_lines(values)


def digest(value: Any) -> bytes:
    """16 bytes that are equal exactly when two values are equal as JSON (1 is 1.0)."""
    return hashlib.blake2b(canonical(value), digest_size=16).digest()


def canonical(value: Any) -> bytes:
    """The same bytes for all values that are equal as JSON."""
    return _sorted_encoder.encode(_normalised(value))


def is_deeper_than(value: Any, levels: int) -> bool:
    containers = [value] if isinstance(value, dict | list) else []
    for _ in range(levels):
        containers = [item for container in containers for item in _containers_in(container)]
        if not containers:
            return False
    return bool(containers)


def holds_nul(value: Any) -> bool:
    """Whether U+0000 occurs in any string or key of the value."""
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any("\0" in key or holds_nul(item) for key, item in value.items())
    return isinstance(value, list) and any(map(holds_nul, value))


def _containers_in(container: Any) -> list[Any]:
    items = container.values() if isinstance(container, dict) else container
    return [item for item in items if isinstance(item, dict | list)]


def _normalised(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _normalised(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_normalised(item) for item in value]
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return _plain(Decimal(value) if not isinstance(value, float) else Decimal(repr(value)))
    return value


def _plain(number: Decimal) -> Decimal:
    """The number without trailing zeros; `Decimal.normalize` would round to the context's precision."""
    sign, digits, exponent = number.as_tuple()
    if not any(digits) or not isinstance(exponent, int):
        return Decimal(0)
    while digits[-1] == 0:
        digits, exponent = digits[:-1], exponent + 1
    return Decimal((sign, digits, exponent))


def _reason(data: bytes | str, error: Exception) -> str:
    if isinstance(error, decimal.InvalidOperation):
        return "It holds a number outside every usable range."
    try:
        text = json.dumps(json.loads(data, parse_constant=_refuse), ensure_ascii=False)
        text.encode()
    except UnicodeEncodeError:
        return r"A string holds a lone surrogate (\ud800 to \udfff): send the character itself or a full pair."
    except (ValueError, RecursionError):
        pass
    return f"This is not valid JSON: {error}."


def _refuse(constant: str) -> Any:
    raise ValueError(constant)
