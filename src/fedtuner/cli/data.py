"""Commands on data sets."""

from __future__ import annotations

from argparse import Namespace

from fedtuner.cli.output import print_found, printing


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

    print_found(show.listing(), arguments.json, show.print_listing)


def show(arguments: Namespace) -> None:
    """Show how a problem is spread over its clients."""
    from fedtuner.data import show
    from fedtuner.run import spec

    name = {"mnist_by_writer": "mnist-writers"}.get(arguments.name, arguments.name)  # the data set's name will do
    print_found(show.summary(spec.load_problem(name)), arguments.json, show.print_summary)
