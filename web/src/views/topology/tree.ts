// The topology as a tree of lines: the same facts as the picture, for a list, for screen
// readers and for the keyboard.

import { active, matches, regionMatches, type Filter } from './filter'
import type { Cell, Region, Server } from './model'

/** Line is a visible line of the tree. */
export type Line =
  | { key: string; level: 1; kind: 'global'; server: { name: string; active: boolean; address: string }; open: undefined }
  | { key: string; level: 1; kind: 'region'; region: Region; open: boolean; matching: number }
  | { key: string; level: 2; kind: 'server'; region: Region; server: Server; open: undefined }
  | { key: string; level: 2; kind: 'node'; region: Region; cell: Cell; open: boolean }
  | { key: string; level: 3; kind: 'allocation'; region: Region; cell: Cell; allocation: Alloc; open: undefined }
  | { key: string; level: 2 | 3; kind: 'note'; text: string; open: undefined }

/** Alloc is what a line shows of an allocation. */
export interface Alloc {
  id: string
  job: string
  state: string
}

export interface TreeInput {
  globals: { name?: string; active?: boolean; address?: string }[]
  regions: Region[]
  /** Region whose nodes are shown. Empty: none. */
  openRegion: string
  /** Node whose allocations are shown. */
  openNode: string
  /** Undefined while the allocations load. */
  allocations: Alloc[] | undefined
  filter: Filter
}

/** lines returns the visible lines. Regions without a match vanish. */
export function lines(is: TreeInput): Line[] {
  const out: Line[] = []
  const select = active(is.filter)
  if (!select) {
    for (const s of is.globals) {
      const server = { name: s.name ?? '', active: s.active ?? false, address: s.address ?? '' }
      out.push({ key: `g/${server.name}`, level: 1, kind: 'global', server, open: undefined })
    }
  }
  for (const region of is.regions) {
    const whole = select && regionMatches(is.filter, region) && is.filter.state === '' && is.filter.pool === ''
    const cells = !select || whole ? region.cells : region.cells.filter((c) => matches(is.filter, c))
    const unknown = select && !region.known && (is.filter.pool !== '' || is.filter.label !== '' || is.filter.text !== '')
    if (select && !whole && cells.length === 0 && !(unknown && region.name === is.openRegion)) continue
    const open = region.name === is.openRegion
    out.push({ key: `r/${region.name}`, level: 1, kind: 'region', region, open, matching: cells.length })
    if (open) children(out, is, region, cells, select)
  }
  return out
}

function children(out: Line[], is: TreeInput, region: Region, cells: Cell[], select: boolean): void {
  if (!select) {
    for (const server of region.servers) {
      out.push({ key: `s/${region.name}/${server.name}`, level: 2, kind: 'server', region, server, open: undefined })
    }
  }
  if (!region.known) {
    out.push({ key: `n/${region.name}`, level: 2, kind: 'note', text: 'Loading the nodes…', open: undefined })
    return
  }
  if (cells.length === 0) {
    out.push({ key: `n/${region.name}`, level: 2, kind: 'note', text: 'No nodes', open: undefined })
  }
  for (const cell of cells) {
    const open = cell.id === is.openNode
    out.push({ key: `c/${cell.id}`, level: 2, kind: 'node', region, cell, open })
    if (!open) continue
    const list = is.allocations
    if (!list || list.length === 0) {
      const text = list ? 'No allocations' : 'Loading the allocations…'
      out.push({ key: `n/${cell.id}`, level: 3, kind: 'note', text, open: undefined })
      continue
    }
    for (const allocation of list) {
      out.push({ key: `a/${allocation.id}`, level: 3, kind: 'allocation', region, cell, allocation, open: undefined })
    }
  }
}

/** parent returns the position of the line above which line i hangs, or i. */
export function parent(list: Line[], i: number): number {
  const level = list[i]?.level ?? 1
  for (let k = i - 1; k >= 0; k--) if (list[k]!.level < level) return k
  return i
}
