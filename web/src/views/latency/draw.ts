// The heat map of the latency matrix as pixels. One pixel is one cell; the canvas scales the image.

import { at, background, differencePosition, differenceRamp, lossPosition, lossRamp, mix, rttPosition, rttRamp, type RGB } from '../../lib/colour'
import { kindOf, UNKNOWN_LOSS, UNKNOWN_RTT, type Matrix, type Percentile } from '../../lib/matrix'

/** Show is what the colour of a cell means. */
export type Show = 'rtt' | 'loss' | 'difference'

/** order returns the positions of the columns, sorted by the value of a label and then by name. */
export function order(columns: string[], group: (region: string) => string): number[] {
  return columns
    .map((name, i) => ({ i, name, group: group(name) }))
    .sort((a, b) => (a.group < b.group ? -1 : a.group > b.group ? 1 : a.name < b.name ? -1 : 1))
    .map((x) => x.i)
}

/** Band is a run of neighbours with the same value of the label. */
export interface Band {
  label: string
  from: number
  to: number
}

/** bands returns the runs of an order. */
export function bands(columns: string[], sorted: number[], group: (region: string) => string): Band[] {
  const out: Band[] = []
  sorted.forEach((c, i) => {
    const label = group(columns[c]!)
    const last = out[out.length - 1]
    if (last && last.label === label) last.to = i + 1
    else out.push({ label, from: i, to: i + 1 })
  })
  return out
}

/** colour returns the colour of a cell. Values that were not measured are mixed with the background. */
export function colour(m: Matrix, show: Show, p: Percentile, from: number, to: number, dark: boolean): RGB {
  const none = background(dark)
  if (from === to) return none
  const i = from * m.size + to
  const kind = kindOf(m.state[i]!)
  if (kind === 'unreachable') return dark ? [120, 30, 40] : [214, 60, 70]
  if (show === 'loss') {
    const loss = m.loss[i]!
    return loss === UNKNOWN_LOSS ? none : at(lossRamp, lossPosition(loss / 200), dark)
  }
  const rtts = m.rtts(p)
  const out = rtts[i]!
  if (out === UNKNOWN_RTT) return none
  let c: RGB
  if (show === 'rtt') c = at(rttRamp, rttPosition(out / 10), dark)
  else {
    const back = rtts[to * m.size + from]!
    if (back === UNKNOWN_RTT) return none
    c = at(differenceRamp, differencePosition((out - back) / Math.max(out, back, 1)), dark)
  }
  return kind === 'measured' ? c : mix(c, none, kind === 'doubtful' ? 0.3 : 0.5)
}

/** paint writes the image of the matrix in an order. rows limits the work to some rows. */
export function paint(image: ImageData, m: Matrix, sorted: number[], show: Show, p: Percentile, dark: boolean): void {
  const n = sorted.length
  const d = image.data
  for (let r = 0; r < n; r++) {
    for (let c = 0; c < n; c++) {
      const rgb = colour(m, show, p, sorted[r]!, sorted[c]!, dark)
      const o = (r * n + c) * 4
      d[o] = rgb[0]
      d[o + 1] = rgb[1]
      d[o + 2] = rgb[2]
      d[o + 3] = 255
    }
  }
}
