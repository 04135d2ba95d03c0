"""`sglc backends`: what the models of APIs take, as the compiler reads it."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

from sglc.cli.options import Commands

if TYPE_CHECKING:
    from sglc.ir.target import Takes


def add_backends(commands: Commands) -> None:
    """Add `backends` to the commands of `sglc`."""
    backends = commands.add_parser("backends", help="what models of APIs take")
    backends.add_argument("name", nargs="?", metavar="B", help="one back end, such as anthropic:MODEL")
    backends.set_defaults(command=_show)


def _show(options: argparse.Namespace) -> int:
    if options.name is not None:
        _show_one(options.name)
        return 0
    from sglc.backends.models.table import VENDORS, known_models, source
    from sglc.backends.models.vendor_rules import api_model

    print(f"# {source()}, and the vendors' own rules")
    for kind in VENDORS:
        for name in known_models(kind):
            model = api_model(f"{kind}:{name}")
            assert model is not None
            words = {"images": _word(model.images), **takes_in_words(model.takes)}
            print(
                f"{kind}:{name}  {'; '.join(f'{key}: {word}' for key, word in words.items() if word != 'no')}"
            )
    return 0


def _show_one(name: str) -> None:
    from sglc.backends.models.table import facts_of, source
    from sglc.backends.registry import connect

    target, facts = connect(name).target, facts_of(name)
    print(target.name)
    if target.known:
        print(f"  from: {source() if facts is not None else 'what it says of itself'}")
    else:
        print("  from: what its protocol has in common, as it is in no table of models (`takes=` says more)")
    print(f"  prompts: {target.protocol}")
    print(f"  images: {_word(target.images)}")
    written = "by what the model writes" if target.takes.json_schema else "no"
    print(f"  select: {'by log-probabilities' if target.scores_tokens else written}")
    for key, word in takes_in_words(target.takes).items():
        print(f"  {key}: {word}")
    if facts is not None:
        for key, number in (("longest prompt", facts.longest_prompt), ("longest answer", facts.longest_answer)):
            if number is not None:
                print(f"  {key}: {number:,} tokens")
        if facts.prices is not None:
            prompt, kept, answer = facts.prices
            told = f"prompt {prompt:g}, kept prompt {kept if kept is not None else prompt:g}, answer {answer:g}"
            print(f"  dollars per million tokens: {told}")


def takes_in_words(takes: Takes) -> dict[str, str]:
    """What a model takes of a request, a word or two for each parameter."""
    stops = "any number" if takes.stops is None else f"up to {takes.stops}" if takes.stops else "no"
    heat = takes.temperature
    places = takes.logprobs
    return {
        "stop": stops if takes.blank_stops else f"{stops}, not of white space alone",
        "n": "any number" if takes.samples is None else f"up to {takes.samples} in one request",
        "seed": _word(takes.seed),
        "temperature": "no" if heat is None else "yes" if heat == math.inf else f"up to {heat:g}",
        "top_p": "yes, without temperature"
        if takes.top_p > takes.top_p_at_any_temperature
        else _word(takes.top_p),
        "top_k": _word(takes.top_k),
        "min_p": _word(takes.min_p),
        "penalties": _word(takes.penalties),
        "repetition_penalty": _word(takes.repetition_penalty),
        "logit_bias": _word(takes.logit_bias),
        "min_tokens": _word(takes.min_tokens),
        "stop_token_ids": _word(takes.stop_tokens),
        "logprobs": "any number" if places is None else "no" if places < 0 else f"up to {places}",
        "json_schema": {"": "no", "full": "yes"}.get(takes.json_schema, f"the subset `{takes.json_schema}`"),
        "regex": _word(takes.regex),
        "ebnf": _word(takes.ebnf),
        "structural_tag": _word(takes.structural_tag),
        "tools": _word(takes.tools or takes.structural_tag),
        "system turns": _system(takes),
        "text before a generation": _word(takes.prefill),
        "thinks first": _word(takes.reasons),
    }


def _system(takes: Takes) -> str:
    if takes.roles is not None and "system" not in takes.roles:
        return "no"
    return "anywhere" if takes.late_system else "before all others"


def _word(value: bool) -> str:
    return "yes" if value else "no"
