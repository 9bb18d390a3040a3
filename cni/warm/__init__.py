"""Warm workers: processes that wait for calls, so that a call need not start Python.

    launcher.c      the executables: asks a worker, and starts Python where none answers
    start.py        a call that found no workers leaves a supervisor behind
    supervisor.py   has workers, as many as the calls need, and ends when no call comes
    worker.py       serves one call at a time
    board.py        what the processes of one supervisor know of one another: shared memory
    protocol.py     the messages between launcher and worker           pure
    places.py       where the sockets are

Their absence changes no result: exec is the truth, and whatever is not certain is served by a Python of its own.
"""
