"""Image files as RGB, whatever they are; and what is refused before it is decoded."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from contextlib import suppress

import pytest

pytest.importorskip("PIL", reason="not installed: the extra `transformers`")

import numpy as np
from PIL import Image
from support.pictures import file, noise

from omnizmq.errors import InvalidRequestError
from omnizmq.workers.engines.qwen3_omni import picture

ORIENTATION = 0x0112  # https://www.cipa.jp/std/documents/e/DC-008-2012_E.pdf, 4.6.4


def read(data: bytes) -> np.ndarray:
    """uint8 `[height, width, 3]`"""
    image = picture.decoded(picture.opened(data))
    assert image.mode == "RGB"
    return np.asarray(image)


@pytest.mark.parametrize(("form", "options"), [("PNG", {}), ("WEBP", {"lossless": True})])
def test_a_file_without_loss_is_what_it_was(form: str, options: dict[str, object]) -> None:
    image = noise(40, 30)
    assert np.array_equal(read(file(image, form, **options)), np.asarray(image))


@pytest.mark.parametrize("form", ["JPEG", "WEBP"])
def test_a_file_with_loss_is_nearly_what_it_was(form: str) -> None:
    image = Image.linear_gradient("L").convert("RGB")
    there = read(file(image, form, quality=90)).astype(int)
    assert np.abs(there - np.asarray(image)).max() < 8


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA", "I;16"])
def test_every_mode_of_a_png_keeps_what_it_shows(mode: str) -> None:
    grey = np.asarray(Image.linear_gradient("L"))
    if mode == "I;16":
        image = Image.fromarray(grey.astype(np.uint16) * 257)
    else:
        image = Image.fromarray(grey).convert(mode, dither=Image.Dither.NONE)
    expected = np.where(grey >= 128, 255, 0) if mode == "1" else grey
    assert np.array_equal(read(file(image)), np.stack([expected] * 3, axis=-1))


def test_cmyk_of_a_jpeg_is_made_rgb() -> None:
    red = Image.new("RGB", (32, 32), (255, 0, 0)).convert("CMYK")
    assert np.abs(read(file(red, "JPEG", quality=95)).astype(int) - [255, 0, 0]).max() < 8


@pytest.mark.parametrize("mode", ["RGBA", "LA", "tRNS"])
def test_what_can_be_seen_through_lies_on_white(mode: str) -> None:
    image = Image.new("RGBA", (4, 2), (0, 0, 0, 255))
    image.paste((0, 0, 0, 0), (0, 0, 2, 2))
    options = {}
    if mode == "tRNS":  # one colour of a palette is nothing
        image, options = Image.fromarray(np.array([[0, 0, 1, 1]] * 2, np.uint8), "P"), {"transparency": 0}
        image.putpalette([9, 9, 9, 0, 0, 0])
    elif mode != "RGBA":
        image = image.convert(mode)
    there = read(file(image, **options))
    assert (there[:, :2] == 255).all()
    assert (there[:, 2:] == 0).all()


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_it_is_turned_upright(form: str) -> None:
    """As a phone writes it that was held sideways: 6 says that the first row is the right side."""
    image = Image.new("RGB", (32, 16), "black")
    image.paste("white", (0, 0, 16, 16))  # the left half becomes the upper one
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    there = read(file(image, form, exif=exif))
    assert there.shape == (32, 16, 3)
    assert there[:12].min() > 200
    assert there[20:].max() < 55


def test_of_an_animation_its_first_frame_is_seen() -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    for form, options in (("PNG", {}), ("WEBP", {"lossless": True})):
        data = file(frames[0], form, save_all=True, append_images=frames[1:], **options)
        assert (read(data) == [255, 0, 0]).all()


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"", "it is no file of PNG, JPEG, WEBP"),
        (b"nonsense", "it is no file of PNG, JPEG, WEBP"),
        (file(noise(8, 8), "GIF"), "it is no file of PNG, JPEG, WEBP"),
        (file(noise(8, 8), "TIFF"), "it is no file of PNG, JPEG, WEBP"),
        (file(noise(80, 80))[:300], "an image is damaged: "),
        (file(noise(80, 80), "JPEG")[:900], "an image is damaged: "),
        (file(noise(80, 80), "WEBP")[:300], "an image "),
    ],
    ids=["nothing", "nonsense", "GIF", "TIFF", "a PNG cut off", "a JPEG cut off", "a WebP cut off"],
)
def test_what_is_no_image_is_refused_in_one_line(data: bytes, line: str) -> None:
    with pytest.raises(InvalidRequestError, match=line) as refused:
        read(data)
    assert "\n" not in refused.value.message


@pytest.mark.parametrize("form", picture.FORMATS)
def test_whatever_is_damaged_is_read_or_refused_and_nothing_else(form: str) -> None:
    whole, draw = file(noise(48, 48), form), random.Random(7)
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(draw.randint(1, 8)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        with suppress(InvalidRequestError):
            image = picture.opened(bytes(data))
            if image.width * image.height < 1 << 22:
                picture.decoded(image)


def png_of(width: int, height: int) -> bytes:
    """A file of a few bytes that says it is so large, and has nothing of it."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def webp_of(width: int, height: int) -> bytes:
    """The same of a WebP without loss: 14 bits of each side follow its signature
    (https://developers.google.com/speed/webp/docs/webp_lossless_bitstream_specification, 3)."""
    data = bytearray(file(noise(8, 8), "WEBP", lossless=True))
    at = data.index(b"VP8L") + 9
    bits = int.from_bytes(data[at : at + 4], "little") >> 28 << 28
    data[at : at + 4] = (bits | (height - 1) << 14 | (width - 1)).to_bytes(4, "little")
    return bytes(data)


OPEN = """
import resource, sys
from omnizmq.workers.engines.qwen3_omni import picture
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(*picture.opened(sys.stdin.buffer.read()).size, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("make", [png_of, webp_of])
def test_the_size_is_known_before_anything_is_decoded(make: Callable[[int, int], bytes]) -> None:
    """In a process of its own, whose memory was never larger: 160 million pixels take none."""
    done = subprocess.run([sys.executable, "-c", OPEN], input=make(16_000, 10_000), capture_output=True, check=True)
    width, height, kib = map(int, done.stdout.split())
    assert (width, height) == (16_000, 10_000)
    assert kib < 64 << 10


def test_what_no_library_would_open_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"an image is too large: .*4000000000 pixels"):
        picture.opened(png_of(80_000, 50_000))
