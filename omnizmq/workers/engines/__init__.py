"""The adapters: one file an engine, and the only importers of model libraries."""
