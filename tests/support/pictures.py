"""Images and their files, for tests."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    """RGB: patches of noise, so that it is different everywhere and survives being scaled."""
    colours = np.random.default_rng(seed).integers(0, 256, (-(-height // 8), -(-width // 8), 3), dtype=np.uint8)
    return Image.fromarray(colours).resize((width, height), Image.Resampling.NEAREST)


def file(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    """Its bytes, in a format by Pillow's name."""
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()
