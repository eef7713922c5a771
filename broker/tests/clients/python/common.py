"""What every client suite shares: the records it sends, and how results are counted.

A suite is a program: SUITE.py BOOTSTRAP. It prints a line per check and ends with `N passed, N failed`.
"""

import sys
import time
import traceback
import uuid

NOW_MS = int(time.time() * 1000)


def record_set(null_headers=True):
    """(key, value, headers, timestamp) of records that differ in everything a broker could lose.

    Some clients cannot send a header whose value is null: they pass `null_headers=False`.
    """
    records = [
        (b"key", b"value", [], NOW_MS - 5000),
        (None, b"no key", [("h", b"1")], NOW_MS - 4000),
        (b"no value", None, [("h", b"1"), ("h", b"2"), ("empty", b""), ("none", None)], NOW_MS - 3000),
        (b"", b"", [("", b"empty name")], NOW_MS - 2000),
        ("schlüssel".encode(), bytes(range(256)) * 4, [("é", "ü".encode())], NOW_MS - 1000),
        (b"big", b"x" * 200_000, [], NOW_MS),
    ]
    if null_headers:
        return records
    return [(k, v, [h for h in headers if h[1] is not None], t) for k, v, headers, t in records]


def unique(prefix):
    """A topic name that no other run uses."""
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def equal(got, want, what):
    """Fails with both sides, cut to a readable length."""
    if got != want:
        raise AssertionError(f"{what}: got {str(got)[:300]!r}, want {str(want)[:300]!r}")


def eventually(what, check, seconds=15.0):
    """Repeats a check until it returns something true; for what Kafka itself only promises soon."""
    deadline = time.monotonic() + seconds
    while True:
        result = check()
        if result:
            return result
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {seconds} s")
        time.sleep(0.05)


class Suite:
    """Runs checks, counts them, and exits non-zero when one failed."""

    def __init__(self, name):
        self.name, self.passed, self.failed = name, 0, 0

    def check(self, title, function, *arguments):
        started = time.monotonic()
        try:
            function(*arguments)
        except Exception:  # a failing check must not hide the next one
            self.failed += 1
            print(f"FAILED {self.name}: {title}\n{traceback.format_exc()}", flush=True)
        else:
            self.passed += 1
            print(f"ok {self.name}: {title} ({time.monotonic() - started:.2f} s)", flush=True)

    def finish(self):
        print(f"{self.passed} passed, {self.failed} failed", flush=True)
        sys.exit(1 if self.failed else 0)
