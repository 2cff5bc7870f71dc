// Regions grouped by the value of a label. A closed group is one row and one column of the heat map.

import { edgeState, EDGE_UNREACHABLE, Matrix, UNKNOWN_LOSS, UNKNOWN_RTT, type Percentile } from '../../lib/matrix'

/** Line is a row and a column of the heat map: one region, or the regions of a closed group. */
export interface Line {
  /** Name of the region, or of the group. */
  name: string
  group: string
  /** The line is a closed group. */
  closed: boolean
  /** Positions of its regions in the matrix. */
  members: number[]
}

/** axis returns the lines in order: sorted by group, then by name. `only` leaves out all other groups. */
export function axis(columns: string[], group: (region: string) => string, closed: (group: string) => boolean, only = ''): Line[] {
  const sorted = columns
    .map((name, i) => ({ i, name, group: group(name) }))
    .filter((x) => only === '' || x.group === only)
    .sort((a, b) => (a.group < b.group ? -1 : a.group > b.group ? 1 : a.name < b.name ? -1 : 1))
  const out: Line[] = []
  for (const x of sorted) {
    const last = out[out.length - 1]
    if (!closed(x.group)) out.push({ name: x.name, group: x.group, closed: false, members: [x.i] })
    else if (last?.closed && last.group === x.group) last.members.push(x.i)
    else out.push({ name: x.group, group: x.group, closed: true, members: [x.i] })
  }
  return out
}

/** Band is a run of lines of the same group. */
export interface Band {
  label: string
  from: number
  to: number
  closed: boolean
  /** Number of regions. */
  regions: number
}

/** bands returns the groups of an axis. */
export function bands(lines: Line[]): Band[] {
  const out: Band[] = []
  lines.forEach((l, i) => {
    const last = out[out.length - 1]
    if (last && last.label === l.group) {
      last.to = i + 1
      last.regions += l.members.length
    } else out.push({ label: l.group, from: i, to: i + 1, closed: l.closed, regions: l.members.length })
  })
  return out
}

/**
 * collapse returns the matrix of the lines, in their order. The round trip of a cell of groups is the
 * median of its pairs, the loss is the mean. Its state is that of most of its pairs.
 */
export function collapse(m: Matrix, lines: Line[], p: Percentile): Matrix {
  const out = new Matrix(lines.map((l) => l.name))
  const n = lines.length
  const rtts = m.rtts(p)
  const into = out.rtts(p)
  const most = lines.reduce((sum, l) => Math.max(sum, l.members.length), 0)
  const values = new Uint16Array(most * most)
  const states = new Uint32Array(256)
  for (let r = 0; r < n; r++) {
    const from = lines[r]!.members
    for (let c = 0; c < n; c++) {
      const to = lines[c]!.members
      const at = r * n + c
      if (from.length === 1 && to.length === 1) {
        if (from[0] === to[0]) continue
        const i = from[0]! * m.size + to[0]!
        into[at] = rtts[i]!
        out.loss[at] = m.loss[i]!
        out.state[at] = m.state[i]!
        continue
      }
      let known = 0, losses = 0, loss = 0, best = 0
      states.fill(0)
      for (const a of from) {
        for (const b of to) {
          if (a === b) continue
          const i = a * m.size + b
          const s = m.state[i]!
          if (++states[s]! > states[best]!) best = s
          if (rtts[i] !== UNKNOWN_RTT && edgeState(s) !== EDGE_UNREACHABLE) values[known++] = rtts[i]!
          if (m.loss[i] !== UNKNOWN_LOSS) {
            loss += m.loss[i]!
            losses++
          }
        }
      }
      if (known > 0) into[at] = values.subarray(0, known).sort()[known >> 1]!
      if (losses > 0) out.loss[at] = Math.round(loss / losses)
      out.state[at] = best
    }
  }
  return out
}

/** ClosedGroups are the closed groups in the address: "*" is all of them, "*,eu" is all but eu. */
export class ClosedGroups {
  private all: boolean
  private listed: Set<string>

  constructor(text: string) {
    const parts = text.split(',').filter((p) => p !== '').map(decodeURIComponent)
    this.all = parts[0] === '*'
    this.listed = new Set(this.all ? parts.slice(1) : parts)
  }

  has(group: string): boolean {
    return this.listed.has(group) !== this.all
  }

  /** toggled returns the address after a group was opened or closed. */
  toggled(group: string): string {
    const next = new Set(this.listed)
    if (!next.delete(group)) next.add(group)
    return [...(this.all ? ['*'] : []), ...[...next].sort().map((g) => (g === '*' ? '%2A' : encodeURIComponent(g)))].join(',')
  }
}
