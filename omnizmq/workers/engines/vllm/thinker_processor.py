"""What vLLM asks of a model that takes sounds and images: which kinds, and how large.

Its way from a file to a model's inputs is not taken: items come ready (`items`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from vllm.multimodal.processing import BaseDummyInputsBuilder, BaseMultiModalProcessor, BaseProcessingInfo

KINDS = ("audio", "image")


class ItemsInfo(BaseProcessingInfo):  # type: ignore[misc]
    def get_supported_mm_limits(self) -> dict[str, int | None]:
        return dict.fromkeys(KINDS)

    def get_mm_max_tokens_per_item(self, seq_len: int, mm_counts: Mapping[str, int]) -> dict[str, int]:
        """One sound or image may fill a prompt."""
        return dict.fromkeys(mm_counts, seq_len)


class DummyItems(BaseDummyInputsBuilder[ItemsInfo]):  # type: ignore[misc]
    """Where no encoder is measured there are none."""

    def get_dummy_text(self, mm_counts: Mapping[str, int]) -> str:  # noqa: ARG002
        return ""

    def get_dummy_mm_data(self, *_: Any) -> dict[str, Any]:
        return {}


class ItemsProcessor(BaseMultiModalProcessor[ItemsInfo]):  # type: ignore[misc]
    def _get_mm_fields_config(self, *_: Any) -> NoReturn:
        raise ValueError("sounds and images come as rows, not as files")

    def _get_prompt_updates(self, *_: Any) -> NoReturn:
        raise ValueError("sounds and images come as rows, not as files")
