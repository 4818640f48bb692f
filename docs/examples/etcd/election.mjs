#!/usr/bin/env node
// Leads an election by the etcd API, and writes while it does. It goes on when the cluster's leader fails.
// Usage: election.mjs NAME WRITES. Needs Node 18 or later, and npm ci in this directory: package etcd3.
// Environment: ETCDCTL_ENDPOINTS (host:port,…).
// Exit codes: 0 done, 1 no answer in time, 3 the election is lost.
import process from 'node:process'
import { setTimeout as sleep } from 'node:timers/promises'
import { Etcd3 } from 'etcd3'

const ttl = 10 // seconds
const nodes = process.env.ETCDCTL_ENDPOINTS || '127.0.0.1:2379,127.0.0.1:2380,127.0.0.1:2381'
const client = new Etcd3({
  hosts: nodes.split(','),
  defaultCallOptions: (call) => (call.isStream ? {} : { deadline: Date.now() + 5000 }),
})

class Lost extends Error {}

// again repeats a call until a node answers. The attempts before may have been executed, so it must be safe to repeat.
// The library itself repeats calls, too, writes included.
async function again(call) {
  for (const end = Date.now() + 30_000; ; await sleep(100)) {
    try {
      return await call()
    } catch (error) {
      if (Date.now() > end) throw error
    }
  }
}

// write writes under the token and returns the revision. A write that is repeated happens once: the key then has a
// revision after the token's.
async function write(election, token, key, value) {
  const answer = await again(() =>
    client
      .if(election, 'Create', '==', token)
      .and(key, 'Mod', '<', token)
      .then(client.put(key).value(value))
      .else(client.get(election), client.get(key))
      .commit(),
  )
  if (answer.succeeded) return answer.header.revision
  const [held, written] = answer.responses.map((each) => each.response_range.kvs[0])
  if (held?.create_revision !== token) throw new Lost('another leads')
  return written.mod_revision
}

async function main([name, writes]) {
  const campaign = client.election(name, ttl).campaign(`node-${process.pid}`)
  // The library keeps the lease alive, and may tell late that it was lost. Until then the token refuses writes.
  campaign.on('error', (error) => {
    console.error(error.message)
    process.exit(3)
  })
  await campaign.wait()
  const election = await campaign.getCampaignKey()
  const { kvs } = await again(() => client.get(election).exec())
  const token = kvs[0].create_revision // the fencing token
  console.log(`election ${name} token ${token}`)

  const prefix = `examples/${name}/`
  const seen = []
  const watcher = await again(() => client.watch().prefix(prefix).startRevision(token).create())
  watcher.on('put', (kv) => seen.push(`seen ${kv.value} revision ${kv.mod_revision}`))
  watcher.on('error', (error) => {
    console.error(error.message)
    process.exit(1)
  })

  for (let i = 1; i <= Number(writes); i++) {
    console.log(`write ${i} revision ${await write(election, token, prefix + i, String(i))}`)
    await sleep(50)
  }
  for (const end = Date.now() + 30_000; seen.length < Number(writes) && Date.now() < end; ) await sleep(10)
  for (const line of seen) console.log(line)
  await watcher.cancel()
  await again(() => campaign.resign())
  client.close()
  console.log('resigned')
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error.message)
  process.exit(error instanceof Lost ? 3 : 1)
})
