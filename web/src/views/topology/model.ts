// What the topology view draws: regions, their servers and nodes, from the overview stream.
// The functions are pure. Fields of the stream may be missing, so each one has a default.

import type { Int64, OverviewNode, OverviewRegion } from '../../lib/types'

/** Look is what decides the colour of a node. */
export type Look = 'ready' | 'draining' | 'cordoned' | 'lost' | 'left'

/** Cell is a node, or a node of which only the region's counts are known. */
export interface Cell {
  /** Empty if only the counts are known. */
  id: string
  name: string
  look: Look
  pool: string
  labels: Record<string, string>
  /** Reserved shares, 0..1. Negative: unknown. */
  cpu: number
  memory: number
  /** Measured use of CPU and memory, 0..1. Negative: unknown. */
  usedCPU: number
  usedMemory: number
  /** Negative: unknown. */
  allocations: number
}

export interface Server {
  name: string
  leader: boolean
  healthy: boolean
}

export interface Region {
  name: string
  state: string
  labels: Record<string, string>
  trouble: '' | 'lost' | 'disconnected' | 'island' | 'banned' | 'draining' | 'cordoned'
  message: string
  servers: Server[]
  cells: Cell[]
  /** The cells are nodes. Otherwise they are drawn from counts. */
  known: boolean
  cpu: number
  memory: number
}

/** Greatest number of cells of one region. Further nodes are not drawn. */
export const maxCells = 20_000

export function amount(value: Int64 | undefined): number {
  const n = Number(value ?? 0)
  return Number.isFinite(n) ? n : 0
}

/** share returns a part of a whole, 0..1, or -1 if the whole is unknown. */
export function share(part: Int64 | undefined, whole: Int64 | undefined): number {
  const of = amount(whole)
  return of > 0 ? Math.min(1, Math.max(0, amount(part) / of)) : -1
}

/**
 * region converts a region. nodes has its nodes, if they are known. They may arrive after the counts: until then
 * the counts are drawn, so that the region does not become smaller and larger again.
 */
export function region(is: OverviewRegion, nodes?: Iterable<OverviewNode>): Region {
  const list = nodes ? known(nodes) : []
  const cells = list.length > 0 ? list : counted(is)
  return {
    name: is.name ?? '',
    state: (is.state ?? '').replace('REGION_STATE_', '').toLowerCase(),
    labels: is.labels ?? {},
    trouble: trouble(is),
    message: is.message ?? '',
    servers: (is.servers ?? []).map((s) => ({
      name: s.id ?? '',
      leader: s.leader ?? false,
      healthy: s.healthy ?? false,
    })),
    cells,
    known: nodes !== undefined && (list.length > 0 || cells.length === 0),
    cpu: share(is.allocated?.cpuMilli, is.capacity?.cpuMilli),
    memory: share(is.allocated?.memoryBytes, is.capacity?.memoryBytes),
  }
}

/** trouble names the most important thing that is wrong with a region. */
export function trouble(is: OverviewRegion): Region['trouble'] {
  if (is.banned) return 'banned'
  if (is.state === 'REGION_STATE_LOST') return 'lost'
  if (is.island || is.state === 'REGION_STATE_ISLAND') return 'island'
  if (is.state === 'REGION_STATE_DISCONNECTED') return 'disconnected'
  if (is.draining) return 'draining'
  return is.cordoned ? 'cordoned' : ''
}

/** look says how a node is shown. A node that is lost is not also cordoned. */
export function look(is: OverviewNode): Look {
  if (is.state === 'NODE_STATE_LOST') return 'lost'
  if (is.state === 'NODE_STATE_LEFT') return 'left'
  if (is.draining) return 'draining'
  return is.cordoned ? 'cordoned' : 'ready'
}

/** cell converts a node. */
export function cell(is: OverviewNode): Cell {
  return {
    id: is.id ?? '',
    name: is.name ?? '',
    look: look(is),
    pool: is.pool ?? '',
    labels: is.labels ?? {},
    cpu: share(is.allocated?.cpuMilli, is.capacity?.cpuMilli),
    memory: share(is.allocated?.memoryBytes, is.capacity?.memoryBytes),
    usedCPU: is.cpu ?? -1,
    usedMemory: is.memory ?? -1,
    allocations: is.allocations ?? 0,
  }
}

function known(nodes: Iterable<OverviewNode>): Cell[] {
  const cells: Cell[] = []
  for (const node of nodes) {
    if (cells.length === maxCells) break
    cells.push(cell(node))
  }
  return cells.sort((a, b) => byName(a.name, b.name) || byName(a.id, b.id))
}

const collator = new Intl.Collator('en', { numeric: true })

/** byName sorts names with numbers as people do: n2 before n10. */
export function byName(a: string, b: string): number {
  return collator.compare(a, b)
}

// The counts of draining and cordoned nodes are parts of the ready nodes. A node can be both,
// so the cells show no more trouble than the counts allow.
function counted(is: OverviewRegion): Cell[] {
  const ready = is.nodesReady ?? 0
  const draining = Math.min(ready, is.nodesDraining ?? 0)
  const cordoned = Math.min(ready - draining, Math.max(0, (is.nodesCordoned ?? 0) - draining))
  const cells: Cell[] = []
  const add = (n: number, as: Look) => {
    for (let i = 0; i < n && cells.length < maxCells; i++) cells.push(anonymous[as])
  }
  add(ready - draining - cordoned, 'ready')
  add(draining, 'draining')
  add(cordoned, 'cordoned')
  add(is.nodesLost ?? 0, 'lost')
  return cells
}

function nameless(as: Look): Cell {
  return {
    id: '',
    name: '',
    look: as,
    pool: '',
    labels: {},
    cpu: -1,
    memory: -1,
    usedCPU: -1,
    usedMemory: -1,
    allocations: -1,
  }
}

// Cells of counts have no content of their own, so one object serves all of them.
const anonymous: Record<Look, Cell> = {
  ready: nameless('ready'),
  draining: nameless('draining'),
  cordoned: nameless('cordoned'),
  lost: nameless('lost'),
  left: nameless('left'),
}
