"""librdkafka through confluent-kafka: produce, read by assignment, admin."""

import sys

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from common import NOW_MS, Suite, equal, eventually, record_set, rolling_restart, unique

BOOTSTRAP = sys.argv[1]
admin = AdminClient({"bootstrap.servers": BOOTSTRAP})


def create(name, partitions=1, config=None):
    admin.create_topics([NewTopic(name, partitions, 1, config=config or {})])[name].result(20)
    eventually(f"metadata of {name}", lambda: name in admin.list_topics(timeout=10).topics)
    return name


def producer(**settings):
    return Producer({"bootstrap.servers": BOOTSTRAP, "linger.ms": 5, "message.timeout.ms": 20000} | settings)


def send(topic, records, partition=0, **settings):
    reports = []
    sender = producer(**settings)
    for key, value, headers, timestamp in records:
        sender.produce(
            topic, value, key, partition, timestamp=timestamp, headers=headers,
            on_delivery=lambda error, message: reports.append((error, message)),
        )
    equal(sender.flush(30), 0, "messages left after flush")
    errors = [str(error) for error, _ in reports if error]
    equal(errors, [], "delivery errors")
    return [message.offset() for _, message in reports]


def consumer(**settings):
    return Consumer({
        "bootstrap.servers": BOOTSTRAP, "group.id": "unused", "enable.auto.commit": False,
        "auto.offset.reset": "error", "check.crcs": True, "fetch.wait.max.ms": 100,
    } | settings)


def read(topic, count, partition=0, offset=OFFSET_BEGINNING, **settings):
    reader = consumer(**settings)
    reader.assign([TopicPartition(topic, partition, offset)])
    messages = []

    def poll():
        for message in reader.consume(count - len(messages), 0.5):
            if message.error():
                raise KafkaException(message.error())
            messages.append(message)
        return len(messages) >= count

    eventually(f"{count} records of {topic}", poll, 20)
    reader.close()
    return messages


def as_records(messages):
    return [(m.key(), m.value(), m.headers() or [], m.timestamp()[1]) for m in messages]


def round_trip(codec, acks):
    topic = create(unique(f"cf-{codec}-{acks}"))
    records = record_set()
    send(topic, records, **{"compression.type": codec, "acks": acks})
    got = read(topic, len(records))
    equal(as_records(got), records, "records read back")
    equal([m.offset() for m in got], list(range(len(records))), "offsets")


def idempotent():
    topic = create(unique("cf-idem"), 3)
    for partition in range(3):
        values = [(None, f"{partition}-{i}".encode(), [], NOW_MS) for i in range(2000)]
        send(topic, values, partition, **{"enable.idempotence": True, "compression.type": "lz4"})
        equal([m.value() for m in read(topic, 2000, partition)], [v for _, v, _, _ in values], "order")


def big_messages():
    topic = create(unique("cf-big"), config={"max.message.bytes": "6000000"})
    value = bytes(i * 7 % 251 for i in range(5_000_000))
    send(topic, [(b"k", value, [], NOW_MS)], **{"message.max.bytes": 7_000_000})
    equal(read(topic, 1, **{"fetch.message.max.bytes": 1000})[0].value() == value, True, "5 MB value")


def too_big():
    topic = create(unique("cf-toobig"), config={"max.message.bytes": "5000"})
    reports = []
    sender = producer()
    sender.produce(topic, b"x" * 9000, on_delivery=lambda error, _: reports.append(error))
    sender.flush(30)
    equal(reports[0].code(), KafkaError.MSG_SIZE_TOO_LARGE, "error")
    send(topic, [(None, b"small", [], NOW_MS)])
    equal(read(topic, 1)[0].offset(), 0, "nothing was stored of the big one")


def seek():
    topic = create(unique("cf-seek"))
    base = NOW_MS - 100_000
    send(topic, [(None, str(i).encode(), [], base + i * 100) for i in range(500)], **{"batch.num.messages": 7})
    equal(read(topic, 1, offset=321)[0].value(), b"321", "by offset")
    reader = consumer()
    found = reader.offsets_for_times([TopicPartition(topic, 0, base + 25_050)], 10)[0].offset
    equal(found, 251, "by time")
    beyond = reader.offsets_for_times([TopicPartition(topic, 0, NOW_MS + 1_000_000)], 10)[0].offset
    equal(beyond, -1, "by a time after all records")
    equal(reader.get_watermark_offsets(TopicPartition(topic, 0), 10), (0, 500), "watermarks")
    reader.close()


def timestamps_of_append_time_topic():
    topic = create(unique("cf-append-time"), config={"message.timestamp.type": "LogAppendTime"})
    send(topic, [(None, b"v", [], 12345)])
    kind, timestamp = read(topic, 1)[0].timestamp()
    equal(kind, 2, "LogAppendTime")
    equal(timestamp >= NOW_MS, True, "the broker's time")


def delete_records():
    topic = create(unique("cf-delrec"))
    send(topic, [(None, str(i).encode(), [], NOW_MS) for i in range(100)])
    result = admin.delete_records([TopicPartition(topic, 0, 60)])
    equal([f.result(20).low_watermark for f in result.values()], [60], "low watermark")
    equal(consumer().get_watermark_offsets(TopicPartition(topic, 0), 10), (60, 100), "watermarks")
    equal(read(topic, 1, offset=OFFSET_BEGINNING)[0].value(), b"60", "first record")


def topics_and_partitions():
    topic = create(unique("cf-topics"), 2)
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(20)
    eventually("5 partitions", lambda: len(admin.list_topics(topic, timeout=10).topics[topic].partitions) == 5)
    send(topic, [(None, b"last", [], NOW_MS)], partition=4)
    try:
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(20)
        raise AssertionError("created twice")
    except KafkaException as error:
        equal(error.args[0].code(), KafkaError.TOPIC_ALREADY_EXISTS, "second creation")
    for name, partitions, factor, want in [
        (unique("cf-rf"), 1, 99, KafkaError.INVALID_REPLICATION_FACTOR),
        (unique("cf-p0"), 0, 1, KafkaError.INVALID_PARTITIONS),
        ("bad name", 1, 1, KafkaError.TOPIC_EXCEPTION),
    ]:
        try:
            admin.create_topics([NewTopic(name, partitions, factor)])[name].result(20)
            raise AssertionError(f"{name} was created")
        except KafkaException as error:
            equal(error.args[0].code(), want, name)
    admin.delete_topics([topic])[topic].result(20)
    eventually("deletion", lambda: topic not in admin.list_topics(timeout=10).topics)

    def created_again():
        try:
            return create(topic)
        except KafkaException as error:  # Kafka, too, forgets a name only when its replicas are gone
            equal(error.args[0].code(), KafkaError.TOPIC_ALREADY_EXISTS, "creation while the deletion goes on")
            return None

    eventually("the name is free again", created_again)
    equal(consumer().get_watermark_offsets(TopicPartition(topic, 0), 10), (0, 0), "the new topic is empty")


def configs():
    topic = create(unique("cf-config"), config={"retention.ms": "12345"})
    resource = ConfigResource(ResourceType.TOPIC, topic)
    entries = admin.describe_configs([resource])[resource].result(20)
    equal(entries["retention.ms"].value, "12345", "retention.ms")
    equal(entries["cleanup.policy"].value, "delete", "cleanup.policy")
    equal(entries["cleanup.policy"].is_default, True, "default")
    change = ConfigResource(
        ResourceType.TOPIC, topic,
        incremental_configs=[
            ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND),
            ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE),
            ConfigEntry("max.message.bytes", "4242", incremental_operation=AlterConfigOpType.SET),
        ],
    )
    admin.incremental_alter_configs([change])[change].result(20)

    def applied():
        now = admin.describe_configs([resource])[resource].result(20)
        return (now["cleanup.policy"].value, now["retention.ms"].value, now["max.message.bytes"].value) == (
            "delete,compact", "604800000", "4242")

    eventually("altered configs", applied)
    broker = ConfigResource(ResourceType.BROKER, str(admin.list_topics(timeout=10).orig_broker_id))
    brokers = admin.describe_configs([broker])[broker].result(20)
    equal("log.retention.hours" in brokers, True, "broker config is described")


def list_offsets():
    topic = create(unique("cf-offsets"))
    send(topic, [(None, b"a", [], 1000), (None, b"b", [], 3000), (None, b"c", [], 2000)])
    where = TopicPartition(topic, 0)
    for spec, offset in [
        (OffsetSpec.earliest(), 0), (OffsetSpec.latest(), 3), (OffsetSpec.max_timestamp(), 1),
        (OffsetSpec.for_timestamp(1500), 1),
    ]:
        result = admin.list_offsets({where: spec})[where].result(20)
        equal(result.offset, offset, f"{spec}")


def cluster():
    described = admin.describe_cluster().result(20)
    equal(len(described.nodes) >= 1, True, "nodes")
    equal(len(described.cluster_id), 22, "cluster id")


def many_topics():
    names = [unique("cf-many") for _ in range(100)]
    for future in admin.create_topics([NewTopic(name, 2, 1) for name in names]).values():
        future.result(30)
    sender = producer()
    failed = []
    for name in names:
        for partition in range(2):
            sender.produce(name, f"{name}/{partition}".encode(), partition=partition,
                           on_delivery=lambda error, _: failed.append(error) if error else None)
    equal(sender.flush(30), 0, "left")
    equal(failed, [], "failed")
    reader = consumer()
    reader.assign([TopicPartition(name, p, 0) for name in names for p in range(2)])
    values = set()
    eventually("200 records", lambda: values.update(m.value().decode() for m in reader.consume(200, 0.5)) or len(values) == 200, 30)
    reader.close()
    equal(values, {f"{name}/{p}" for name in names for p in range(2)}, "values")
    for future in admin.delete_topics(names).values():
        future.result(30)


def auto_creation():
    topic = unique("cf-auto")
    send(topic, [(None, b"made by use", [], NOW_MS)], partition=-1)
    partitions = admin.list_topics(topic, timeout=10).topics[topic].partitions
    equal(len(partitions) >= 1, True, "partitions")


def fire_and_forget():
    topic = create(unique("cf-acks0"))
    send(topic, [(None, str(i).encode(), [], NOW_MS) for i in range(1000)], acks=0)
    equal([m.value() for m in read(topic, 1000)], [str(i).encode() for i in range(1000)], "records")


def member(topic, group, strategy, **settings):
    return consumer(**{
        "group.id": group, "partition.assignment.strategy": strategy, "auto.offset.reset": "earliest",
        "session.timeout.ms": 10000, "heartbeat.interval.ms": 200, "topic.metadata.refresh.interval.ms": 1000,
    } | settings)


def groups_under_load(strategy, is_static=False):
    topic, group = create(unique(f"cf-group-{strategy}"), 6), unique("cf-group")
    sender = producer()

    def produce(values):
        for i, value in enumerate(values):
            sender.produce(topic, value, partition=i % 6)
        equal(sender.flush(30), 0, "messages left after flush")

    def run(name, stop, note):
        reader = member(topic, group, strategy, **({"group.instance.id": name} if is_static else {}))
        reader.subscribe([topic])
        is_committed = True
        while not stop.is_set():
            messages = reader.consume(50, 0.1)
            for message in messages:
                if message.error():
                    raise KafkaException(message.error())
                note(message.value())
            if messages or not is_committed:
                is_committed = try_commit(reader)
        reader.close()

    observer = consumer(**{"group.id": group})

    def committed():
        asked = [TopicPartition(topic, partition) for partition in range(6)]
        return sum(max(partition.offset, 0) for partition in observer.committed(asked, 20))

    rolling_restart(run, produce, committed)
    observer.close()


def try_commit(reader):
    """What a rebalance took away somebody else reads again; what it left is committed after it."""
    try:
        reader.commit(asynchronous=False)
    except KafkaException as error:
        code = error.args[0].code()
        if code in (KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS, KafkaError.UNKNOWN_MEMBER_ID):
            return False
        equal(code, KafkaError._NO_OFFSET, "error of a commit")
    return True


def auto_commit():
    topic, group = create(unique("cf-auto-commit"), 2), unique("cf-auto-commit")
    for partition in range(2):
        send(topic, [(None, str(i).encode(), [], NOW_MS) for i in range(100)], partition)
    reader = member(topic, group, "range", **{"enable.auto.commit": True, "auto.commit.interval.ms": 100})
    reader.subscribe([topic])
    values = []
    eventually("200 records", lambda: values.extend(reader.consume(200, 0.2)) or len(values) >= 200, 30)
    equal(len(values), 200, "each record once")
    reader.close()
    asked = [TopicPartition(topic, partition) for partition in range(2)]
    equal([p.offset for p in consumer(**{"group.id": group}).committed(asked, 20)], [100, 100], "committed")


def exactly_once_per_batch():
    """Each batch is done when it is committed. Members follow each other, each leaves with a batch that it has taken and not
    committed: every record is done once."""
    topic, group = create(unique("cf-batches"), 2), unique("cf-batches")
    sent = []
    for partition in range(2):
        values = [f"{partition}-{i}".encode() for i in range(150)]
        send(topic, [(None, value, [], NOW_MS) for value in values], partition)
        sent += values
    done, lives = [], 0

    def batch(reader):
        """What a batch holds, and where to go on behind it."""
        values, ends = [], {}
        for message in reader.consume(10, 0.2):
            if message.error():
                raise KafkaException(message.error())
            values.append(message.value())
            ends[message.partition()] = message.offset() + 1
        return values, [TopicPartition(topic, partition, offset) for partition, offset in ends.items()]

    while len(done) < len(sent):
        reader, lives = member(topic, group, "range"), lives + 1
        reader.subscribe([topic])
        wanted = min(len(done) + 60, len(sent))

        def one_more():
            values, ends = batch(reader)
            if ends:
                reader.commit(offsets=ends, asynchronous=False)
                done.extend(values)
            return len(done) >= wanted

        eventually("60 records", one_more, 60)
        batch(reader)
        reader.close()
    equal(sorted(done), sorted(sent), "each record once")
    equal(lives > 3, True, "members")
    asked = [TopicPartition(topic, partition) for partition in range(2)]
    equal([p.offset for p in consumer(**{"group.id": group}).committed(asked, 20)], [150, 150], "committed")


def group_admin():
    topic, group = create(unique("cf-group-admin"), 2), unique("cf-group-admin")
    send(topic, [(None, b"v", [], NOW_MS)])
    reader = member(topic, group, "range", **{"client.id": "described"})
    reader.subscribe([topic])
    eventually("assignment", lambda: reader.poll(0.2) or len(reader.assignment()) == 2, 30)
    listed = admin.list_consumer_groups(states={ConsumerGroupState.STABLE}).result(20)
    equal(group in [g.group_id for g in listed.valid], True, "listed as stable")
    described = admin.describe_consumer_groups([group], include_authorized_operations=True)[group].result(20)
    equal((described.state, described.partition_assignor), (ConsumerGroupState.STABLE, "range"), "described")
    equal([(m.client_id, m.host) for m in described.members], [("described", "/127.0.0.1")], "member")
    equal(len(described.members[0].assignment.topic_partitions), 2, "assignment")
    equal(len(described.authorized_operations), 3, "authorized operations")

    def refused(future):
        try:
            future.result(20)
            raise AssertionError("a group with members was changed")
        except KafkaException as error:
            return error.args[0].code()

    equal(refused(admin.delete_consumer_groups([group])[group]), KafkaError.NON_EMPTY_GROUP, "deletion")
    reader.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    reader.close()
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 7), TopicPartition(topic, 1, 8)])
    eventually("the group is empty", lambda: admin.describe_consumer_groups([group])[group].result(20).state
               == ConsumerGroupState.EMPTY)
    admin.alter_consumer_group_offsets([wanted])[group].result(20)
    found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(20)
    equal(sorted((p.partition, p.offset) for p in found.topic_partitions), [(0, 7), (1, 8)], "altered offsets")
    admin.delete_consumer_groups([group])[group].result(20)
    equal(admin.describe_consumer_groups([group])[group].result(20).state, ConsumerGroupState.DEAD, "deleted")


suite = Suite("librdkafka")
for each_codec in ["none", "gzip", "snappy", "lz4", "zstd"]:
    for each_acks in [0, 1, "all"]:
        suite.check(f"round trip, {each_codec}, acks={each_acks}", round_trip, each_codec, each_acks)
for each in [idempotent, fire_and_forget, big_messages, too_big, seek, timestamps_of_append_time_topic,
             delete_records, topics_and_partitions, configs, list_offsets, cluster, many_topics, auto_creation]:
    suite.check(each.__name__.replace("_", " "), each)
for each_strategy in ["range", "roundrobin", "cooperative-sticky"]:
    suite.check(f"group under load, {each_strategy}", groups_under_load, each_strategy)
suite.check("group under load, static members", groups_under_load, "range", True)
for each in [auto_commit, exactly_once_per_batch, group_admin]:
    suite.check(each.__name__.replace("_", " "), each)
suite.finish()
