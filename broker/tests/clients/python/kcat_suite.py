"""kcat: produce with each codec, read by offset, from the end and by time, and list."""

import json
import subprocess
import sys

from common import Suite, equal, unique

BOOTSTRAP = sys.argv[1]


def kcat(*arguments, given=b""):
    done = subprocess.run(["kcat", "-b", BOOTSTRAP, *arguments], input=given, capture_output=True, timeout=30)
    equal(done.returncode, 0, f"exit code of kcat {arguments}: {done.stderr[-300:]}")
    return done.stdout


def round_trip(codec, acks):
    topic = unique(f"kcat-{codec}")
    lines = [f"k{i}:line {i} {'x' * (i % 50)}" for i in range(300)]
    kcat("-P", "-t", topic, "-K:", "-z", codec, "-X", f"acks={acks}", given="\n".join(lines).encode())
    got = kcat("-C", "-t", topic, "-o", "beginning", "-e", "-q", "-K:").decode().splitlines()
    equal(got, lines, "lines")


def offsets():
    topic = unique("kcat-offsets")
    kcat("-P", "-t", topic, given="\n".join(str(i) for i in range(100)).encode())
    equal(kcat("-C", "-t", topic, "-o", "97", "-e", "-q").split(), [b"97", b"98", b"99"], "from an offset")
    equal(kcat("-C", "-t", topic, "-o", "-2", "-e", "-q").split(), [b"98", b"99"], "from the end")
    equal(kcat("-Q", "-t", f"{topic}:0:-1").split()[-1], b"100", "query of the end")


def metadata():
    topic = unique("kcat-list")
    kcat("-P", "-t", topic, given=b"x")
    listed = json.loads(kcat("-L", "-J", "-t", topic))
    equal([t["topic"] for t in listed["topics"]], [topic], "topics")
    equal(listed["topics"][0]["partitions"][0]["leader"], listed["brokers"][0]["id"], "leader")


suite = Suite("kcat")
for each_codec in ["none", "gzip", "snappy", "lz4", "zstd"]:
    for each_acks in ["0", "1", "all"]:
        suite.check(f"round trip, {each_codec}, acks={each_acks}", round_trip, each_codec, each_acks)
suite.check("offsets", offsets)
suite.check("metadata", metadata)
suite.finish()
