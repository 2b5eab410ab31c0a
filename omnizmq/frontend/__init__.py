"""Clients of a deployment."""
