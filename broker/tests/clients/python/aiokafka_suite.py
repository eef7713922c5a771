"""aiokafka: produce with each codec, idempotence, read by assignment, seek."""

import asyncio
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import CommitFailedError, IllegalStateError

from common import NOW_MS, Suite, equal, record_set, rolling_restart, unique

BOOTSTRAP = sys.argv[1]


async def create(name, partitions=1):
    admin = AIOKafkaAdminClient(bootstrap_servers=BOOTSTRAP)
    await admin.start()
    try:
        answer = await admin.create_topics([NewTopic(name, partitions, 1)])
        equal([code for _, code, *_ in answer.topic_errors], [0], "creation")
    finally:
        await admin.close()
    return name


async def send(topic, records, **settings):
    producer = AIOKafkaProducer(bootstrap_servers=BOOTSTRAP, linger_ms=5, **settings)
    await producer.start()
    try:
        futures = [
            await producer.send(topic, value, key, partition=0, timestamp_ms=timestamp, headers=headers)
            for key, value, headers, timestamp in records
        ]
        await producer.flush()
        sent = [await future for future in futures]
        return [metadata.offset for metadata in sent if metadata]  # None with acks=0
    finally:
        await producer.stop()


async def read(topic, count, offset=0):
    consumer = AIOKafkaConsumer(bootstrap_servers=BOOTSTRAP, enable_auto_commit=False, auto_offset_reset="none")
    await consumer.start()
    try:
        where = TopicPartition(topic, 0)
        consumer.assign([where])
        consumer.seek(where, offset)
        return [await asyncio.wait_for(consumer.getone(), 20) for _ in range(count)]
    finally:
        await consumer.stop()


async def round_trip(codec, acks):
    topic = await create(unique(f"ak-{codec}-{acks}"))
    records = record_set()
    await send(topic, records, compression_type=codec, acks=acks)
    got = [(r.key, r.value, list(r.headers), r.timestamp) for r in await read(topic, len(records))]
    equal(got, records, "records read back")


async def idempotent():
    topic = await create(unique("ak-idem"))
    values = [(None, str(i).encode(), [], NOW_MS) for i in range(2000)]
    equal(await send(topic, values, enable_idempotence=True), list(range(2000)), "offsets")
    equal([r.value for r in await read(topic, 2000)], [v for _, v, _, _ in values], "order")


async def seek():
    topic = await create(unique("ak-seek"))
    await send(topic, [(None, str(i).encode(), [], 1_000_000 + i * 100) for i in range(300)])
    equal((await read(topic, 1, offset=250))[0].value, b"250", "by offset")
    consumer = AIOKafkaConsumer(bootstrap_servers=BOOTSTRAP)
    await consumer.start()
    try:
        where = TopicPartition(topic, 0)
        consumer.assign([where])
        found = (await consumer.offsets_for_times({where: 1_012_050}))[where]
        equal((found.offset, found.timestamp), (121, 1_012_100), "by time")
        equal((await consumer.end_offsets([where]))[where], 300, "end")
    finally:
        await consumer.stop()


def group_under_load(assignor):
    topic, group = asyncio.run(create(unique("ak-group"), 6)), unique("ak-group")

    async def send_all(values):
        producer = AIOKafkaProducer(bootstrap_servers=BOOTSTRAP, linger_ms=5)
        await producer.start()
        try:
            for future in [await producer.send(topic, value, partition=i % 6) for i, value in enumerate(values)]:
                await future
        finally:
            await producer.stop()

    async def read_until(stop, note):
        consumer = AIOKafkaConsumer(
            topic, bootstrap_servers=BOOTSTRAP, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False,
            session_timeout_ms=10000, heartbeat_interval_ms=200, fetch_max_wait_ms=100,
            partition_assignment_strategy=[assignor],
        )
        await consumer.start()
        is_committed = True
        try:
            while not stop.is_set():
                batches = await consumer.getmany(timeout_ms=100)
                for batch in batches.values():
                    for record in batch:
                        note(record.value)
                if batches or not is_committed:
                    try:
                        await consumer.commit()
                        is_committed = True
                    except (CommitFailedError, IllegalStateError):
                        is_committed = False  # what was taken away somebody else reads again
        finally:
            await consumer.stop()

    async def committed():
        consumer = AIOKafkaConsumer(bootstrap_servers=BOOTSTRAP, group_id=group, enable_auto_commit=False)
        await consumer.start()
        try:
            offsets = [await consumer.committed(TopicPartition(topic, partition)) for partition in range(6)]
            return sum(offset or 0 for offset in offsets)
        finally:
            await consumer.stop()

    rolling_restart(
        lambda _, stop, note: asyncio.run(read_until(stop, note)), lambda values: asyncio.run(send_all(values)),
        lambda: asyncio.run(committed()),
    )


def run(function, *arguments):
    asyncio.run(function(*arguments))


suite = Suite("aiokafka")
for each_codec in [None, "gzip", "snappy", "lz4", "zstd"]:
    for each_acks in [0, 1, "all"]:
        suite.check(f"round trip, {each_codec}, acks={each_acks}", run, round_trip, each_codec, each_acks)
for each in [idempotent, seek]:
    suite.check(each.__name__.replace("_", " "), run, each)
for each_assignor in [RangePartitionAssignor, StickyPartitionAssignor]:
    suite.check(f"group under load, {each_assignor.name}", group_under_load, each_assignor)
suite.finish()
