// The heat map of the latency matrix as pixels. One pixel is one cell; the canvas scales the image.

import { at, background, differencePosition, differenceRamp, lossPosition, lossRamp, mix, rttPosition, rttRamp, type RGB } from '../../lib/colour'
import { kindOf, UNKNOWN_LOSS, UNKNOWN_RTT, type Kind, type Matrix, type Percentile } from '../../lib/matrix'

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

const UNREACHABLE = (dark: boolean): RGB => (dark ? [120, 30, 40] : [214, 60, 70])

/** colour returns the colour of a cell. Values that were not measured are mixed with the background. */
export function colour(m: Matrix, show: Show, p: Percentile, from: number, to: number, dark: boolean): RGB {
  const none = background(dark)
  if (from === to) return none
  const i = from * m.size + to
  const kind = kindOf(m.state[i]!)
  if (kind === 'unreachable') return UNREACHABLE(dark)
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

const RTT_STEPS = new Uint8Array(65536)
for (let v = 0; v < RTT_STEPS.length; v++) RTT_STEPS[v] = Math.round(255 * Math.min(1, rttPosition(v / 10)))

/** pixels returns 256 colours of a scale as pixels, mixed with the background by a share. */
function pixels(show: Show, dark: boolean, fade: number): Uint32Array {
  const ramp = show === 'rtt' ? rttRamp : show === 'loss' ? lossRamp : differenceRamp
  return Uint32Array.from({ length: 256 }, (_, i) => pixel(mix(at(ramp, i / 255, dark), background(dark), fade)))
}

const pixel = (c: RGB): number => ((255 << 24) | (c[2] << 16) | (c[1] << 8) | c[0]) >>> 0

/** FADES is how much of the background a cell has, by its state byte. */
const FADES = Uint8Array.from({ length: 256 }, (_, s) => ({ measured: 0, doubtful: 1, unreachable: 3 } as Partial<Record<Kind, number>>)[kindOf(s)] ?? 2)

/** paint writes the image of the matrix in an order. The colours are those of colour(), in 256 steps. */
export function paint(image: ImageData, m: Matrix, sorted: number[], show: Show, p: Percentile, dark: boolean): void {
  const n = sorted.length
  const size = m.size
  const out = new Uint32Array(image.data.buffer, image.data.byteOffset, n * n)
  const scales = [pixels(show, dark, 0), pixels(show, dark, show === 'loss' ? 0 : 0.3), pixels(show, dark, show === 'loss' ? 0 : 0.5)]
  const none = pixel(background(dark))
  const cut = pixel(UNREACHABLE(dark))
  const rtts = m.rtts(p)
  let o = 0
  for (let r = 0; r < n; r++) {
    const from = sorted[r]!
    for (let c = 0; c < n; c++, o++) {
      const to = sorted[c]!
      const i = from * size + to
      const fade = FADES[m.state[i]!]!
      if (from === to) out[o] = none
      else if (fade === 3) out[o] = cut
      else if (show === 'loss') out[o] = m.loss[i] === UNKNOWN_LOSS ? none : scales[0]![Math.round(255 * lossPosition(m.loss[i]! / 200))]!
      else {
        const v = rtts[i]!
        const back = show === 'difference' ? rtts[to * size + from]! : 0
        if (v === UNKNOWN_RTT || back === UNKNOWN_RTT) out[o] = none
        else if (show === 'rtt') out[o] = scales[fade]![RTT_STEPS[v]!]!
        else out[o] = scales[fade]![Math.max(0, Math.min(255, Math.round(255 * differencePosition((v - back) / Math.max(v, back, 1)))))]!
      }
    }
  }
}

/** Patterned are the kinds of cells that have a pattern besides the colour, in the order of the legend. */
export const patterned = ['predicted', 'estimated', 'stale', 'doubtful', 'unreachable'] as const

/** LEAST_PATTERN is the size of a cell in pixels from which its pattern can be seen. */
export const LEAST_PATTERN = 6

/** pattern returns the lines of a kind's pattern in a cell: x1, y1, x2, y2 in parts of the cell. */
export function pattern(kind: Kind): [number, number, number, number][] {
  switch (kind) {
    case 'predicted':
      return [[0.2, 0.8, 0.8, 0.2]]
    case 'estimated':
      return [[0.1, 0.55, 0.55, 0.1], [0.45, 0.9, 0.9, 0.45]]
    case 'stale':
      return [[0.15, 0.5, 0.85, 0.5]]
    case 'doubtful':
      return [[0.5, 0.15, 0.85, 0.8], [0.85, 0.8, 0.15, 0.8], [0.15, 0.8, 0.5, 0.15]]
    case 'unreachable':
      return [[0.2, 0.2, 0.8, 0.8], [0.2, 0.8, 0.8, 0.2]]
  }
  return []
}

/** drawPatterns draws the patterns of a matrix whose cells have this size. */
export function drawPatterns(context: CanvasRenderingContext2D, m: Matrix, sorted: number[], cell: number, dark: boolean): void {
  context.clearRect(0, 0, context.canvas.width, context.canvas.height)
  if (cell < LEAST_PATTERN) return
  // Light and dark below the line: it is seen on every colour of the scales.
  for (const [colour, width] of [[dark ? 'rgb(0 0 0 / 55%)' : 'rgb(255 255 255 / 65%)', 2.6], [dark ? '#fff' : '#101820', 1.1]] as const) {
    context.strokeStyle = colour
    context.lineWidth = width * Math.min(2, Math.max(1, cell / 12))
    context.beginPath()
    sorted.forEach((from, r) => sorted.forEach((to, c) => {
      if (from === to) return
      for (const [x1, y1, x2, y2] of pattern(kindOf(m.state[from * m.size + to]!))) {
        context.moveTo((c + x1) * cell, (r + y1) * cell)
        context.lineTo((c + x2) * cell, (r + y2) * cell)
      }
    }))
    context.stroke()
  }
}
