"""Text models by vLLM in the worker's own process: its scheduler, cache and batches, behind the gate of the worker."""
