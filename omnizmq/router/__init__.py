"""The router: pure cores, and the one loop that does their I/O."""
