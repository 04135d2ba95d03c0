"""How a generation samples and when it stops: the only definition of these fields."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Resolved parameters of one generation (run defaults merged with the call's own).

    `temperature` 0 is greedy. `top_k` -1 is off. `stop` strings are cut from the text. `seed`
    None means: derived from the run's seed, the row and the site. With a `regex` the whole text
    matches it, as in `re.fullmatch(regex, text, re.ASCII)`, unless a stop string, a stop token that
    is text or `max_tokens` ends it before.
    """

    max_tokens: int = 128
    min_tokens: int = 0
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    ignore_eos: bool = False
    seed: int | None = None
    regex: str | None = None
