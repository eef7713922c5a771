"""kafka-python, 2.0.2 and 3.x: produce, read by assignment, admin. The version tells which codecs and calls there are."""

import sys

import kafka
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic
from kafka.errors import (
    CommitFailedError,
    KafkaError,
    RebalanceInProgressError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)

from common import NOW_MS, Suite, equal, eventually, record_set, rolling_restart, unique

BOOTSTRAP = sys.argv[1]
MODERN = int(kafka.__version__.split(".")[0]) >= 3
admin = KafkaAdminClient(bootstrap_servers=BOOTSTRAP)


def create(name, partitions=1, config=None):
    admin.create_topics([NewTopic(name, partitions, 1, topic_configs=config or {})])
    eventually(f"metadata of {name}", lambda: name in admin.list_topics())
    return name


def consumer(topic, partition=0):
    reader = KafkaConsumer(bootstrap_servers=BOOTSTRAP, enable_auto_commit=False, auto_offset_reset="none",
                           fetch_max_wait_ms=100)
    reader.assign([TopicPartition(topic, partition)])
    return reader


def read(topic, count, partition=0, offset=0):
    reader = consumer(topic, partition)
    reader.seek(TopicPartition(topic, partition), offset)
    records = []

    def poll():
        for batch in reader.poll(timeout_ms=500).values():
            records.extend(batch)
        return len(records) >= count

    eventually(f"{count} records of {topic}", poll, 20)
    reader.close()
    return records


def send(topic, records, partition=0, **settings):
    sender = KafkaProducer(bootstrap_servers=BOOTSTRAP, linger_ms=5, **settings)
    futures = [
        sender.send(topic, value=value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp)
        for key, value, headers, timestamp in records
    ]
    sender.flush(30)
    offsets = [future.get(20).offset for future in futures]
    sender.close()
    return offsets


def round_trip(codec, acks):
    topic = create(unique(f"kp-{codec}-{acks}"))
    records = record_set(null_headers=False)
    settings = {"enable_idempotence": False} if MODERN else {}
    send(topic, records, compression_type=codec, acks=acks, **settings)
    got = [(r.key, r.value, list(r.headers), r.timestamp) for r in read(topic, len(records))]
    equal(got, records, "records read back")


def default_producer():
    topic = create(unique("kp-default"))
    values = [(None, str(i).encode(), [], NOW_MS) for i in range(3000)]
    equal(send(topic, values), list(range(3000)), "offsets")
    equal([r.value for r in read(topic, 3000)], [v for _, v, _, _ in values], "order")


def seek():
    topic = create(unique("kp-seek"))
    send(topic, [(None, str(i).encode(), [], 1_000_000 + i * 100) for i in range(300)])
    equal(read(topic, 1, offset=123)[0].value, b"123", "by offset")
    where = TopicPartition(topic, 0)
    reader = consumer(topic)
    found = reader.offsets_for_times({where: 1_000_000 + 12_050})[where]
    equal((found.offset, found.timestamp), (121, 1_012_100), "by time")
    equal(reader.offsets_for_times({where: NOW_MS})[where], None, "by a time after all records")
    equal(reader.beginning_offsets([where])[where], 0, "beginning")
    equal(reader.end_offsets([where])[where], 300, "end")
    reader.close()


def topics_and_partitions():
    topic = create(unique("kp-topics"), 2)
    admin.create_partitions({topic: NewPartitions(5)})
    reader = consumer(topic)

    def five():
        return reader.partitions_for_topic(topic) == {0, 1, 2, 3, 4}

    eventually("5 partitions", five) if MODERN else None
    reader.close()
    try:
        admin.create_topics([NewTopic(topic, 1, 1)])
        raise AssertionError("created twice")
    except TopicAlreadyExistsError:
        pass
    admin.delete_topics([topic])
    eventually("deletion", lambda: topic not in admin.list_topics())
    try:
        admin.delete_topics([topic])
        raise AssertionError("deleted twice")
    except UnknownTopicOrPartitionError:
        pass


def configs():
    topic = create(unique("kp-config"), config={"retention.ms": "12345"})

    def described():
        answer = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        return str(answer if MODERN else [response.to_object() for response in answer])

    equal("12345" in described(), True, "retention.ms is described")
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs={"max.message.bytes": "4242"})])
    eventually("altered config", lambda: "4242" in described())


def too_big():
    topic = create(unique("kp-toobig"), config={"max.message.bytes": "5000"})
    try:
        send(topic, [(None, b"x" * 9000, [], NOW_MS)], retries=0, **({"enable_idempotence": False} if MODERN else {}))
        raise AssertionError("a record above max.message.bytes was taken")
    except KafkaError as error:
        equal(getattr(error, "errno", None), 10, "error")


def group_under_load():
    topic, group = create(unique("kp-group"), 6), unique("kp-group")
    sender = KafkaProducer(bootstrap_servers=BOOTSTRAP, linger_ms=5)

    def produce(values):
        futures = [sender.send(topic, value, partition=i % 6) for i, value in enumerate(values)]
        for future in futures:
            future.get(30)

    def run(_, stop, note):
        reader = KafkaConsumer(
            topic, bootstrap_servers=BOOTSTRAP, group_id=group, auto_offset_reset="earliest",
            enable_auto_commit=False, session_timeout_ms=10000, heartbeat_interval_ms=200, fetch_max_wait_ms=100,
        )
        is_committed = True
        while not stop.is_set():
            batches = reader.poll(timeout_ms=100)
            for batch in batches.values():
                for record in batch:
                    note(record.value)
            if batches or not is_committed:
                try:
                    reader.commit()
                    is_committed = True
                except (CommitFailedError, RebalanceInProgressError):
                    is_committed = False  # what was taken away somebody else reads again
        reader.close()

    def committed():
        observer = KafkaConsumer(bootstrap_servers=BOOTSTRAP, group_id=group, enable_auto_commit=False)
        offsets = [observer.committed(TopicPartition(topic, partition)) for partition in range(6)]
        observer.close()
        return sum(offset or 0 for offset in offsets)

    rolling_restart(run, produce, committed)
    sender.close()
    equal(group in str(admin.list_consumer_groups() if hasattr(admin, "list_consumer_groups") else admin.list_groups()),
          True, "the group is listed")


suite = Suite(f"kafka-python {kafka.__version__}")
for each_codec in [None, "gzip", "snappy", "lz4", "zstd"]:
    for each_acks in [0, 1, "all"]:
        suite.check(f"round trip, {each_codec}, acks={each_acks}", round_trip, each_codec, each_acks)
for each in [default_producer, seek, topics_and_partitions, configs, too_big, group_under_load]:
    suite.check(each.__name__.replace("_", " "), each)
admin.close()
suite.finish()
