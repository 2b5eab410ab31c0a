"""Workers: one process a stage replica, with one engine."""
