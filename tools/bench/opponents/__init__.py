"""Ways to hand a chunk from one process to another, one file each."""
