"""Prometheus' own parser reads /metrics: every family once, no series twice, counters that grow with the traffic."""

import os
import sys
import urllib.request

from common import Suite, equal, eventually, unique
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families

BOOTSTRAP = sys.argv[1]
ADMIN = os.environ["ODRADEK_ADMIN"]


def get(path):
    with urllib.request.urlopen(f"http://{ADMIN}{path}", timeout=30) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def scrape():
    kind, text = get("/metrics")
    equal(kind, "text/plain; version=0.0.4; charset=utf-8", "content type")
    return list(text_string_to_metric_families(text))


def samples(families):
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def the_text_is_read_whole():
    families = scrape()
    names = [family.name for family in families]
    equal(len(names), len(set(names)), "families")
    equal([f.name for f in families if f.type not in ("counter", "gauge", "summary")], [], "families without a type")
    equal(sum(len(family.samples) for family in families), len(samples(families)), "series")


def records_are_counted():
    topic = unique("metrics")
    producer = Producer({"bootstrap.servers": BOOTSTRAP, "acks": "all"})
    for number in range(10):
        producer.produce(topic, f"record {number}")
    equal(producer.flush(30), 0, "records that were not acknowledged")
    labels = (("topic", topic),)

    def counted():
        found = samples(scrape())
        return found.get(("kafka_server_brokertopicmetrics_messagesin_total", labels)) == 10

    eventually("ten records", counted)


def health():
    equal(get("/healthz")[1], "ok\n", "health")
    equal(get("/readyz")[1], "ok\n", "readiness")


suite = Suite("prometheus")
suite.check("the text is read whole", the_text_is_read_whole)
suite.check("records are counted", records_are_counted)
suite.check("health and readiness", health)
suite.finish()
