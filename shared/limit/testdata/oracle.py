"""Decides hits with the package `limits` at the given times.

stdin: a JSON list of {"strategy", "limit", "seconds", "hits": [[ticks, cost]]},
where a tick is 1/512 s, which floats hold exactly. stdout: for each hit of each
case, [admitted, remaining before, remaining after].
"""

import json
import sys
import threading
import time


class Timer:
    """Never runs, because the clock is frozen."""

    def __init__(self, *_):
        pass

    def start(self):
        pass

    def is_alive(self):
        return True


threading.Timer = Timer
clock = [0.0]
time.time = lambda: clock[0]

from limits import RateLimitItemPerSecond, strategies  # noqa: E402
from limits.storage import MemoryStorage  # noqa: E402


def answers(case):
    limiter = strategies.STRATEGIES[case["strategy"]](MemoryStorage())
    item = RateLimitItemPerSecond(case["limit"], case["seconds"])
    out = []
    for ticks, cost in case["hits"]:
        clock[0] = ticks / 512
        before = limiter.get_window_stats(item, "key").remaining
        admitted = limiter.hit(item, "key", cost=cost)
        out.append([int(admitted), before, limiter.get_window_stats(item, "key").remaining])
    return out


json.dump([answers(case) for case in json.load(sys.stdin)], sys.stdout)
