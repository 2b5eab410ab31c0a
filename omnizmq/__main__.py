"""`python -m omnizmq` is the command `omnizmq`."""

from omnizmq.cli import main

main()
