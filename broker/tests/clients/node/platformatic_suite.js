// @platformatic/kafka as producer and admin; it wants flexible versions from the first request on. kcat reads back.
'use strict'
const { Admin, Producer, stringSerializers } = require('@platformatic/kafka')
const { assert, bootstrap, eventually, kcatRead, now, records, same, Suite, unique } = require('./common')

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
  await admin.close()
  suite.finish()
}

main()
