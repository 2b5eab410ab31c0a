"""A whole deployment in one thread: the pure cores of router, workers, clients and supervisor on a virtual clock.

Nothing here waits, forks or opens a socket. One number, the seed, gives a *story* (`teller`): a small deployment, its
requests, and what goes wrong. The story is told to the cores (`world`), every event of which happens at a moment of the
virtual clock (`schedule`). The promises are checked at every step and at the end (`checks`). The same seed is the same
run, to the last event: `python -m sim.replay SEED --trace` from `tests/` shows it, `--shrink` looks for a smaller story
that fails in the same way, `python -m sim.run --seeds 100000 --from 0` tells many.

What is real: `RouterCore`, `Supervisor`, a `Gate` with its `Peers` and rings for each worker incarnation, the
`EngineRunner`, a `ClientTable` for each client, and the codec: every frame is packed and unpacked on its way. What
stands for something else: sockets and processes (`network`, `plane`, `worker`, `router` and `clients` do what the
shells do around the cores), and the engine (`engine`), of which the checks alone know what it will say.

The model of the network, which is ZeroMQ's over local sockets:

- Frames of one direction of one connection arrive in the order in which they were sent. Between two connections, or two
  directions of one, there is no order; each has delays of its own.
- A frame is lost only with its connection. When a process is killed, a part of what it had sent still arrives, and its
  end is heard of on each connection and by the launcher at different times. What is sent to it meanwhile is lost.
- A frame may come again, at any later time, also when its sender is dead. Not repeated are what has no number or state
  to know it by: submissions (S2: at most one an attempt), the offer of a ring, and what goes to clients.
- A process may be stopped and go on (SIGSTOP): what arrives meanwhile waits for it.
- Bytes that are no frame may come between any two frames. They are dropped and counted (W1).
"""
