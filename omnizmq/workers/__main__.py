"""`python -m omnizmq.workers`: a worker process, spawned by the launcher."""

from omnizmq.workers.worker import main

main()
