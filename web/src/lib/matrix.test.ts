import { describe, expect, it } from 'vitest'
import { Matrix, UNKNOWN_RTT, edgeRelay, encodeBytes, kindOf } from './matrix'

const wide = (...v: number[]): string => encodeBytes(new Uint8Array(new Uint16Array(v).buffer))
const narrow = (...v: number[]): string => encodeBytes(new Uint8Array(v))

describe('Matrix', () => {
  it('decodes full rows', () => {
    const m = new Matrix(['a', 'b', 'c'])
    m.setRow({ from: 1, p50: wide(123, 65535, 4000), loss: narrow(0, 255, 3), state: narrow(9, 0, 9) })
    expect(m.rtt(50, 1, 0)).toBeCloseTo(12.3)
    expect(m.rtt(50, 1, 1)).toBeNaN()
    expect(m.rtt(50, 1, 2)).toBe(400)
    expect(m.loss[5]).toBe(3)
    expect(m.rtt(50, 0, 1)).toBeNaN()
  })

  it('changes only the named columns', () => {
    const m = new Matrix(['a', 'b', 'c'])
    m.setRow({ p99: wide(1, 2, 3) })
    m.setRow({ from: 0, to: [2], p99: wide(30), state: narrow(9) })
    expect([...m.p99.slice(0, 3)]).toEqual([1, 2, 30])
    expect([...m.state.slice(0, 3)]).toEqual([0, 0, 9])
  })

  it('ignores rows, columns and bytes that do not exist', () => {
    const m = new Matrix(['a', 'b'])
    m.setRow({ from: 7, p50: wide(1, 2) })
    m.setRow({ from: 0, to: [9], p50: wide(1) })
    m.setRow({ from: 1, p50: wide(1, 2, 3, 4), loss: narrow(1) })
    expect([...m.p50]).toEqual([UNKNOWN_RTT, UNKNOWN_RTT, 1, 2])
    expect(m.position('b')).toBe(1)
    expect(m.position('z')).toBe(-1)
  })
})

describe('kindOf', () => {
  it('names the most important property', () => {
    const s = (state: number, source: number, more = 0): number => state | (source << 3) | more
    expect(kindOf(0)).toBe('none')
    expect(kindOf(s(1, 1))).toBe('measured')
    expect(kindOf(s(0, 2))).toBe('predicted')
    expect(kindOf(s(0, 3))).toBe('estimated')
    expect(kindOf(s(2, 1))).toBe('stale')
    expect(kindOf(s(3, 1, 64))).toBe('unreachable')
    expect(kindOf(s(1, 1, 64))).toBe('doubtful')
    expect(kindOf(s(1, 1, 128))).toBe('measured')
    expect(edgeRelay(s(1, 1, 128))).toBe(true)
  })
})
