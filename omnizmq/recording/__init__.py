"""Recordings of the router core's inputs, and their replay: a user's bug becomes a test (T1, STYLE's tests)."""
