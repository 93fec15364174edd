"""Commands on data sets."""

from __future__ import annotations

import json
from argparse import Namespace

from fedtuner.cli.output import printing


def get(arguments: Namespace) -> None:
    """Download data sets and convert them."""
    from fedtuner.data import show, sources

    for name in arguments.names:
        sources.named(name)  # a wrong name is found before the first long download
    for name in arguments.names:
        with show.telling(arguments.quiet) as tell:
            folder = sources.get(name, tell)
        with printing(str(folder)):
            print(f"{name} is in {folder}; look at it with: fedtuner data show {name}")


def list_all(arguments: Namespace) -> None:
    """List the data sets and where they are."""
    from fedtuner.data import show

    listed = show.listing()
    with printing():
        if arguments.json:
            print(json.dumps(listed, indent=2))
        else:
            show.print_listing(listed)


def show(arguments: Namespace) -> None:
    """Show how a problem is spread over its clients."""
    from fedtuner.data import show
    from fedtuner.run import spec

    name = {"mnist_by_writer": "mnist-writers"}.get(arguments.name, arguments.name)  # the data set's name will do
    found = show.summary(spec.load_problem(name))
    with printing():
        if arguments.json:
            print(json.dumps(found, indent=2))
        else:
            show.print_summary(found)
