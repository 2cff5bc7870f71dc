// The matrix at an earlier time: one history of each region's edges.

import { Matrix } from '../../lib/matrix'
import { seconds } from '../../lib/format'
import type { HistorySeries } from '../topology/history'

/**
 * mostPast bounds the regions whose history the page loads: the histories grow with the square. 250 regions are
 * 250 requests with 8.9 MB in all, or about 3 MB compressed (e2e/latency_test.go).
 */
export const mostPast = 250

/** pointsOf is the number of steps of the slider: fewer for many regions. */
export const pointsOf = (regions: number): number => (regions > 64 ? 24 : 48)

/** HistoryBlock is nusa.v1.HistoryBlock as JSON. */
export interface HistoryBlock {
  keys?: string[]
  start?: string
  step?: string
  points?: number
  columns?: { name?: string; unit?: number; values?: string }[]
}

/** History is the history of a region's edges. A server of an earlier version sends series. */
export interface History {
  series?: HistorySeries[]
  block?: HistoryBlock
}

/** Past is a matrix over time. */
export class Past {
  /** Where the values begin, and the time between two of them, in milliseconds. */
  constructor(readonly columns: string[], readonly begin: number, readonly step: number) {
    const n = columns.length
    const points = (this.points = pointsOf(n))
    this.position = new Map(columns.map((c, i) => [c, i]))
    this.rtts = new Uint16Array(n * n * points).fill(65535)
    this.losses = new Uint8Array(n * n * points).fill(255)
  }

  /** Number of steps. */
  readonly points: number
  private position: Map<string, number>
  private rtts: Uint16Array
  private losses: Uint8Array

  /** at returns the time of a step. */
  at(i: number): number {
    return this.begin + (i + 0.5) * this.step
  }

  /** add stores the history of a region's edges. `field` is the round trip, for example "p50_ms". */
  add(region: string, history: History, field: string): void {
    const from = this.position.get(region)
    if (from === undefined) return
    if (history.block) this.addBlock(from, history.block, field)
    for (const s of history.series ?? []) {
      const to = this.position.get(s.key ?? '')
      if (to === undefined || to === from) continue
      const start = Date.parse(s.start ?? '')
      const step = seconds(s.step) * 1000
      for (const f of s.fields ?? []) {
        if (f.name !== field && f.name !== 'loss') continue
        f.mean?.forEach((v, k) => {
          if (f.count?.[k]) this.put(from, to, start + (k + 0.5) * step, f.name === 'loss', v)
        })
      }
    }
  }

  private addBlock(from: number, b: HistoryBlock, field: string): void {
    const start = Date.parse(b.start ?? '')
    const step = seconds(b.step) * 1000
    const points = b.points ?? 0
    for (const c of b.columns ?? []) {
      if (c.name !== field && c.name !== 'loss') continue
      const bytes = Uint8Array.from(atob(c.values ?? ''), (x) => x.charCodeAt(0))
      const values = new DataView(bytes.buffer)
      b.keys?.forEach((key, s) => {
        const to = this.position.get(key)
        if (to === undefined || to === from) return
        for (let k = 0; k < points && 2 * (s * points + k) + 1 < bytes.length; k++) {
          const v = values.getUint16(2 * (s * points + k), true)
          if (v !== 65535) this.put(from, to, start + (k + 0.5) * step, c.name === 'loss', v * (c.unit ?? 0))
        }
      })
    }
  }

  /** put stores a value at a time. */
  private put(from: number, to: number, time: number, loss: boolean, v: number): void {
    const n = this.columns.length
    const i = Math.floor((time - this.begin) / this.step)
    if (i < 0 || i >= this.points) return
    const at = (i * n + from) * n + to
    if (loss) this.losses[at] = Math.round(Math.min(1, v) * 200)
    else this.rtts[at] = Math.min(65534, Math.round(v * 10))
  }

  /** matrix returns the matrix at a step, with the positions of the columns. */
  matrix(i: number): Matrix {
    const m = new Matrix(this.columns)
    const size = this.columns.length ** 2
    const rtts = this.rtts.subarray(i * size, (i + 1) * size)
    m.p50.set(rtts)
    m.p90.set(rtts)
    m.p99.set(rtts)
    m.loss.set(this.losses.subarray(i * size, (i + 1) * size))
    // What has a value was measured. What has none is unknown.
    for (let k = 0; k < size; k++) m.state[k] = rtts[k] === 65535 ? 0 : 1 | (1 << 3)
    return m
  }
}

/**
 * load reads the histories, at most `most` at a time, and calls back after each one. A region that does not
 * answer stays empty; their number is returned.
 */
export async function load(past: Past, field: string, read: (region: string) => Promise<History>, each: (done: number) => void, most = 4): Promise<number> {
  let next = 0
  let done = 0
  let failed = 0
  const work = async (): Promise<void> => {
    while (next < past.columns.length) {
      const region = past.columns[next++]!
      try {
        past.add(region, await read(region), field)
      } catch {
        failed++
      }
      each(++done)
    }
  }
  await Promise.all(Array.from({ length: Math.min(most, past.columns.length) }, work))
  return failed
}
