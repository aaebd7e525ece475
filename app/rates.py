"""How often something may happen, as a setting says it: `100/minute`, in the notation of the `limits` library."""

from typing import Annotated, Any

from limits import RateLimitItem, parse_many
from pydantic import BeforeValidator
from pydantic_settings import NoDecode


def _rates(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value.strip().lower() == "off":
        return ()
    try:
        rates = parse_many(value.strip())
    except ValueError:
        rates = []
    if not rates or any(rate.amount < 1 for rate in rates):
        raise ValueError(f"This is no rate: {value!r}; write 100/minute, or several as 10/second; 1000/hour.")
    return tuple(rates)


Rates = Annotated[tuple[RateLimitItem, ...], NoDecode, BeforeValidator(_rates)]
