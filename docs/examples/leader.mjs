#!/usr/bin/env node
// Holds a role and writes under its fencing token. It goes on when the cluster's leader fails.
// Usage: leader.mjs ROLE WRITES. Needs Node 18 or later, and nothing else.
// Environment: NORTHSTAR_ENDPOINTS (host:port,…), NORTHSTAR_TOKEN; NORTHSTAR_SCHEME=https with the CA in
// NODE_EXTRA_CA_CERTS.
// Exit codes: 0 done, 1 no answer in time, 3 the role is lost.
import process from 'node:process'
import { setTimeout as sleep } from 'node:timers/promises'

const ttl = 10_000 // milliseconds
const scheme = process.env.NORTHSTAR_SCHEME || 'http'
const endpoints = (process.env.NORTHSTAR_ENDPOINTS || '127.0.0.1:7701,127.0.0.1:7703,127.0.0.1:7705').split(',')
const now = () => performance.now() // monotonic

class Refused extends Error {
  constructor(answer) {
    super(`${answer.code ?? ''} ${answer.name ?? ''} ${answer.detail}`.trim())
    this.code = answer.code
  }
}

// call sends one request to any node that answers. A node that is gone, or that knows no leader yet, is followed by the
// next one. A write is safe to repeat: it carries an idempotency key.
async function call(method, path, value, headers = {}, timeout = 30_000) {
  const json = typeof value === 'object' // a string is the value of a key
  const body = json ? JSON.stringify(value) : value
  if (json) headers['Content-Type'] = 'application/json'
  if (process.env.NORTHSTAR_TOKEN) headers.Authorization = `Bearer ${process.env.NORTHSTAR_TOKEN}`
  for (const end = now() + timeout; now() < end; await sleep(100)) {
    try {
      const signal = AbortSignal.timeout(20_000)
      const response = await fetch(`${scheme}://${endpoints[0]}${path}`, { method, body, headers, signal })
      const text = await response.text()
      const answer = text ? JSON.parse(text) : {}
      if (response.ok) return answer
      if (![429, 502, 503, 504].includes(response.status)) {
        throw new Refused(answer)
      }
    } catch (error) {
      if (error instanceof Refused) throw error // all others: refused, reset or timed out
    }
    endpoints.push(endpoints.shift())
  }
  console.error('no node answers')
  process.exit(1)
}

async function main([role, writes]) {
  const leader = await call('GET', '/leader')
  console.log(`leader ${leader.leader_id} at ${leader.leader_address}`)

  const wanted = { name: `node-${process.pid}`, ttl_ms: ttl }
  const { session_id: session } = await call('POST', '/v1/sessions', wanted)
  let renewed // when the last renewal that was answered was sent
  const renew = async () => {
    const sent = now()
    await call('POST', `/v1/sessions/${session}/renew`, undefined, {}, ttl)
    renewed = sent
  }
  // A session must not end while it waits for the role.
  const campaign = { session_id: session, value: 'node', wait_ms: 3000 }
  let token
  while (!token) {
    try {
      token = (await call('POST', `/v1/roles/${role}/campaign`, campaign)).token
    } catch (error) {
      if (error.code !== 4013) throw error // another session holds it
    }
    await renew()
  }
  console.log(`role ${role} token ${token}`)

  for (let i = 1; i <= Number(writes); i++) {
    if (now() - renewed > ttl / 3) await renew()
    // The holder's own deadline ends before the cluster gives the role away. The fencing token protects even a holder
    // that was stopped after this line.
    if (now() - renewed > 0.9 * ttl) throw new Refused({ detail: 'too late to act' })
    const fenced = { 'X-Northstar-Fence': `${role}=${token}`, 'Idempotency-Key': `${session}-${i}` }
    const { revision } = await call('PUT', `/v1/kv/examples/${role}/${i}`, String(i), fenced)
    console.log(`write ${i} revision ${revision}`)
    await sleep(50)
  }

  await call('DELETE', `/v1/roles/${role}?session_id=${session}`)
  await call('DELETE', `/v1/sessions/${session}`)
  console.log('resigned')
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error.message)
  process.exit(error instanceof Refused ? 3 : 1)
})
