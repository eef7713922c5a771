// @platformatic/kafka as producer, admin and member of groups; it wants flexible versions from the first request on. kcat reads back.
'use strict'
const { Admin, Consumer, Producer, stringDeserializers, stringSerializers } = require('@platformatic/kafka')
const { assert, bootstrap, eventually, kcatRead, now, records, rollingRestart, same, Suite, unique } = require('./common')

const client = { clientId: 'suite', bootstrapBrokers: [bootstrap] }
const admin = new Admin(client)

async function create (prefix, partitions = 1) {
  const topic = unique(prefix)
  await admin.createTopics({ topics: [topic], partitions, replicas: 1 })
  return topic
}

async function send (topic, messages, options = {}) {
  const producer = new Producer({ ...client, serializers: stringSerializers })
  try {
    return await producer.send({ messages: messages.map(m => message(topic, m)), ...options })
  } finally {
    await producer.close()
  }
}

const message = (topic, { key, value, headers, timestamp }) => ({
  topic, partition: 0, key: key ?? undefined, value: value ?? undefined, headers, timestamp: BigInt(timestamp ?? now)
})

async function groupUnderLoad () {
  const [topic, groupId] = [await create('pf-group', 6), unique('pf-group')]
  const producer = new Producer({ ...client, serializers: stringSerializers })
  const produce = values => producer.send({ messages: values.map((value, i) => ({ topic, value, partition: i % 6 })) })
  async function start (_, note) {
    const consumer = new Consumer({ ...client, groupId, deserializers: stringDeserializers, sessionTimeout: 10_000, rebalanceTimeout: 10_000, heartbeatInterval: 500 })
    const stream = await consumer.consume({ topics: [topic], mode: 'committed', fallbackMode: 'earliest', autocommit: 200, maxWaitTime: 100 })
    stream.on('data', message => note(message.value))
    stream.on('error', error => console.log('stream:', error.message))
    return async () => {
      await stream.close()
      await consumer.close(true)
    }
  }
  async function committed () {
    const [group] = await admin.listConsumerGroupOffsets({ groups: [groupId] })
    const partitions = (group?.topics ?? []).flatMap(topic => topic.partitions)
    return partitions.reduce((sum, partition) => sum + Math.max(Number(partition.committedOffset), 0), 0)
  }
  try {
    await rollingRestart({ start, produce, committed })
  } finally {
    await producer.close()
  }
  const groups = await admin.describeGroups({ groups: [groupId] })
  assert.equal(groups.get(groupId).members.size, 0)
  await admin.deleteGroups({ groups: [groupId] })
  assert.equal((await admin.listGroups()).has(groupId), false)
}

async function main () {
  const suite = new Suite('platformatic')
  // Node has zstd since version 22.15.
  const zstd = typeof require('node:zlib').zstdCompressSync === 'function' ? ['zstd'] : []
  for (const compression of ['none', 'gzip', 'snappy', 'lz4', ...zstd]) {
    for (const acks of [0, 1, -1]) {
      await suite.check(`round trip, ${compression}, acks=${acks}`, async () => {
        const topic = await create('pf')
        await send(topic, records, { acks, compression })
        await eventually('records', () => kcatRead(topic).length === records.length)
        same(kcatRead(topic), records)
      })
    }
  }
  await suite.check('topics', async () => {
    const topic = await create('pf-topics', 3)
    const metadata = await admin.metadata({ topics: [topic] })
    assert.equal(metadata.topics.get(topic).partitionsCount, 3)
    await admin.deleteTopics({ topics: [topic] })
    await eventually('deletion', async () => !(await admin.listTopics()).includes(topic))
  })
  await suite.check('group under load', groupUnderLoad)
  await admin.close()
  suite.finish()
}

main()
