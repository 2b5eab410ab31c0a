"""Images as the patches that the Thinker's vision encoder takes, and how many tokens each of them becomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from transformers import Qwen2VLImageProcessorPil

from omnizmq.errors import InvalidRequestError, LaunchError
from omnizmq.workers.engines.hf.checkpoint import Checkpoint
from omnizmq.workers.engines.qwen3_omni import picture
from omnizmq.workers.engines.qwen3_omni.axes import Grid
from omnizmq.workers.engines.qwen3_omni.memory import LARGER_IMAGES


@dataclass(frozen=True, slots=True)
class Patches:
    """Of all images of a prompt, one after the other: `values` float32 `[patches, colours]`, `grids` in tokens."""

    values: torch.Tensor
    grids: list[Grid]


class Seeing:
    """Raises `LaunchError` when the checkpoint's preprocessor cannot be used, or is another model's."""

    def __init__(self, checkpoint: Checkpoint, vision_config: Any, most: int) -> None:
        """`most`: tokens that all images of a prompt may have together."""
        try:
            # By Pillow and numpy: its twin needs torchvision, which there is not beside every build of torch.
            self._processor: Any = Qwen2VLImageProcessorPil.from_pretrained(checkpoint.path)
        except (OSError, ValueError) as error:
            raise LaunchError(f"the image preprocessor of {checkpoint.path} cannot be used: {error}") from error
        self._merged: int = vision_config.spatial_merge_size
        self._most = most
        _check_sizes(self._processor, vision_config, checkpoint)
        self._largest: int = LARGER_IMAGES * self._processor.size["longest_edge"]

    def patches(self, files: Sequence[bytes]) -> Patches:
        """Raises `InvalidRequestError` for what cannot be read or is too large, by the headers of all, before one is
        decoded."""
        images = self._opened(files)
        made = [self._of(image) for image in images]
        return Patches(torch.cat([values for values, _ in made]), [grid for _, grid in made])

    def _of(self, image: Image.Image) -> tuple[torch.Tensor, Grid]:
        """Of one by itself, so that no more than one is there decoded."""
        made = self._processor(picture.decoded(image), return_tensors="pt")
        image.close()
        ((_, rows, columns),) = made["image_grid_thw"].tolist()
        return made["pixel_values"], (rows // self._merged, columns // self._merged)

    def _opened(self, files: Sequence[bytes]) -> list[Image.Image]:
        """None of them decoded; no more than a slot holds, since some formats take memory as they are opened."""
        images, total = [], 0
        for data in files:
            image = picture.opened(data)
            images.append(image)
            count = self._tokens(*image.size)
            total += count
            if count > self._most:
                what = f"an image of {image.width} x {image.height} pixels takes {count} tokens"
            else:
                what = f"{len(images)} of the prompt's {len(files)} images take {total} tokens"
            if total > self._most:
                raise InvalidRequestError(f"{what}: a slot holds {self._most}, text and answer included")
        return images

    def _tokens(self, width: int, height: int) -> int:
        """Before it is decoded; turned upright it has as many."""
        if width * height > self._largest:
            raise InvalidRequestError(
                f"an image of {width} x {height} pixels is too large: it may have {self._largest} pixels"
            )
        try:
            patches: int = self._processor.get_number_of_image_patches(height, width)
        except ValueError:  # the library's own limit
            raise InvalidRequestError(
                f"an image of {width} x {height} pixels is too long: one side may be 200 times the other"
            ) from None
        return patches // self._merged**2


def _check_sizes(processor: Any, vision_config: Any, checkpoint: Checkpoint) -> None:
    """Of patches: else the encoder would fail at the first image, or see another one."""
    where = f"{checkpoint.path}/preprocessor_config.json"
    names = {
        "patch_size": "patch_size",
        "temporal_patch_size": "temporal_patch_size",
        "merge_size": "spatial_merge_size",
    }
    for name, own in names.items():
        made, taken = getattr(processor, name), getattr(vision_config, own)
        if made != taken:
            raise LaunchError(f"{where}: {name} is {made!r}, and the vision encoder's {own} is {taken!r}")
    for edge in ("shortest_edge", "longest_edge"):
        pixels = processor.size[edge]
        if not isinstance(pixels, int) or pixels < 1:
            raise LaunchError(f"{where}: size.{edge} is {pixels!r}: it must be a number of pixels")
