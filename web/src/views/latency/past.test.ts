import { describe, expect, it } from 'vitest'
import { load, Past, pointsOf } from './past'

const begin = Date.parse('2026-03-01T00:00:00Z')
const series = (key: string, mean: number[], count: number[]) => ({
  key, start: '2026-03-01T00:00:00Z', step: '60s',
  fields: [{ name: 'p50_ms', mean, count }, { name: 'loss', mean: mean.map(() => 0.05), count }],
})

describe('Past', () => {
  it('is the matrix at each time', () => {
    const past = new Past(['a', 'b'], begin, 60_000)
    past.add('a', { series: [series('b', [10, 0, 30], [1, 0, 1]), series('unknown', [1], [1])] }, 'p50_ms')
    expect([0, 1, 2, 3].map((i) => past.matrix(i).rtt(50, 0, 1))).toEqual([10, NaN, 30, NaN])
    expect(past.matrix(0).loss[1]).toBe(10)
    expect(past.matrix(0).state[1]).toBe(9)
    expect(past.matrix(1).state[1]).toBe(0)
    expect(past.matrix(0).rtt(50, 1, 0)).toBeNaN()
  })
  it('reads a block', () => {
    const past = new Past(['a', 'b', 'c'], begin, 60_000)
    // b: 12.3, none; c: none, 7.0, and the loss 0.05 of b.
    const values = (...v: number[]) => btoa(String.fromCharCode(...v.flatMap((x) => [x & 255, x >> 8])))
    past.add('a', { block: { keys: ['b', 'unknown', 'c'], start: '2026-03-01T00:00:00Z', step: '60s', points: 2, columns: [
      { name: 'p50_ms', unit: 0.1, values: values(123, 65535, 1, 1, 65535, 70) }, { name: 'loss', unit: 0.005, values: values(10, 65535) }, { name: 'p99_ms', unit: 0.1, values: '' },
    ] } }, 'p50_ms')
    expect([0, 1].map((i) => [past.matrix(i).rtt(50, 0, 1), past.matrix(i).rtt(50, 0, 2)])).toEqual([[12.3, NaN], [NaN, 7]])
    expect(past.matrix(0).loss[1]).toBe(10)
    expect(past.matrix(1).loss[1]).toBe(255)
  })
  it('has fewer steps for many regions', () => {
    expect([2, 64, 65, 250].map(pointsOf)).toEqual([48, 48, 24, 24])
  })
  it('ignores what is outside', () => {
    const past = new Past(['a', 'b'], begin + 60_000, 60_000)
    const points = past.points
    past.add('a', { series: [series('b', Array(points + 9).fill(7), Array(points + 9).fill(1))] }, 'p50_ms')
    expect(past.matrix(0).rtt(50, 0, 1)).toBe(7)
    expect(past.matrix(points - 1).rtt(50, 0, 1)).toBe(7)
  })
})

describe('load', () => {
  it('asks for few regions at a time, and counts those that do not answer', async () => {
    const past = new Past(['a', 'b', 'c', 'd', 'e'], begin, 60_000)
    let now = 0
    let most = 0
    const steps: number[] = []
    const failed = await load(past, 'p50_ms', async (region) => {
      most = Math.max(most, ++now)
      await new Promise((r) => setTimeout(r, 1))
      now--
      if (region === 'c') throw new Error('no answer')
      return { series: [series('a', [5], [1])] }
    }, (n) => steps.push(n), 2)
    expect([failed, most, steps]).toEqual([1, 2, [1, 2, 3, 4, 5]])
    expect(past.matrix(0).rtt(50, 1, 0)).toBe(5)
    expect(past.matrix(0).rtt(50, 2, 0)).toBeNaN()
  })
})
