"""Options that several commands share."""

from __future__ import annotations

import click

connect = click.option(
    "--connect",
    metavar="NAME",
    help="The deployment: its name, its endpoint, or the remote.json of one on another machine; default: the only one.",
)
