import { describe, expect, it } from 'vitest'
import { lines, points, top, trendText, type HistorySeries } from './history'

const series: HistorySeries = {
  start: '2026-01-01T00:00:00Z',
  step: '60s',
  fields: [{ name: 'cpu', mean: [0.5, 0, 1, 0.2], min: [0.4, 0, 0.9, 0.2], max: [0.6, 0, 1, 0.2], count: [3, 0, 2, 1] }],
}

describe('points', () => {
  it('has the times, and no value where nothing was measured', () => {
    const all = points(series, 'cpu')
    expect(all.map((p) => p.at - all[0]!.at)).toEqual([0, 60_000, 120_000, 180_000])
    expect(all[1]!.mean).toBeNaN()
    expect(points(series, 'nothing')).toEqual([])
  })
})

describe('lines', () => {
  it('leaves gaps where there is no value', () => {
    const { mean, band } = lines(points(series, 'cpu'), 1, 300, 100)
    expect(mean).toBe('M0.0 50.0h0.1M200.0 0.0L300.0 80.0')
    expect(band.match(/M/g)).toHaveLength(2)
    expect(lines([], 1, 300, 100)).toEqual({ mean: '', band: '' })
  })

  it('finds the scale', () => {
    expect(top(points(series, 'cpu'), 1)).toBe(1)
    expect(top(points(series, 'cpu'), 0)).toBeCloseTo(1.1)
    expect(top([], 0)).toBe(0)
  })
})

describe('trendText', () => {
  const now = Date.parse('2026-01-01T00:00:00Z')
  const day = (n: number) => new Date(now + n * 86_400_000).toISOString()
  it('says when, and between which times', () => {
    expect(trendText({ field: 'memory_used', known: true, at: day(12), earliest: day(9), latest: day(20) }, now)).toBe(
      'memory runs out in about 12 days, between 9 days and 20 days',
    )
    expect(trendText({ field: 'disk_used', known: true, at: day(3), earliest: day(2) }, now)).toContain('never')
    expect(trendText({ field: 'disk_used', why: 'too few values' }, now)).toBe('disk: too few values')
    expect(trendText({ field: 'disk_used', known: true, at: day(-1) }, now)).toBe('disk has run out')
  })
})
