"""What every client suite shares: the records it sends, and how results are counted.

A suite is a program: SUITE.py BOOTSTRAP. It prints a line per check and ends with `N passed, N failed`.
"""

import sys
import threading
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


class Member:
    """A member of a group on a thread of its own: `run(name, stop, note)` reads until `stop` is set, notes each value."""

    def __init__(self, name, run, note):
        self.stop, self.error = threading.Event(), None

        def body():
            try:
                run(name, self.stop, note)
            except BaseException:  # told by `end`
                self.error = traceback.format_exc()

        self.thread = threading.Thread(target=body, daemon=True)
        self.thread.start()

    def end(self):
        self.stop.set()
        self.thread.join(60)
        equal(self.thread.is_alive(), False, "a member that was told to stop runs on")
        equal(self.error, None, "a member")


def rolling_restart(run, produce, committed, records=400):
    """A group under load: two members, a third that comes, then each of them leaves and comes back, while records are
    produced. Every record must reach somebody, those that were sent during a rebalance too, and be committed by somebody.

    `produce(values)` sends values and returns when they are acknowledged; `committed()` is the sum of the offsets.
    """
    seen, lock, sent = set(), threading.Lock(), []

    def note(value):
        with lock:
            seen.add(value)

    def load():
        for _ in range(10):
            values = [f"v{len(sent) + i}".encode() for i in range(records // 10)]
            produce(values)
            sent.extend(values)
            time.sleep(0.02)

    def under_load(what, change):
        failures = []
        thread = threading.Thread(target=lambda: run_or_tell(load, failures))
        thread.start()
        change()
        thread.join(60)
        equal(failures, [], "producing")
        eventually(f"{what}: all records", lambda: all(value in seen for value in sent) or broken(), 60)

    def broken():
        errors = [member.error for member in members.values() if member.error]
        equal(errors, [], "members")
        return False

    members = {}

    def start(name):
        members[name] = Member(name, run, note)

    def restart(name):
        members[name].end()
        start(name)

    try:
        under_load("two members", lambda: [start("a"), start("b")])
        under_load("a third member", lambda: start("c"))
        for each in ["a", "b", "c"]:
            under_load(f"restart of {each}", lambda each=each: restart(each))
        eventually("all is committed", lambda: committed() == len(sent) or broken(), 60)
    finally:
        for member in members.values():
            member.stop.set()
        for member in members.values():
            member.thread.join(60)
    for member in members.values():
        member.end()
    equal(committed(), len(sent), "committed offsets when all have left")


def run_or_tell(function, failures):
    try:
        function()
    except Exception:
        failures.append(traceback.format_exc())


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
