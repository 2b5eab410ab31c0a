"""Callers' image files as RGB: PNG, JPEG or WebP of any mode, turned upright as their EXIF data say.

A few bytes may stand for gigabytes of one colour: how large an image is, its header says, and nothing is decoded before
the caller of `opened` has seen that. What goes wrong with a file is about that file: whatever the library raises.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from omnizmq.errors import InvalidRequestError

FORMATS = ("PNG", "JPEG", "WEBP")

_WHITE = (255, 255, 255, 255)


def opened(data: bytes) -> Image.Image:
    """Its `size`, width and height, is known; nothing is decoded. Raises `InvalidRequestError`."""
    with _refusing():
        return Image.open(io.BytesIO(data), formats=FORMATS)


def decoded(image: Image.Image) -> Image.Image:
    """RGB, upright; of an animation its first frame. Raises `InvalidRequestError`."""
    with _refusing():
        image.load()
        return _rgb(ImageOps.exif_transpose(image))


def _rgb(image: Image.Image) -> Image.Image:
    """What can be seen through lies on white, as in the model's own utilities (`to_rgb` of `qwen_omni_utils`,
    https://github.com/QwenLM/Qwen3-Omni)."""
    if image.mode.startswith("I"):  # grey of 16 bits, which the library's conversion would cut off at 255
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        image = Image.alpha_composite(Image.new("RGBA", image.size, _WHITE), image.convert("RGBA"))
    return image.convert("RGB")


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of sizes, which are bounded elsewhere, and of data that do no harm
            yield
    except MemoryError:
        raise
    except UnidentifiedImageError:
        raise InvalidRequestError(f"an image cannot be read: it is no file of {', '.join(FORMATS)}") from None
    except Image.DecompressionBombError as error:
        raise InvalidRequestError(f"an image is too large: {error}") from None
    except Exception as error:  # noqa: BLE001 (decoders raise whatever they like)
        raise InvalidRequestError(f"an image is damaged: {' '.join(str(error).split())}") from None
