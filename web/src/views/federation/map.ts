import { EDGE_UNREACHABLE, edgeState, kindOf, UNKNOWN_LOSS, UNKNOWN_RTT, type Kind, type Matrix, type Percentile } from '../../lib/matrix'

/** Line is an edge of the map: both directions of a pair of regions. The worse one counts. */
export interface Line {
  from: string
  to: string
  /** Round trip in milliseconds. NaN if it is unknown. */
  ms: number
  /** Share of lost probes, 0..1. */
  loss: number
  kind: Kind
}

/** line describes a pair of regions. */
export function line(m: Matrix, a: number, b: number, p: Percentile): Line {
  const n = m.size
  const rtts = m.rtts(p)
  const out = a * n + b, back = b * n + a
  const x = rtts[out]!, y = rtts[back]!
  const known = [x, y].filter((v) => v !== UNKNOWN_RTT)
  const losses = [m.loss[out]!, m.loss[back]!].filter((v) => v !== UNKNOWN_LOSS)
  const worst = rank(m.state[out]!) >= rank(m.state[back]!) ? out : back
  return { from: m.columns[a]!, to: m.columns[b]!, ms: known.length ? Math.max(...known) / 10 : NaN, loss: losses.length ? Math.max(...losses) / 200 : 0, kind: kindOf(m.state[worst]!) }
}

const rank = (s: number): number => [1, 0, 2, 3][edgeState(s)] ?? 0

/**
 * lines chooses the edges that a map shows. With a selected region: its edges, the shortest first. Else
 * every region's shortest edges, as many as `each` says. At most `most`.
 */
export function lines(m: Matrix, shown: (region: string) => boolean, p: Percentile, selected: string, each: number, most = 400): Line[] {
  const rtts = m.rtts(p)
  const n = m.size
  const indices = Array.from({ length: n }, (_, i) => i).filter((i) => shown(m.columns[i]!))
  const near = (i: number, count: number): number[] => {
    const best: { j: number; v: number }[] = []
    for (const j of indices) {
      if (j === i) continue
      const s = edgeState(m.state[i * n + j]!)
      const v = rtts[i * n + j]!
      if (count < n && (v === UNKNOWN_RTT || s === EDGE_UNREACHABLE)) continue
      if (best.length === count && v >= best[count - 1]!.v) continue
      let at = best.length
      while (at > 0 && best[at - 1]!.v > v) at--
      best.splice(at, 0, { j, v })
      if (best.length > count) best.pop()
    }
    return best.map((b) => b.j)
  }
  const at = m.position(selected)
  if (at >= 0) return near(at, Math.min(most, n)).map((j) => line(m, at, j, p))
  const seen = new Set<number>()
  const out: Line[] = []
  for (const i of indices) {
    for (const j of near(i, Math.min(each, n))) {
      const key = Math.min(i, j) * n + Math.max(i, j)
      if (seen.has(key)) continue
      seen.add(key)
      out.push(line(m, Math.min(i, j), Math.max(i, j), p))
    }
  }
  return out.sort((a, b) => (b.ms || 0) - (a.ms || 0)).slice(-most)
}

/** edgesEach says how many edges of each region a map of this size can show. */
export const edgesEach = (regions: number): number => (regions <= 8 ? regions : regions <= 30 ? 3 : regions <= 120 ? 2 : 1)

/** nearest returns the regions with the shortest round trips from one region. */
export function nearest(m: Matrix, region: string, p: Percentile, count: number): Line[] {
  return lines(m, () => true, p, region, 0, m.size)
    .filter((l) => Number.isFinite(l.ms))
    .sort((a, b) => a.ms - b.ms)
    .slice(0, count)
}

export interface Spot {
  name: string
  x: number
  y: number
}

export interface Label extends Spot {
  /** Where the text begins (start) or ends (end). */
  anchor: 'start' | 'end'
  tx: number
  ty: number
}

/** labels places names beside spots, in order, and leaves out those that would cover another one. */
export function labels(spots: Spot[], width: (name: string) => number, height: number, gap: number): Label[] {
  const boxes: [number, number, number, number][] = spots.map((s) => [s.x - gap * 0.7, s.y - gap * 0.7, s.x + gap * 0.7, s.y + gap * 0.7])
  const out: Label[] = []
  spots.forEach((s, i) => {
    const w = width(s.name)
    for (const anchor of ['start', 'end'] as const) {
      const x0 = anchor === 'start' ? s.x + gap : s.x - gap - w
      const box: [number, number, number, number] = [x0, s.y - height / 2, x0 + w, s.y + height / 2]
      if (boxes.some((b, k) => k !== i && b[0] < box[2] && b[2] > box[0] && b[1] < box[3] && b[3] > box[1])) continue
      boxes.push(box)
      out.push({ ...s, anchor, tx: anchor === 'start' ? s.x + gap : s.x - gap, ty: s.y })
      return
    }
  })
  return out
}

/** towards returns the nearest spot in a direction (dx, dy), or undefined. */
export function towards(spots: Spot[], from: Spot, dx: number, dy: number): Spot | undefined {
  let best: Spot | undefined
  let least = Infinity
  for (const s of spots) {
    const x = s.x - from.x, y = s.y - from.y
    const ahead = x * dx + y * dy
    const aside = Math.abs(x * dy) + Math.abs(y * dx)
    if (s.name === from.name || ahead <= 0 || aside > ahead * 2) continue
    const cost = ahead + 2 * aside
    if (cost < least) [best, least] = [s, cost]
  }
  return best
}

