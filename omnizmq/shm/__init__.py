"""Shared-memory rings."""
