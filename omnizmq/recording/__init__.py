"""Recordings of what goes into the router's core, and their replay: a user's bug becomes a test (T1)."""
