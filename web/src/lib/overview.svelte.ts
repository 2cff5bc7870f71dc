import { ApiError, stream, type Query } from './api'
import { Backoff } from './backoff'
import { clock } from './clock.svelte'
import { time } from './format'
import { session } from './session.svelte'
import type {
  JobFilter, OverviewDue, OverviewHead, OverviewJob, OverviewJobCounts, OverviewNode, OverviewRegion, OverviewUpdate, PartialError,
} from './types'
import { World, type Sections } from './world'

/** Want is what a view needs besides regions, alarms and due changes. */
export interface Want {
  edges?: boolean
  nodesOf?: string
  jobs?: JobFilter
}

export type Status = 'connecting' | 'live' | 'disconnected'

/** query writes a want as parameters of the request. */
export function query(w: Want): Query {
  const q: Query = { edges: w.edges, nodes_of: w.nodesOf }
  if (w.jobs) {
    const f = w.jobs
    q['jobs.limit'] = f.limit ?? 200
    q['jobs.namespace'] = f.namespace
    q['jobs.search'] = f.search
    q['jobs.region'] = f.region
    q['jobs.states'] = f.states
    q['jobs.after.namespace'] = f.after?.namespace
    q['jobs.after.name'] = f.after?.name
    q['jobs.after.region'] = f.after?.region
    for (const [k, v] of Object.entries(f.labels ?? {})) q[`jobs.labels[${k}]`] = v
  }
  return q
}

/** merged is what all views together want. The latest one decides about nodes and jobs. */
function merged(wants: Iterable<Want>): Want {
  const out: Want = {}
  for (const w of wants) {
    if (w.edges) out.edges = true
    if (w.nodesOf) out.nodesOf = w.nodesOf
    if (w.jobs) out.jobs = w.jobs
  }
  return out
}

const byName = (a: { name?: string }, b: { name?: string }): number => (a.name! < b.name! ? -1 : 1)

/**
 * Overview is the one stream of the page and what it has sent. The views read its fields, which change
 * as a whole. `matrix` and `matrixVersion` belong together: the matrix changes in place.
 */
class Overview {
  status = $state<Status>('connecting')
  /** Since when the stream is disconnected, in milliseconds since 1970. */
  since = $state(0)
  /** Why the stream is disconnected. */
  error = $state('')
  /** The server does not allow the stream. */
  denied = $state(false)
  /** Something has been received since the login. */
  ready = $state(false)
  /** The snapshot is complete. */
  synced = $state(false)

  head = $state.raw<OverviewHead>({})
  regions = $state.raw<OverviewRegion[]>([])
  nodes = $state.raw<OverviewNode[]>([])
  /** Region of `nodes`. It lags behind the want until the new snapshot is complete. */
  nodesOf = $state('')
  jobs = $state.raw<OverviewJob[]>([])
  jobCounts = $state.raw<OverviewJobCounts>({})
  due = $state.raw<OverviewDue[]>([])
  errors = $state.raw<PartialError[]>([])
  matrix = $state.raw(new World().matrix)
  matrixVersion = $state(0)
  /** Bytes that the stream has sent. */
  received = 0

  private world = new World()
  private coming: World | undefined
  private wants = new Map<object, Want>()
  private asked = ''
  private abort: AbortController | undefined
  private timer: ReturnType<typeof setTimeout> | undefined
  private backoff = new Backoff()
  private frame = 0
  private changed: Partial<Sections> = {}

  /** The user may not read any region: the page has only the objects of the user's namespaces. */
  get narrow(): boolean {
    return this.synced && this.regions.length === 0 && !this.head.servers?.length
  }

  region(name: string): OverviewRegion | undefined {
    return this.world.regions.get(name)
  }

  /** want asks for sections until the returned function is called. Call it in an $effect. */
  want(w: Want): () => void {
    const key = {}
    this.wants.set(key, w)
    this.plan()
    return () => {
      this.wants.delete(key)
      this.plan()
    }
  }

  /** start begins the stream. */
  start(): void {
    this.stop()
    this.status = 'connecting'
    this.denied = false
    this.since = 0
    void this.run()
  }

  /** stop ends the stream and forgets everything. */
  stop(): void {
    clearTimeout(this.timer)
    this.abort?.abort()
    this.abort = undefined
    this.coming = undefined
    this.world = new World()
    this.ready = false
    this.synced = false
    this.publish({ head: true, regions: true, matrix: true, nodes: true, jobs: true, due: true, errors: true })
  }

  /** retry reconnects at once. */
  retry(): void {
    this.backoff.reset()
    this.reconnect(0)
  }

  // A view that closes and one that opens within this time cause one new stream.
  private plan(): void {
    if (!this.abort) return
    if (JSON.stringify(query(merged(this.wants.values()))) !== this.asked) this.reconnect(60)
  }

  private reconnect(pause: number): void {
    clearTimeout(this.timer)
    this.timer = setTimeout(() => {
      this.timer = undefined
      if (pause > 0 && this.status === 'live' && JSON.stringify(query(merged(this.wants.values()))) === this.asked) return
      void this.run()
    }, pause)
  }

  private async run(): Promise<void> {
    this.abort?.abort()
    const abort = (this.abort = new AbortController())
    this.coming = undefined
    const want = merged(this.wants.values())
    const q = query(want)
    this.asked = JSON.stringify(q)
    let why = 'The server ended the stream.'
    let denied = false
    try {
      await stream<OverviewUpdate>('/v1/overview:watch', q, abort.signal, (u) => {
        if (!abort.signal.aborted) this.receive(u, want)
      }, (n) => (this.received += n))
    } catch (err) {
      if (abort.signal.aborted) return
      why = err instanceof Error ? err.message : String(err)
      if (err instanceof ApiError && err.unauthorised) return
      denied = err instanceof ApiError && err.denied
    }
    if (abort.signal.aborted || session.locked) return
    if (this.status !== 'disconnected') this.since = clock.now
    this.status = 'disconnected'
    this.error = why
    this.denied = denied
    this.reconnect(this.backoff.next())
  }

  private receive(u: OverviewUpdate, want: Want): void {
    if (u.reset) this.coming = new World(want.nodesOf)
    this.status = 'live'
    this.since = 0
    this.error = ''
    this.backoff.reset()
    if (u.head?.now) clock.serverSays(time(u.head.now))
    if (this.coming) {
      this.coming.apply(u)
      // What is on the page stays there until the new snapshot is complete.
      if (!u.synced && this.ready && this.world.regions.size > 0 && this.world !== this.coming) return
      this.world = this.coming
      if (u.synced) {
        this.coming = undefined
        this.synced = true
      }
      this.publishSoon({ head: true, regions: true, matrix: true, nodes: true, jobs: true, due: true, errors: true })
      return
    }
    this.publishSoon(this.world.apply(u))
  }

  // Updates that arrive together change the page once. A hidden page has no frames, so it changes
  // when it is visible again.
  private publishSoon(s: Partial<Sections>): void {
    for (const key of Object.keys(s) as (keyof Sections)[]) if (s[key]) this.changed[key] = true
    if (this.frame) return
    this.frame = requestAnimationFrame(() => {
      this.frame = 0
      const changed = this.changed
      this.changed = {}
      this.ready = true
      this.publish(changed)
    })
  }

  private publish(s: Partial<Sections>): void {
    const w = this.world
    if (s.head) this.head = w.head ?? {}
    if (s.regions) this.regions = [...w.regions.values()].sort(byName)
    if (s.nodes) {
      this.nodes = [...w.nodes.values()].sort(byName)
      this.nodesOf = w.nodesOf
    }
    if (s.jobs) {
      this.jobs = [...w.jobs.keys()].sort().map((k) => w.jobs.get(k)!)
      this.jobCounts = w.jobCounts ?? {}
    }
    if (s.due) this.due = w.due
    if (s.errors) this.errors = w.errors
    if (s.matrix) {
      this.matrix = w.matrix
      this.matrixVersion++
    }
  }
}

export const overview = new Overview()
