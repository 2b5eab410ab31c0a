"""Where tokens stand on the axes of positions (time, height, width), as the library's `get_rope_index` has it. Pure.

Text and sound go on by one on all three. An image begins where the text before it ends: all its tokens at that time,
each at its own row and column from there; what follows goes on after the farthest of them. So an image takes fewer
positions than tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Grid = tuple[int, int]
"""Rows and columns of an image, in tokens."""


@dataclass(frozen=True, slots=True)
class Placed:
    """An image among tokens: its first one's index."""

    first: int
    rows: int
    columns: int

    @property
    def tokens(self) -> int:
        return self.rows * self.columns


def placed(ids: Sequence[int], image: int, grids: Iterable[Grid]) -> list[Placed]:
    """The images among `ids`, where `image` stands for each of their tokens. Raises `ValueError` unless there are as
    many as the grids have."""
    found: list[Placed] = []
    at = 0
    sizes = list(grids)
    for rows, columns in sizes:
        if image not in ids[at:]:
            raise ValueError(f"there are {len(found)} images for {len(sizes)} sizes")
        first = ids.index(image, at)
        at = first + rows * columns
        if list(ids[first:at]) != [image] * (rows * columns):
            raise ValueError(f"the image at {first} has other tokens among its {rows} x {columns}")
        found.append(Placed(first, rows, columns))
    if image in ids[at:]:
        raise ValueError("there are tokens of images beyond the last one")
    return found


def positions(count: int, images: Sequence[Placed]) -> NDArray[np.int64]:
    """`[3, count]`, of so many tokens."""
    made = np.empty((3, count), np.int64)
    at = position = 0  # of the next token
    for image in images:
        before = image.first - at
        made[:, at : image.first] = position + np.arange(before)
        position += before
        at = image.first + image.tokens
        row, column = np.divmod(np.arange(image.tokens), image.columns)
        made[:, image.first : at] = position + np.stack((np.zeros_like(row), row, column))
        position += max(image.rows, image.columns)
    made[:, at:] = position + np.arange(count - at)
    return made


def shift(images: Iterable[Placed]) -> int:
    """What the position of a token after these images is more than its index: never above 0."""
    return sum(max(image.rows, image.columns) - image.tokens for image in images)
