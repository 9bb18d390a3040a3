"""How many workers there are, and how long calls wait for one of them. Pure.

One is idle whenever that can be, so that a call finds it. Each call that takes the last one makes more, so a burst has
as many as it needs after some milliseconds; what the busiest of the last seconds did not need goes, one a second.

When there can be no more, calls wait in a queue as long as others complete, for a cold call takes five times the processor
time of a warm one. They have some patience: time uses it up, and each call that completes adds to it.
"""

from __future__ import annotations

LEAST = 2
PATIENCE = 1.0  # seconds: so long, at most, do calls wait while none completes
ELSEWHERE = 0.05  # the same while all workers wait for processes of others
PER_CALL = 0.1  # seconds that a completed call adds: some times what a cold call takes of a processor
MOST_EARLY = 10  # workers in a row that end as soon as they begin: then something is wrong with all of them


def more(workers: int, idle: int, most: int) -> int:
    """How many to make where `idle` of `workers` wait for calls and there may be `most`."""
    wanted = LEAST - workers if workers < LEAST else 0 if idle else max(1, workers // 4)
    return max(0, min(wanted, most - workers))


def patience(left: float, seconds: float, completed: int, are_elsewhere: bool) -> float:
    """How long calls may wait yet, where it was `left` before these `seconds`, in which so many were `completed`. At 0 those
    that wait are better served cold.

    There is little of it while all workers `are_elsewhere`: they wait for processes of others, which may never end.
    """
    most = ELSEWHERE if are_elsewhere else PATIENCE
    return max(0.0, min(most, left + PER_CALL * completed - seconds))


def is_one_too_many(workers: int, peak: int) -> bool:
    """Whether one can go where at most `peak` of `workers` were busy lately."""
    return workers > max(LEAST, peak + 1)
