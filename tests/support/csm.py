"""The two stages of CSM in one process, and the library's own whole model beside them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer, CsmForConditionalGeneration

from omnizmq.workers.engine import Engine
from omnizmq.workers.engines.hf import engine as hf
from support.qwen3_omni import Made, context

NAMES = ("talker", "code2wav")


def make(role: str, model: Path | str, private_dir: Path = Path("/nowhere"), **options: Any) -> Engine:
    return hf.create(context(role, str(model), private_dir, options, NAMES))


class Reference:
    """The library's model in one process."""

    def __init__(self, path: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(path)
        self.model = CsmForConditionalGeneration.from_pretrained(path, dtype=torch.float32).eval()

    def ids(self, text: str, speaker: int = 0) -> list[int]:
        """As the library's documentation writes a text without context."""
        ids: list[int] = self.tokenizer(f"<|begin_of_text|>[{speaker}]{text}<|end_of_text|>").input_ids
        return ids

    def generate(self, ids: Sequence[int], frames: int) -> Made:
        """Greedy: codes, and the wave of one whole decode."""
        with torch.inference_mode():
            made = self.model.generate(
                input_ids=torch.tensor([ids]),
                max_new_tokens=frames,
                do_sample=False,
                depth_decoder_do_sample=False,
                return_dict_in_generate=True,
                output_audio=True,
            )
        return Made(chunks=[made.sequences[0].T.numpy().astype(np.int16)], waves=[made.audio[0].numpy()])
