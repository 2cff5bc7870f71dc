import { describe, expect, it } from 'vitest'
import { encodeBytes, Matrix, UNKNOWN_RTT } from '../../lib/matrix'
import { axis, bands, ClosedGroups, collapse } from './group'

const MEASURED = 1 | (1 << 3)
const UNREACHABLE = 3 | (1 << 3)

function matrix(): Matrix {
  const m = new Matrix(['a1', 'b1', 'a2', 'b2'])
  const rtts = [[0, 100, 20, 300], [110, 0, 210, 40], [30, 200, 0, 400], [310, 50, 410, 0]]
  rtts.forEach((row, from) => {
    const wide = encodeBytes(new Uint8Array(row.flatMap((v) => [v & 255, v >> 8])))
    const state = row.map((_, to) => (from === to ? 0 : from === 2 && to === 3 ? UNREACHABLE : MEASURED))
    m.setRow({ from, p50: wide, p90: wide, p99: wide, loss: encodeBytes(new Uint8Array([0, 2, 0, 4])), state: encodeBytes(new Uint8Array(state)) })
  })
  return m
}
const group = (r: string): string => r[0]!

describe('axis', () => {
  const m = matrix()
  it('makes one line of a closed group', () => {
    expect(axis(m.columns, group, (g) => g === 'b').map((l) => [l.name, l.closed, l.members])).toEqual([
      ['a1', false, [0]], ['a2', false, [2]], ['b', true, [1, 3]],
    ])
    expect(bands(axis(m.columns, group, (g) => g === 'b'))).toEqual([
      { label: 'a', from: 0, to: 2, closed: false, regions: 2 }, { label: 'b', from: 2, to: 3, closed: true, regions: 2 },
    ])
  })
  it('shows one group only', () => {
    expect(axis(m.columns, group, () => false, 'b').map((l) => l.name)).toEqual(['b1', 'b2'])
  })
})

describe('collapse', () => {
  const m = matrix()
  it('keeps single pairs as they are', () => {
    const c = collapse(m, axis(m.columns, group, () => false), 50)
    expect(c.columns).toEqual(['a1', 'a2', 'b1', 'b2'])
    expect([c.rtt(50, 0, 1), c.rtt(50, 1, 0), c.rtt(50, 3, 0)]).toEqual([2, 3, 31])
    expect(c.rtt(50, 0, 0)).toBeNaN()
  })
  it('shows the median of a group, without itself and without what is unreachable', () => {
    const c = collapse(m, axis(m.columns, group, () => true), 50)
    expect(c.rtt(50, 0, 0)).toBe(3) // of 2 and 3 ms, the upper one
    expect(c.rtt(50, 0, 1)).toBe(20) // of 10, 20 and 30 ms
    expect(c.state[1]).toBe(MEASURED)
    expect(c.loss[1]).toBe(3)
  })
  it('has no value for the group of one region', () => {
    const c = collapse(m, axis(m.columns, (r) => r, () => true), 50)
    expect(c.rtts(50)[0]).toBe(UNKNOWN_RTT)
    expect(c.state[0]).toBe(0)
  })
  it('agrees with a simple computation', () => {
    const n = 40
    const big = new Matrix(Array.from({ length: n }, (_, i) => `r${i}`))
    let seed = 5
    const next = (): number => (seed = (seed * 1103515245 + 12345) & 0x7fffffff)
    for (let from = 0; from < n; from++) {
      const row = Array.from({ length: n }, () => next() % 5000)
      const wide = encodeBytes(new Uint8Array(row.flatMap((v) => [v & 255, v >> 8])))
      big.setRow({ from, p99: wide, state: encodeBytes(new Uint8Array(n).fill(MEASURED)) })
    }
    const lines = axis(big.columns, (r) => `${Number(r.slice(1)) % 4}`, (g) => g !== '2')
    const c = collapse(big, lines, 99)
    lines.forEach((a, i) => lines.forEach((b, j) => {
      const pairs = a.members.flatMap((x) => b.members.filter((y) => y !== x).map((y) => big.p99[x * n + y]!)).sort((x, y) => x - y)
      expect(c.p99[i * lines.length + j]).toBe(pairs[pairs.length >> 1] ?? UNKNOWN_RTT)
    }))
  })
})

describe('ClosedGroups', () => {
  it('reads and writes the address', () => {
    expect(new ClosedGroups('').has('eu')).toBe(false)
    expect(new ClosedGroups('eu,us').has('eu')).toBe(true)
    expect(new ClosedGroups('eu,us').toggled('us')).toBe('eu')
    expect(new ClosedGroups('*').has('eu')).toBe(true)
    expect(new ClosedGroups('*').toggled('eu')).toBe('*,eu')
    expect(new ClosedGroups('*,eu').has('eu')).toBe(false)
    expect(new ClosedGroups('*,eu').toggled('eu')).toBe('*')
    expect(new ClosedGroups(new ClosedGroups('').toggled('a,b')).has('a,b')).toBe(true)
  })
})
