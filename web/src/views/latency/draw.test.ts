import { describe, expect, it } from 'vitest'
import { encodeBytes, Matrix, UNKNOWN_RTT } from '../../lib/matrix'
import { colour, paint, pattern, patterned } from './draw'
import { axis, collapse } from './group'

const MEASURED = 1 | (1 << 3)
const PREDICTED = 1 | (2 << 3)
const UNREACHABLE = 3 | (1 << 3)

function matrix(): Matrix {
  const m = new Matrix(['b', 'a', 'c'])
  const row = (from: number, rtts: number[], states: number[]) => {
    const wide = new Uint8Array(rtts.flatMap((v) => [v & 255, v >> 8]))
    m.setRow({ from, p50: encodeBytes(wide), p90: encodeBytes(wide), p99: encodeBytes(wide), loss: encodeBytes(new Uint8Array([0, 0, 100])), state: encodeBytes(new Uint8Array(states)) })
  }
  row(0, [UNKNOWN_RTT, 100, 2000], [0, MEASURED, PREDICTED])
  row(1, [300, UNKNOWN_RTT, UNKNOWN_RTT], [MEASURED, 0, UNREACHABLE])
  return m
}

describe('colour', () => {
  const m = matrix()
  it('distinguishes what was measured, predicted, unreachable and unknown', () => {
    const cells = [colour(m, 'rtt', 50, 0, 1, false), colour(m, 'rtt', 50, 0, 2, false), colour(m, 'rtt', 50, 1, 2, false), colour(m, 'rtt', 50, 2, 0, false)]
    expect(new Set(cells.map(String)).size).toBe(4)
  })
  it('shows the direction of a difference', () => {
    expect(colour(m, 'difference', 50, 0, 1, false)).not.toEqual(colour(m, 'difference', 50, 1, 0, false))
    expect(colour(m, 'difference', 50, 0, 2, false)).toEqual([255, 255, 255]) // the way back is unknown
  })
  it('shows loss', () => {
    expect(colour(m, 'loss', 50, 0, 2, false)).not.toEqual(colour(m, 'loss', 50, 0, 1, false))
  })
})

describe('pattern', () => {
  it('gives every kind that is not measured lines of its own', () => {
    expect(new Set(patterned.map((k) => JSON.stringify(pattern(k)))).size).toBe(patterned.length)
    expect(pattern('measured')).toEqual([])
  })
})

describe('paint', () => {
  it('paints the colours of the cells', () => {
    const m = collapse(matrix(), axis(['b', 'a', 'c'], () => '', () => false), 50)
    m.state[1]! |= 128
    for (const show of ['rtt', 'loss', 'difference', 'relay'] as const) {
      const image = { data: new Uint8ClampedArray(36), width: 3, height: 3 } as ImageData
      paint(image, m, show, 50, false)
      for (let i = 0; i < 9; i++) {
        const want = colour(m, show, 50, Math.floor(i / 3), i % 3, false)
        for (const k of [0, 1, 2]) expect(Math.abs(image.data[4 * i + k]! - want[k]!), `${show} ${i}`).toBeLessThanOrEqual(4)
      }
    }
  })
  it('paints a matrix of 1,000 regions completely', () => {
    const big = new Matrix(Array.from({ length: 1000 }, (_, i) => `r${i}`))
    const image = { data: new Uint8ClampedArray(4_000_000), width: 1000, height: 1000 } as ImageData
    paint(image, big, 'rtt', 50, true)
    expect(image.data[3_999_999]).toBe(255)
  })
})
