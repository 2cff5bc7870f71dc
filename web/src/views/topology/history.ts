// Time series of a node as lines of a small chart.

import type { Duration, Timestamp } from '../../lib/types'

export interface HistoryField {
  name?: string
  mean?: number[]
  min?: number[]
  max?: number[]
  count?: number[]
}

export interface HistoryTrend {
  field?: string
  limit?: number
  known?: boolean
  at?: Timestamp
  earliest?: Timestamp
  latest?: Timestamp
  why?: string
}

export interface HistorySeries {
  /** The other region of an edge. */
  key?: string
  start?: Timestamp
  step?: Duration
  fields?: HistoryField[]
  trends?: HistoryTrend[]
}

/** Point is a value at a time. NaN: there was no measurement. */
export interface Point {
  at: number
  mean: number
  min: number
  max: number
}

/** points returns the values of a field. Values without a measurement are NaN. */
export function points(series: HistorySeries, name: string): Point[] {
  const field = series.fields?.find((f) => f.name === name)
  if (!field) return []
  const start = Date.parse(series.start ?? '')
  const step = Number.parseFloat(series.step ?? '0') * 1000
  return (field.mean ?? []).map((mean, i) => {
    const has = (field.count?.[i] ?? 1) > 0
    return {
      at: start + i * step,
      mean: has ? mean : NaN,
      min: has ? (field.min?.[i] ?? mean) : NaN,
      max: has ? (field.max?.[i] ?? mean) : NaN,
    }
  })
}

/** lines returns the paths of the mean in a box of the given size. Gaps stay gaps. */
export function lines(all: Point[], top: number, width: number, height: number): { mean: string; band: string } {
  const x = (i: number) => (all.length > 1 ? (i / (all.length - 1)) * width : 0)
  const y = (v: number) => height - Math.max(0, Math.min(1, top > 0 ? v / top : 0)) * height
  let mean = ''
  let band = ''
  let run: number[] = []
  const end = () => {
    if (run.length > 0) {
      mean += run.map((i, k) => `${k === 0 ? 'M' : 'L'}${x(i).toFixed(1)} ${y(all[i]!.mean).toFixed(1)}`).join('')
      if (run.length === 1) mean += 'h0.1'
      band += run.map((i, k) => `${k === 0 ? 'M' : 'L'}${x(i).toFixed(1)} ${y(all[i]!.max).toFixed(1)}`).join('')
      band += `${[...run].reverse().map((i) => `L${x(i).toFixed(1)} ${y(all[i]!.min).toFixed(1)}`).join('')}Z`
    }
    run = []
  }
  all.forEach((p, i) => {
    if (Number.isNaN(p.mean)) end()
    else run.push(i)
  })
  end()
  return { mean, band }
}

/** top returns the upper end of the scale: the limit if it is known, otherwise the greatest value. */
export function top(all: Point[], limit: number): number {
  if (limit > 0) return limit
  return all.reduce((most, p) => (p.max > most ? p.max : most), 0) * 1.1
}

/** trendText says in words when a value reaches its limit. */
export function trendText(t: HistoryTrend, now: number): string {
  const what = (t.field ?? '').replace(/_used(_bytes)?$/, '').replace(/_/g, ' ')
  if (!t.known) return t.why ? `${what}: ${t.why}` : `${what}: no forecast`
  const at = Date.parse(t.at ?? '')
  if (at <= now) return `${what} has run out${t.why ? ` (${t.why})` : ''}`
  const from = Date.parse(t.earliest ?? '')
  const to = Date.parse(t.latest ?? '')
  const range = Number.isFinite(from) ? `, between ${span(from - now)} and ${Number.isFinite(to) ? span(to - now) : 'never'}` : ''
  return `${what} runs out in about ${span(at - now)}${range}`
}

function span(ms: number): string {
  const hours = Math.max(0, ms) / 3_600_000
  if (hours < 1.5) return `${Math.max(1, Math.round(hours * 60))} min`
  return hours < 48 ? `${Math.round(hours)} h` : `${Math.round(hours / 24)} days`
}
