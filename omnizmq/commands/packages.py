"""Packages that an engine or a plugin needs and that are not installed: what `launch` says, and which command helps."""

from __future__ import annotations

from collections.abc import Sequence

_PROJECTS = {"PIL": "pillow"}
"""What packages come in, where it has another name."""

_APART = {"vllm": "docs/vllm.md says how to make an environment for it, which the stage's `python` names"}
"""Packages that go with no others, and what helps."""


def refusal(where: str, packages: Sequence[str], python: str | None = None) -> str:
    """One line. `where`: the key at fault and whose packages they are, which are missing; `python`: a stage's own
    interpreter."""
    missing = [_PROJECTS.get(name, name) for name in packages]
    those = "which is" if len(missing) == 1 else "which are"
    place = "" if python is None else f" for {python}"
    apart = next((name for name in missing if name in _APART), None)
    if apart is not None:
        return f"{where} needs {', '.join(missing)}, {those} not installed{place}: {_APART[apart]}"
    extra = _extra_of(missing)
    program = "omnizmq" if python is None else f"{python} -m omnizmq"
    hint = "" if extra is None else f": run `{program} install {extra}`"
    return f"{where} needs {', '.join(missing)}, {those} not installed{place}{hint}"


def _extra_of(missing: Sequence[str]) -> str | None:
    """The extra of omnizmq's that brings most of them; None: none of them is in any."""
    from omnizmq.commands.install import EXTRAS, names_of

    brings = {extra: len(names_of(extra) & {name.replace("_", "-") for name in missing}) for extra in EXTRAS}
    best = max(EXTRAS, key=brings.__getitem__)
    return best if brings[best] else None
