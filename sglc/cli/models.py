"""`sglc models`: which there are, where they lie, and fetching them."""

from __future__ import annotations

import argparse
import sys

from sglc.cli.options import Commands


def add_models(commands: Commands) -> None:
    """Add `models` to the commands of `sglc`."""
    models = commands.add_parser("models", help="list, fetch and find models")
    actions = models.add_subparsers(title="actions", required=True, metavar="ACTION")
    actions.add_parser("list", help="known models").set_defaults(command=_list)
    pull = actions.add_parser("pull", help="fetch a model")
    pull.add_argument("name")
    pull.set_defaults(command=_pull)
    path = actions.add_parser("path", help="where a model lies")
    path.add_argument("name")
    path.set_defaults(command=_path)


def _list(options: argparse.Namespace) -> int:
    from sglc.runtime.model.registry import list_models

    for model in list_models():
        print(model)
    return 0


def _pull(options: argparse.Namespace) -> int:
    from tqdm.auto import tqdm

    from sglc.runtime.model.registry import pull

    with tqdm(desc=options.name, unit="B", unit_scale=True, disable=not sys.stderr.isatty()) as bar:

        def show(done: int, total: int | None) -> None:
            bar.total = total
            bar.update(done - bar.n)

        path = pull(options.name, show)
    print(path)
    return 0


def _path(options: argparse.Namespace) -> int:
    from sglc.runtime.model.registry import path

    print(path(options.name))
    return 0
