// kafkajs as producer, admin and member of groups; kcat reads back.
'use strict'
const { CompressionTypes, ConfigResourceTypes, Kafka, logLevel } = require('kafkajs')
const { assert, bootstrap, eventually, kcatRead, now, records, rollingRestart, same, Suite, unique } = require('./common')

const kafka = new Kafka({ brokers: [bootstrap], clientId: 'suite', logLevel: logLevel.NOTHING })
const admin = kafka.admin()

async function create (prefix, numPartitions = 1, configEntries = []) {
  const topic = unique(prefix)
  assert.equal(await admin.createTopics({ topics: [{ topic, numPartitions, configEntries }] }), true)
  return topic
}

async function send (topic, messages, options = {}, producerOptions = {}) {
  const producer = kafka.producer({ allowAutoTopicCreation: false, ...producerOptions })
  await producer.connect()
  try {
    return await producer.send({ topic, messages: messages.map(m => ({ partition: 0, ...m, timestamp: String(m.timestamp ?? now) })), ...options })
  } finally {
    await producer.disconnect()
  }
}

async function groupUnderLoad () {
  const [topic, groupId] = [await create('kj-group', 6), unique('kj-group')]
  const producer = kafka.producer({ allowAutoTopicCreation: false })
  await producer.connect()
  const produce = values => producer.send({ topic, messages: values.map((value, i) => ({ value, partition: i % 6 })) })
  async function start (_, note) {
    const consumer = kafka.consumer({ groupId, sessionTimeout: 10_000, rebalanceTimeout: 10_000, heartbeatInterval: 200, maxWaitTimeInMs: 100 })
    await consumer.connect()
    await consumer.subscribe({ topic, fromBeginning: true })
    await consumer.run({ eachMessage: async ({ message }) => note(message.value.toString()) })
    return () => consumer.disconnect()
  }
  async function committed () {
    const [{ partitions }] = await admin.fetchOffsets({ groupId, topics: [topic] })
    return partitions.reduce((sum, { offset }) => sum + Math.max(Number(offset), 0), 0)
  }
  try {
    await rollingRestart({ start, produce, committed })
  } finally {
    await producer.disconnect()
  }
  const { groups: [group] } = await admin.describeGroups([groupId])
  assert.deepEqual([group.state, group.members.length], ['Empty', 0])
  assert.equal((await admin.listGroups()).groups.some(group => group.groupId === groupId), true)
  await admin.setOffsets({ groupId, topic, partitions: [{ partition: 0, offset: '5' }] })
  await admin.deleteGroups([groupId])
  const [{ partitions }] = await admin.fetchOffsets({ groupId, topics: [topic] })
  assert.equal(partitions.every(({ offset }) => offset === '-1'), true)
}

async function main () {
  const suite = new Suite('kafkajs')
  await admin.connect()
  for (const codec of ['None', 'GZIP']) {
    for (const acks of [0, 1, -1]) {
      await suite.check(`round trip, ${codec}, acks=${acks}`, async () => {
        const topic = await create('kj')
        await send(topic, records, { acks, compression: CompressionTypes[codec] })
        await eventually('records', () => kcatRead(topic).length === records.length)
        same(kcatRead(topic), records)
      })
    }
  }
  await suite.check('idempotent', async () => {
    const topic = await create('kj-idem')
    const messages = Array.from({ length: 500 }, (_, i) => ({ value: `v${i}` }))
    await send(topic, messages, {}, { idempotent: true, maxInFlightRequests: 1 })
    assert.deepEqual(kcatRead(topic).map(m => m.value), messages.map(m => m.value))
  })
  await suite.check('offsets', async () => {
    const topic = await create('kj-offsets')
    await send(topic, [{ value: 'a', timestamp: 1000 }, { value: 'b', timestamp: 2000 }, { value: 'c', timestamp: 3000 }])
    assert.deepEqual(await admin.fetchTopicOffsets(topic), [{ partition: 0, offset: '3', high: '3', low: '0' }])
    assert.deepEqual(await admin.fetchTopicOffsetsByTimestamp(topic, 1500), [{ partition: 0, offset: '1' }])
    await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '2' }] })
    assert.deepEqual(await admin.fetchTopicOffsets(topic), [{ partition: 0, offset: '3', high: '3', low: '2' }])
  })
  await suite.check('topics, partitions and configs', async () => {
    const topic = await create('kj-topics', 2, [{ name: 'retention.ms', value: '12345' }])
    assert.equal(await admin.createTopics({ topics: [{ topic }] }), false)
    await admin.createPartitions({ topicPartitions: [{ topic, count: 4 }] })
    await eventually('4 partitions', async () => {
      const { topics } = await admin.fetchTopicMetadata({ topics: [topic] })
      return topics[0].partitions.length === 4
    })
    const resource = { type: ConfigResourceTypes.TOPIC, name: topic }
    const { resources } = await admin.describeConfigs({ resources: [{ ...resource, configNames: ['retention.ms'] }] })
    assert.equal(resources[0].configEntries.find(e => e.configName === 'retention.ms').configValue, '12345')
    await admin.alterConfigs({ resources: [{ ...resource, configEntries: [{ name: 'max.message.bytes', value: '4242' }] }] })
    await eventually('altered config', async () => {
      const { resources } = await admin.describeConfigs({ resources: [{ ...resource, configNames: ['max.message.bytes'] }] })
      return resources[0].configEntries[0].configValue === '4242'
    })
    await admin.deleteTopics({ topics: [topic] })
    await eventually('deletion', async () => !(await admin.listTopics()).includes(topic))
  })
  await suite.check('group under load', groupUnderLoad)
  await suite.check('cluster', async () => {
    const { brokers, clusterId } = await admin.describeCluster()
    assert.equal(brokers.length >= 1 && clusterId.length === 22, true)
  })
  await admin.disconnect()
  suite.finish()
}

main()
