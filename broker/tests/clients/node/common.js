// What the node suites share: counting, comparing, and kcat as the reader (these clients read only in groups).
'use strict'
const assert = require('node:assert/strict')
const { execFileSync } = require('node:child_process')
const { randomUUID } = require('node:crypto')

const bootstrap = process.argv[2]
const now = Date.now()

// Values are text, so that kcat's JSON output can be compared exactly.
const records = [
  { key: 'key', value: 'value', headers: {}, timestamp: now - 4000 },
  { key: null, value: 'no key', headers: { h: '1' }, timestamp: now - 3000 },
  { key: 'no value', value: null, headers: { a: '1', b: '' }, timestamp: now - 2000 },
  { key: '', value: '', headers: {}, timestamp: now - 1000 },
  { key: 'schlüssel', value: 'x'.repeat(100_000), headers: { é: 'ü' }, timestamp: now }
]

const unique = prefix => `${prefix}-${randomUUID().slice(0, 13)}`

// Reads a partition from its beginning to its end.
function kcatRead (topic, partition = 0) {
  const args = ['-C', '-b', bootstrap, '-t', topic, '-p', String(partition), '-o', 'beginning', '-e', '-q', '-J']
  const text = execFileSync('kcat', args, { timeout: 30_000, maxBuffer: 1 << 28, encoding: 'utf8' })
  return text.split('\n').filter(Boolean).map(line => JSON.parse(line)).map(m => ({
    key: m.key, value: m.payload, timestamp: m.ts, headers: headersOf(m.headers || [])
  }))
}

function headersOf (flat) {
  const headers = {}
  for (let i = 0; i + 1 < flat.length; i += 2) headers[flat[i]] = flat[i + 1]
  return headers
}

// kcat prints an empty key as null; what was stored is checked byte for byte by the Python suites.
const comparable = list => list.map(r => ({ ...r, key: r.key || null, value: r.value || null, headers: { ...r.headers } }))

const same = (got, want) => assert.deepEqual(comparable(got), comparable(want))

async function eventually (what, check, ms = 15_000) {
  const deadline = Date.now() + ms
  while (!(await check())) {
    if (Date.now() > deadline) throw new Error(`${what}: not within ${ms} ms`)
    await new Promise(resolve => setTimeout(resolve, 50))
  }
}

// A group under load: two members, a third that comes, then each of them leaves and comes back, while records are produced.
// Every record must reach somebody, those that were sent during a rebalance too, and be committed by somebody.
// `start(name, note)` starts a member that notes values, and returns how to stop it; `produce(values)` resolves when they
// are acknowledged; `committed()` is the sum of the offsets.
async function rollingRestart ({ start, produce, committed }) {
  const [seen, members] = [new Set(), new Map()]
  let sent = 0
  async function load () {
    for (let batch = 0; batch < 10; batch++) {
      await produce(Array.from({ length: 40 }, (_, i) => `v${sent + i}`))
      sent += 40
      await new Promise(resolve => setTimeout(resolve, 20))
    }
  }
  async function underLoad (what, change) {
    await Promise.all([load(), change()])
    await eventually(`${what}: ${sent} records, ${seen.size} seen`, () => seen.size === sent, 60_000)
  }
  const begin = async name => members.set(name, await start(name, value => seen.add(value)))
  async function restart (name) {
    await members.get(name)()
    members.delete(name)
    await begin(name)
  }
  try {
    await underLoad('two members', () => Promise.all([begin('a'), begin('b')]))
    await underLoad('a third member', () => begin('c'))
    for (const name of ['a', 'b', 'c']) await underLoad(`restart of ${name}`, () => restart(name))
    await eventually('all is committed', async () => (await committed()) === sent, 60_000)
  } finally {
    for (const stop of members.values()) await stop()
  }
  assert.equal(await committed(), sent)
}

class Suite {
  constructor (name) { Object.assign(this, { name, passed: 0, failed: 0 }) }

  async check (title, run) {
    const started = Date.now()
    try {
      await run()
      this.passed++
      console.log(`ok ${this.name}: ${title} (${(Date.now() - started) / 1000} s)`)
    } catch (error) {
      this.failed++
      console.log(`FAILED ${this.name}: ${title}\n${error.stack}`)
    }
  }

  finish () {
    console.log(`${this.passed} passed, ${this.failed} failed`)
    process.exit(this.failed ? 1 : 0)
  }
}

module.exports = { assert, bootstrap, eventually, kcatRead, now, records, rollingRestart, same, Suite, unique }
