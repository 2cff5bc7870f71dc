// Messages of proto/nusa/v1 as protojson writes them: names in lower camel case, 64-bit numbers as
// text, durations as "1.5s", times in RFC 3339, enums by name. A server may leave out a field that
// has its default value, so every field is optional here.

export type Duration = string
export type Timestamp = string
export type Int64 = string | number

export interface Resources {
  cpuMilli?: Int64
  memoryBytes?: Int64
  diskBytes?: Int64
}

export interface Utilisation {
  cpu?: number
  memory?: number
  disk?: number
  networkIn?: number
  networkOut?: number
}

export interface Location {
  latitude?: number
  longitude?: number
  name?: string
}

export interface RegionalServer {
  id?: string
  address?: string
  probeAddress?: string
  leader?: boolean
  healthy?: boolean
  version?: string
}

export interface LostRegion {
  at?: Timestamp
  by?: string
  why?: string
  nothingRuns?: boolean
}

export type RegionState =
  | 'REGION_STATE_UNSPECIFIED'
  | 'REGION_STATE_DEFINED'
  | 'REGION_STATE_CONNECTED'
  | 'REGION_STATE_DISCONNECTED'
  | 'REGION_STATE_LOST'
  | 'REGION_STATE_ISLAND'

export interface OverviewRegion {
  name: string
  state?: RegionState
  location?: Location
  labels?: Record<string, string>
  cordoned?: boolean
  draining?: boolean
  island?: boolean
  banned?: boolean
  lost?: LostRegion
  lastSeen?: Timestamp
  moveAt?: Timestamp
  message?: string
  nodesReady?: number
  nodesLost?: number
  nodesDraining?: number
  nodesCordoned?: number
  capacity?: Resources
  allocated?: Resources
  utilisation?: Utilisation
  queueLength?: number
  allocations?: Record<string, number>
  master?: string
  servers?: RegionalServer[]
}

export interface GlobalServer {
  name?: string
  address?: string
  active?: boolean
  version?: string
}

export interface InfoResponse {
  role?: string
  name?: string
  region?: string
  version?: string
  leader?: boolean
  leaderAddress?: string
  federationId?: string
  alarms?: string[]
}

export interface OverviewHead {
  info?: InfoResponse
  servers?: GlobalServer[]
  alone?: Duration
  now?: Timestamp
}

export interface OverviewRow {
  from?: number
  to?: number[]
  p50?: string
  p90?: string
  p99?: string
  loss?: string
  state?: string
}

export interface OverviewNode {
  id: string
  name?: string
  state?: string
  cordoned?: boolean
  draining?: boolean
  pool?: string
  address?: string
  labels?: Record<string, string>
  capacity?: Resources
  allocated?: Resources
  cpu?: number
  memory?: number
  disk?: number
  allocations?: number
  lastSeen?: Timestamp
  version?: string
}

export interface JobRef {
  namespace?: string
  name?: string
  region?: string
}

export interface InstanceCounts {
  pending?: number
  starting?: number
  running?: number
  complete?: number
  failed?: number
  stopped?: number
  lost?: number
  [state: string]: number | undefined
}

export interface OverviewJob {
  job: JobRef
  type?: string
  state?: string
  version?: Int64
  submitted?: Timestamp
  desired?: number
  counts?: InstanceCounts
  unplaced?: number
  regions?: string[]
  message?: string
  labels?: Record<string, string>
  priority?: number
}

export interface OverviewJobCounts {
  states?: Record<string, number>
  total?: number
}

export interface OverviewDue {
  kind?: string
  subject?: string
  at?: Timestamp
  message?: string
}

export interface PartialError {
  region?: string
  message?: string
}

export interface OverviewUpdate {
  reset?: boolean
  synced?: boolean
  head?: OverviewHead
  regions?: OverviewRegion[]
  regionsRemoved?: string[]
  columns?: string[]
  rows?: OverviewRow[]
  nodes?: OverviewNode[]
  nodesRemoved?: string[]
  jobs?: OverviewJob[]
  jobsRemoved?: JobRef[]
  jobCounts?: OverviewJobCounts
  due?: { due?: OverviewDue[] }
  errors?: { errors?: PartialError[] }
}

export interface JobFilter {
  namespace?: string
  search?: string
  states?: string[]
  labels?: Record<string, string>
  region?: string
  after?: JobRef
  limit?: number
}
