"""What vLLM's worker for the Thinker of Qwen3-Omni can do besides (`worker_extension_cls`)."""

from __future__ import annotations

import torch


class KeptRows:
    def take_kept_rows(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """As `ThinkerText.take_kept`, on the CPU. Processes that compute together have the same: the first gives."""
        kept: tuple[torch.Tensor, torch.Tensor] | None = self.get_model().take_kept()  # type: ignore[attr-defined]
        if kept is None or self.rank:  # type: ignore[attr-defined]
            return None
        names, rows = kept
        return names.cpu(), rows.cpu()
