"""`sglc cache`: what a cache of answers holds, and forgetting it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from sglc.cli.options import Commands, number
from sglc.errors import UsageError

if TYPE_CHECKING:
    from sglc.observe.response_cache import ResponseCache

_DAY_S = 24 * 3600


def add_cache(commands: Commands) -> None:
    """Add `cache` to the commands of `sglc`."""
    cache = commands.add_parser("cache", help="look into a cache of answers, or clear it")
    actions = cache.add_subparsers(title="actions", required=True, metavar="ACTION")
    info = actions.add_parser("info", help="how many answers of which models it holds")
    info.add_argument("folder", metavar="DIR")
    info.set_defaults(command=_info)
    clear = actions.add_parser("clear", help="forget its answers")
    clear.add_argument("folder", metavar="DIR")
    clear.add_argument(
        "--older-than",
        type=number("number of days", zero=True),
        default=0.0,
        metavar="DAYS",
        help="those that were last used before",
    )
    clear.set_defaults(command=_clear)


def _info(options: argparse.Namespace) -> int:
    cache = _opened(options.folder)
    found = cache.info()
    cache.close()
    print(f"{found.entries:,} answers, {found.bytes:,} bytes, {found.hits:,} hits")
    for model, count in found.models.items():
        print(f"{count:>9,}  {model}")
    return 0


def _clear(options: argparse.Namespace) -> int:
    cache = _opened(options.folder)
    print(f"{cache.clear(options.older_than * _DAY_S):,} answers forgotten")
    cache.close()
    return 0


def _opened(folder: str) -> ResponseCache:
    from sglc.observe.response_cache import is_cache, open_cache

    if not is_cache(folder):
        raise UsageError(
            "SGLC065", f"there is no cache in `{folder}`", hint="fill one: `sglc run PROG --cache DIR`"
        )
    return open_cache(folder)
