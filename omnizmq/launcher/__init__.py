"""Starts, supervises, restarts and rolls back the processes of a deployment."""
