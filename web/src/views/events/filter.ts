// The filter of the page's events, and its form in the address of the page.

import type { Query } from '../../lib/api'
import type { Event } from './buffer'

type Params = Record<string, string>

/** Filter selects events. The server applies types, subject, durable and instances. */
export interface Filter {
  /** Beginnings of types, such as "job." or "region.lost". Empty: every type. */
  types: string[]
  /** Beginning of the subject. */
  subject: string
  /** Region whose master sends the events. Empty: the called server. */
  region: string
  durable: boolean
  instances: boolean
  /** Text in any field. The page applies it. */
  text: string
}

export const noFilter: Filter = {
  types: [],
  subject: '',
  region: '',
  durable: false,
  instances: false,
  text: '',
}

/** Kinds are the groups of types that the page offers. */
export const kinds = [
  { prefix: 'job.', label: 'Jobs' },
  { prefix: 'slot.', label: 'Slots' },
  { prefix: 'instance.', label: 'Instances' },
  { prefix: 'region.', label: 'Regions' },
  { prefix: 'node.', label: 'Nodes' },
  { prefix: 'latency.', label: 'Latency' },
  { prefix: 'failover.', label: 'Failover' },
  { prefix: 'store.', label: 'Store' },
  { prefix: 'server.', label: 'Servers' },
] as const

/** matches applies the part of the filter that the server does not know. */
export function matches(filter: Filter, event: Event): boolean {
  if (filter.text === '') return true
  const want = filter.text.toLowerCase()
  const fields = [event.type, event.subject, event.message, event.region, event.number]
  return fields.some((f) => f !== undefined && f.toLowerCase().includes(want))
}

/**
 * request returns the parameters of the stream that continues after token. An empty token
 * asks for the events of the last hour.
 */
export function request(filter: Filter, token: string): Query {
  return {
    token,
    since: token === '' ? '3600s' : '',
    region: filter.region,
    instances: filter.instances,
    durable: filter.durable,
    subject_prefix: filter.subject,
    types: filter.types.slice(0, 64),
  }
}

/** toParams writes the filter into the parameters of the page's address. */
export function toParams(filter: Filter): Params {
  return {
    type: filter.types.join(','),
    subject: filter.subject,
    from: filter.region,
    durable: filter.durable ? '1' : '',
    instances: filter.instances ? '1' : '',
    q: filter.text,
  }
}

/** fromParams reads the filter from the parameters of the page's address. */
export function fromParams(params: Params): Filter {
  return {
    types: (params.type ?? '').split(',').filter((t) => t !== ''),
    subject: params.subject ?? '',
    region: params.from ?? '',
    durable: params.durable === '1',
    instances: params.instances === '1',
    text: params.q ?? '',
  }
}

/** Target is the object of an event in the page. */
export interface Target {
  kind: 'job' | 'region' | 'node'
  namespace?: string
  name: string
  region?: string
}

const name = '[a-z][a-z0-9-]{0,62}'
const job = new RegExp(`^(${name})/(${name})(?:@(${name}))?(?:/.*)?$`)

/** target finds the object of an event. Undefined: the page has no view of the object. */
export function target(event: Event): Target | undefined {
  const type = event.type ?? ''
  const subject = event.subject ?? ''
  if (subject === '') return undefined
  if (/^(job|slot|instance|rollout|group)\./.test(type)) {
    const found = job.exec(subject)
    if (!found) return undefined
    return { kind: 'job', namespace: found[1]!, name: found[2]!, region: found[3] }
  }
  if (type.startsWith('node.')) {
    // The global tier names the region and the node, or only the region of several nodes.
    const found = /^([a-z][a-z0-9-]{0,62})\/([^/]+)$/.exec(subject)
    if (found) return { kind: 'node', name: found[2]!, region: found[1]! }
    if (event.region && event.region !== subject) return { kind: 'node', name: subject, region: event.region }
    return event.region === subject ? { kind: 'region', name: subject } : undefined
  }
  if (type.startsWith('region.') && new RegExp(`^${name}$`).test(subject)) {
    return { kind: 'region', name: subject }
  }
  return undefined
}

const bad = new Set([
  'region.lost',
  'region.refused',
  'region.commits_blocked',
  'node.lost',
  'instance.failed',
  'instance.given_up',
  'instance.lost',
  'job.failed',
  'store.conflict',
  'store.filling',
  'failover.paused',
  'server.alarm',
])
const warn = new Set([
  'region.disconnected',
  'region.silent',
  'region.cordoned',
  'region.draining',
  'node.silent',
  'node.left',
  'node.cordoned',
  'node.drained',
  'instance.restarted',
  'instance.declined',
  'slot.returned',
  'slot.revoked',
  'slot.moved',
  'job.reverted',
  'latency.breached',
])
const good = new Set([
  'region.connected',
  'region.back',
  'node.ready',
  'node.back',
  'instance.running',
  'instance.complete',
  'slot.accepted',
  'job.complete',
  'failover.resumed',
  'latency.kept',
  'server.alarm_over',
])

/** tone says how serious a type is. */
export function tone(type: string): 'bad' | 'warn' | 'good' | 'plain' {
  if (bad.has(type)) return 'bad'
  if (warn.has(type)) return 'warn'
  return good.has(type) ? 'good' : 'plain'
}
