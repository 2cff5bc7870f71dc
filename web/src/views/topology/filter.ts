// The filter of the topology view.

import { byName, type Cell, type Look, type Region } from './model'

export interface Filter {
  /** Empty: every state. */
  state: '' | Look
  /** Empty: every pool. */
  pool: string
  /** "key" or "key=value". Empty: every label. */
  label: string
  /** Part of the name or the id. Empty: every name. */
  text: string
}

export const noFilter: Filter = { state: '', pool: '', label: '', text: '' }

/** active says whether the filter selects at all. */
export function active(f: Filter): boolean {
  return f.state !== '' || f.pool !== '' || f.label !== '' || f.text !== ''
}

/** hasLabel applies "key" or "key=value" to labels. */
export function hasLabel(labels: Record<string, string>, want: string): boolean {
  const at = want.indexOf('=')
  if (at < 0) return want.trim() in labels
  return labels[want.slice(0, at).trim()] === want.slice(at + 1).trim()
}

/** matches says whether a node matches. A node of which only counts are known has a state. */
export function matches(f: Filter, cell: Cell): boolean {
  if (f.state !== '' && cell.look !== f.state) return false
  if (f.pool !== '' && cell.pool !== f.pool) return false
  if (f.label !== '' && !hasLabel(cell.labels, f.label)) return false
  if (f.text === '') return true
  const want = f.text.toLowerCase()
  return cell.name.toLowerCase().includes(want) || cell.id.startsWith(want)
}

/**
 * regionMatches says whether a region itself has the text or the label. The pool and the state
 * belong to nodes.
 */
export function regionMatches(f: Filter, region: Region): boolean {
  if (f.text === '' && f.label === '') return false
  if (f.text !== '' && !region.name.toLowerCase().includes(f.text.toLowerCase())) return false
  return f.label === '' || hasLabel(region.labels, f.label)
}

/** count returns the numbers of matching and of all nodes. */
export function count(f: Filter, regions: Iterable<Region>): { matching: number; all: number } {
  let matching = 0
  let all = 0
  for (const region of regions) {
    all += region.cells.length
    if (!active(f)) continue
    const whole = regionMatches({ ...f }, region) && f.state === '' && f.pool === ''
    for (const cell of region.cells) if (whole || matches(f, cell)) matching++
  }
  return { matching: active(f) ? matching : all, all }
}

/** choices returns the pools and the label keys of the known nodes, sorted, at most 200 each. */
export function choices(regions: Iterable<Region>): { pools: string[]; labels: string[] } {
  const pools = new Set<string>()
  const labels = new Set<string>()
  for (const region of regions) {
    for (const key of Object.keys(region.labels)) labels.add(key)
    if (!region.known) continue
    for (const cell of region.cells) {
      if (cell.pool !== '') pools.add(cell.pool)
      for (const key of Object.keys(cell.labels)) labels.add(key)
    }
  }
  const list = (set: Set<string>) => [...set].sort(byName).slice(0, 200)
  return { pools: list(pools), labels: list(labels) }
}
