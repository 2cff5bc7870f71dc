// Messages of proto/nusa/v1 that only some views read. See lib/types.ts.

import type { Duration, Int64, InstanceCounts, JobRef, PartialError, Resources, Timestamp } from '../../lib/types'

export interface TaskState {
  state?: string
  exitCode?: number
  signal?: number
  restarts?: number
  message?: string
}

export interface Allocation {
  id: string
  namespace?: string
  job?: string
  group?: string
  index?: number
  jobVersion?: Int64
  region?: string
  nodeId?: string
  nodeName?: string
  desired?: string
  state?: string
  reason?: string
  message?: string
  tasks?: Record<string, TaskState>
  resources?: Resources
  ports?: Record<string, number>
  created?: Timestamp
  modified?: Timestamp
  attempt?: number
  placedBecause?: string
  nodeSilent?: Duration
}

export interface Allocations {
  allocations?: Allocation[]
  errors?: PartialError[]
  truncated?: boolean
}

export interface Node {
  id: string
  name?: string
  region?: string
  state?: string
  cordoned?: boolean
  draining?: boolean
  address?: string
  allocated?: Resources
  allocations?: number
  registered?: Timestamp
  silent?: Duration
  statsAge?: Duration
  inventory?: {
    capacity?: Resources
    pool?: string
    labels?: Record<string, string>
    drivers?: { name?: string; healthy?: boolean; version?: string; message?: string; capabilities?: string[] }[]
    gpus?: { id?: string; model?: string; memoryBytes?: Int64 }[]
    instanceQuota?: number
    controlPlane?: boolean
    version?: string
    description?: string
    facts?: {
      hostname?: string
      os?: string
      platform?: string
      platformVersion?: string
      kernel?: string
      arch?: string
      virtualization?: string
      cpuCores?: number
      cpuModel?: string
      memoryBytes?: Int64
      bootTime?: Timestamp
      disks?: { device?: string; mount?: string; fsType?: string; totalBytes?: Int64 }[]
      networks?: { name?: string; addresses?: string[] }[]
    }
  }
  stats?: {
    cpu?: number
    memoryUsedBytes?: Int64
    memoryAvailableBytes?: Int64
    load1?: number
    load5?: number
    load15?: number
    tasks?: number
  }
  leaving?: { job?: string; namespace?: string; group?: string; count?: number; fits?: number; message?: string }[]
}

export interface CountedReason {
  reason?: string
  count?: number
  message?: string
  what?: string
  region?: string
}

export interface Slot {
  group?: string
  from?: number
  to?: number
  region?: string
  state?: string
  desired?: string
  jobVersion?: Int64
  message?: string
  placedBecause?: string
}

export interface GroupStatus {
  desired?: number
  counts?: InstanceCounts
  regions?: Record<string, InstanceCounts>
  unowned?: number
  pending?: CountedReason[]
  slots?: Slot[]
  unknown?: { region?: string; count?: number; silent?: Duration; moveDue?: Duration; message?: string }[]
}

export interface Job {
  spec?: { name?: string; namespace?: string; type?: string; priority?: number; labels?: Record<string, string>; groups?: Record<string, GroupSpec>; [key: string]: unknown }
  version?: Int64
  revision?: Int64
  stopped?: boolean
  submitted?: Timestamp
  region?: string
  status?: { state?: string; groups?: Record<string, GroupStatus>; message?: string; rollout?: Rollout }
  reverted?: { version?: Int64; to?: Int64; why?: string }
}

/** Rollout is the replacement of the instances of earlier versions. */
export interface Rollout {
  version?: Int64
  state?: string
  message?: string
  began?: Timestamp
  /** Time until it fails, when the server sent it. */
  deadline?: Duration
  regions?: Record<string, RegionRollout>
  /** Time until the next region follows, when the server sent it. */
  pauseLeft?: Duration
  /** Canaries that are not promoted, and how many of them are healthy. */
  canaries?: number
  healthyCanaries?: number
  awaitsPromotion?: boolean
}

/** RegionRollout is the part of a rollout in one region. turn is its place in update.regions.order, from 1 on. */
export interface RegionRollout {
  desired?: number
  healthy?: number
  outdated?: number
  waits?: string
  turn?: number
  ended?: Timestamp
  failed?: string
}

export interface JobVersion {
  version?: Int64
  submitted?: Timestamp
  replaced?: Timestamp
  tag?: string
  reverted?: { version?: Int64; to?: Int64; why?: string }
}

export interface GroupSpec {
  count?: number
  tasks?: Record<string, { driver?: string; [key: string]: unknown }>
  update?: { maxParallel?: number; autoRevert?: boolean }
  [key: string]: unknown
}

export interface ScoreTerm {
  name?: string
  value?: number
  detail?: string
}

export interface Verdict {
  region?: string
  nodeId?: string
  nodeName?: string
  taken?: number
  fits?: number
  reason?: string
  message?: string
  score?: number
  terms?: ScoreTerm[]
}

export interface NearFare {
  region?: string
  bound?: string
  required?: boolean
  target?: string
  rtt?: Duration
  verdict?: string
  message?: string
}

export interface GroupExplanation {
  group?: string
  desired?: number
  unplaced?: number
  regions?: Verdict[]
  nodes?: Verdict[]
  pending?: CountedReason[]
  bounds?: { region?: string; bound?: string; state?: string; message?: string }[]
  near?: NearFare[]
  remedy?: string
  divide?: string
  divideWhy?: string
}

export interface Explanation {
  groups?: GroupExplanation[]
  age?: Duration
  note?: string
}

export interface PlanResponse {
  diff?: { field?: string; old?: string; new?: string }[]
  slots?: Slot[]
  unplaced?: Record<string, number>
  explanation?: Explanation
  warnings?: string[]
  revision?: Int64
}

/** refText writes the name of a job: "default/api", or "default/api@oslo" for a region's own job. */
export function refText(ref: JobRef): string {
  return `${ref.namespace || 'default'}/${ref.name ?? ''}${ref.region ? `@${ref.region}` : ''}`
}

/** parseRef reads such a name. */
export function parseRef(text: string): { namespace: string; name: string; region: string } {
  const found = /^(?:([^/@]*)\/)?([^/@]+)(?:@(.+))?$/.exec(text)
  return { namespace: found?.[1] || 'default', name: found?.[2] ?? '', region: found?.[3] ?? '' }
}

/** word writes an enum for people: ALLOC_STATE_RUNNING is "running". */
export function word(value: string | undefined, prefix: string): string {
  return (value ?? '').replace(prefix, '').toLowerCase().replace(/_/g, ' ')
}
