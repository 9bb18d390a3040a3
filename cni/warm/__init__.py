"""Warm workers: processes that wait for calls, so that a call need not start Python.

    launcher.c      the executables: they pass a call to a worker, or start Python if no worker answers
    start.py        starts a supervisor after a call that found no workers
    supervisor.py   keeps the pool of workers, and ends when no call has come for some time
    worker.py       serves one call at a time; the shared memory of a supervisor and its workers
    protocol.py     the messages between launcher and worker, and the paths of the sockets; no I/O

Results are the same without workers. If it is uncertain whether a worker can serve a call, a new Python serves it.
"""
