// The heat map of the latency matrix as pixels. One pixel is one cell; the canvas scales the image.

import { at, background, differencePosition, differenceRamp, lossPosition, lossRamp, mix, rttPosition, rttRamp, type RGB } from '../../lib/colour'
import { edgeRelay, kindOf, UNKNOWN_LOSS, UNKNOWN_RTT, type Kind, type Matrix, type Percentile } from '../../lib/matrix'

/** Show is what the colour of a cell means. */
export type Show = 'rtt' | 'loss' | 'difference' | 'relay'

const UNREACHABLE = (dark: boolean): RGB => (dark ? [120, 30, 40] : [214, 60, 70])

/** colour returns the colour of a cell. Values that were not measured are mixed with the background. */
export function colour(m: Matrix, show: Show, p: Percentile, from: number, to: number, dark: boolean): RGB {
  const none = background(dark)
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
  if (show === 'rtt' || show === 'relay') c = at(rttRamp, rttPosition(out / 10), dark)
  else {
    const back = rtts[to * m.size + from]!
    if (back === UNKNOWN_RTT) return none
    c = at(differenceRamp, differencePosition((out - back) / Math.max(out, back, 1)), dark)
  }
  if (show === 'relay' && !edgeRelay(m.state[i]!)) return mix(c, none, FAINT)
  return kind === 'measured' ? c : mix(c, none, kind === 'doubtful' ? 0.3 : 0.5)
}

/** FAINT is how much of the background a cell has that the view leaves aside. */
const FAINT = 0.85

const RTT_STEPS = new Uint8Array(65536)
for (let v = 0; v < RTT_STEPS.length; v++) RTT_STEPS[v] = Math.round(255 * Math.min(1, rttPosition(v / 10)))

/** pixels returns 256 colours of a scale as pixels, mixed with the background by a share. */
function pixels(show: Show, dark: boolean, fade: number): Uint32Array {
  const ramp = show === 'rtt' || show === 'relay' ? rttRamp : show === 'loss' ? lossRamp : differenceRamp
  return Uint32Array.from({ length: 256 }, (_, i) => pixel(mix(at(ramp, i / 255, dark), background(dark), fade)))
}

const pixel = (c: RGB): number => ((255 << 24) | (c[2] << 16) | (c[1] << 8) | c[0]) >>> 0

/** FADES is how much of the background a cell has, by its state byte. */
const FADES = Uint8Array.from({ length: 256 }, (_, s) => ({ measured: 0, doubtful: 1, unreachable: 3 } as Partial<Record<Kind, number>>)[kindOf(s)] ?? 2)

/** paint writes the image of a matrix. The colours are those of colour(), in 256 steps. */
export function paint(image: ImageData, m: Matrix, show: Show, p: Percentile, dark: boolean): void {
  const n = m.size
  const out = new Uint32Array(image.data.buffer, image.data.byteOffset, n * n)
  const fades = show === 'loss' ? [0, 0, 0, 0, 0] : [0, 0.3, 0.5, 0, FAINT]
  const scales = fades.map((f) => pixels(show, dark, f))
  const none = pixel(background(dark))
  const cut = pixel(UNREACHABLE(dark))
  const rtts = m.rtts(p)
  let i = 0
  for (let r = 0; r < n; r++) {
    for (let c = 0; c < n; c++, i++) {
      const state = m.state[i]!
      const fade = FADES[state]!
      if (fade === 3) out[i] = cut
      else if (show === 'loss') out[i] = m.loss[i] === UNKNOWN_LOSS ? none : scales[0]![Math.round(255 * lossPosition(m.loss[i]! / 200))]!
      else {
        const v = rtts[i]!
        const back = show === 'difference' ? rtts[c * n + r]! : 0
        if (v === UNKNOWN_RTT || back === UNKNOWN_RTT) out[i] = none
        else if (show === 'difference') out[i] = scales[fade]![Math.max(0, Math.min(255, Math.round(255 * differencePosition((v - back) / Math.max(v, back, 1)))))]!
        else out[i] = scales[show === 'relay' && !edgeRelay(state) ? 4 : fade]![RTT_STEPS[v]!]!
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
export function drawPatterns(context: CanvasRenderingContext2D, m: Matrix, cell: number, dark: boolean): void {
  context.clearRect(0, 0, context.canvas.width, context.canvas.height)
  if (cell < LEAST_PATTERN) return
  // Light and dark below the line: it is seen on every colour of the scales.
  for (const [colour, width] of [[dark ? 'rgb(0 0 0 / 55%)' : 'rgb(255 255 255 / 65%)', 2.6], [dark ? '#fff' : '#101820', 1.1]] as const) {
    context.strokeStyle = colour
    context.lineWidth = width * Math.min(2, Math.max(1, cell / 12))
    context.beginPath()
    m.state.forEach((s, i) => {
      const c = i % m.size
      const r = (i - c) / m.size
      for (const [x1, y1, x2, y2] of pattern(kindOf(s))) {
        context.moveTo((c + x1) * cell, (r + y1) * cell)
        context.lineTo((c + x2) * cell, (r + y2) * cell)
      }
    })
    context.stroke()
  }
}
