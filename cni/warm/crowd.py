"""The number of workers, and how long calls wait for one. Pure.

If possible, one worker is idle, so that a call finds it. When a call takes the last idle worker, more are started, so a
burst has enough workers after some milliseconds. Workers that the peak of the last second did not need end, one a second.

When the maximum is reached, calls wait in a queue as long as other calls complete, since a cold call takes five times
the processor time of a warm one. The remaining patience falls with time, and each completed call adds to it.
"""

from __future__ import annotations

LEAST = 2
PATIENCE = 1.0  # seconds that calls wait, at most, while none completes
ELSEWHERE = 0.05  # the same while all workers wait for other processes, such as foreign IPAM plugins
PER_CALL = 0.1  # seconds that a completed call adds: a few times the processor time of a cold call
MOST_EARLY = 10  # successive workers that end right after their start: then all of them have a fault


def more(workers: int, idle: int, most: int) -> int:
    """How many workers to start when `idle` of `workers` wait for calls, and `most` are allowed."""
    wanted = LEAST - workers if workers < LEAST else 0 if idle else max(1, workers // 4)
    return max(0, min(wanted, most - workers))


def patience(left: float, seconds: float, completed: int, are_elsewhere: bool) -> float:
    """The remaining patience: `left`, less the `seconds` since then, plus a share for each of the `completed` calls. At 0 the
    waiting calls are better served cold.

    It is short while all workers `are_elsewhere`: they wait for other processes, which may never end.
    """
    most = ELSEWHERE if are_elsewhere else PATIENCE
    return max(0.0, min(most, left + PER_CALL * completed - seconds))


def is_one_too_many(workers: int, peak: int) -> bool:
    """Whether one worker can end, when at most `peak` of `workers` were busy in the last second."""
    return workers > max(LEAST, peak + 1)
