"""Where the tokens of images stand, and what follows them."""

from __future__ import annotations

import pytest

from omnizmq.workers.engines.qwen3_omni.axes import Placed, placed, positions, shift

IMAGE = 9


def test_text_goes_on_by_one_on_all_axes() -> None:
    assert positions(4, []).tolist() == [[0, 1, 2, 3]] * 3
    assert shift([]) == 0


def test_an_image_stands_at_one_time_and_text_goes_on_after_its_farthest_token() -> None:
    """Two tokens of text, an image of 2 x 3, one token, an image of 2 x 1, two tokens: as `get_rope_index` says it."""
    images = [Placed(2, 2, 3), Placed(9, 2, 1)]
    assert positions(13, images).tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 6, 8, 9],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6, 7, 8, 9],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 6, 8, 9],
    ]
    assert shift(images) == 9 - 12


def test_images_are_found_by_their_tokens() -> None:
    ids = [1, 2, *[IMAGE] * 6, 3, *[IMAGE] * 2, 4, 5]
    assert placed(ids, IMAGE, [(2, 3), (2, 1)]) == [Placed(2, 2, 3), Placed(9, 2, 1)]
    assert placed([1, 2], IMAGE, []) == []


@pytest.mark.parametrize(
    ("grids", "line"),
    [
        ([(2, 3)], "tokens of images beyond the last one"),
        ([(2, 4), (1, 1)], "the image at 2 has other tokens among its 2 x 4"),
        ([(2, 3), (2, 2)], "the image at 9 has other tokens among its 2 x 2"),
        ([(2, 3), (2, 1), (1, 1)], "there are 2 images for 3 sizes"),
    ],
)
def test_sizes_that_are_not_the_prompts_are_told_from_those_that_are(grids: list[tuple[int, int]], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        placed([1, 2, *[IMAGE] * 6, 3, *[IMAGE] * 2, 4, 5], IMAGE, grids)
