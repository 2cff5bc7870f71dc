import type { OverviewRow } from './types'

/** Values of an entry of the matrix: see OverviewRow in proto/nusa/v1/overview.proto. */
export const UNKNOWN_RTT = 65535
export const MOST_RTT = 65534
export const UNKNOWN_LOSS = 255

export const EDGE_UNKNOWN = 0
export const EDGE_OK = 1
export const EDGE_STALE = 2
export const EDGE_UNREACHABLE = 3

export const SOURCE_MEASURED = 1
export const SOURCE_PREDICTED = 2
export const SOURCE_ESTIMATED = 3

export type Percentile = 50 | 90 | 99

/** Kind is how a page shows an entry. The most important property of an entry decides. */
export type Kind = 'none' | 'measured' | 'predicted' | 'estimated' | 'stale' | 'unreachable' | 'doubtful'

export const edgeState = (s: number): number => s & 7
export const edgeSource = (s: number): number => (s >> 3) & 7
export const edgeDoubtful = (s: number): boolean => (s & 64) !== 0
export const edgeRelay = (s: number): boolean => (s & 128) !== 0

/** kindOf returns how an entry with this state byte is shown. */
export function kindOf(s: number): Kind {
  switch (edgeState(s)) {
    case EDGE_UNREACHABLE:
      return 'unreachable'
    case EDGE_STALE:
      return 'stale'
  }
  if (edgeDoubtful(s)) return 'doubtful'
  switch (edgeSource(s)) {
    case SOURCE_MEASURED:
      return 'measured'
    case SOURCE_PREDICTED:
      return 'predicted'
    case SOURCE_ESTIMATED:
      return 'estimated'
  }
  return 'none'
}

/** decodeBytes decodes base64. */
export function decodeBytes(text: string): Uint8Array {
  const raw = atob(text)
  const out = new Uint8Array(raw.length)
  for (let i = 0; i < raw.length; i++) out[i] = raw.charCodeAt(i)
  return out
}

/** encodeBytes encodes base64. */
export function encodeBytes(bytes: Uint8Array): string {
  let raw = ''
  for (const b of bytes) raw += String.fromCharCode(b)
  return btoa(raw)
}

/** Matrix is the directed latency matrix. Entry (from, to) is at from * size + to. */
export class Matrix {
  readonly size: number
  readonly p50: Uint16Array
  readonly p90: Uint16Array
  readonly p99: Uint16Array
  readonly loss: Uint8Array
  readonly state: Uint8Array
  private positions: Map<string, number>

  constructor(readonly columns: string[]) {
    const n = (this.size = columns.length)
    this.p50 = new Uint16Array(n * n).fill(UNKNOWN_RTT)
    this.p90 = new Uint16Array(n * n).fill(UNKNOWN_RTT)
    this.p99 = new Uint16Array(n * n).fill(UNKNOWN_RTT)
    this.loss = new Uint8Array(n * n).fill(UNKNOWN_LOSS)
    this.state = new Uint8Array(n * n)
    this.positions = new Map(columns.map((name, i) => [name, i]))
  }

  /** position returns the position of a region, or -1. */
  position(region: string): number {
    return this.positions.get(region) ?? -1
  }

  /** rtts returns the round trips of a percentile, in steps of 0.1 ms. */
  rtts(p: Percentile): Uint16Array {
    return p === 50 ? this.p50 : p === 90 ? this.p90 : this.p99
  }

  /** rtt returns a round trip in milliseconds, or NaN if it is unknown. */
  rtt(p: Percentile, from: number, to: number): number {
    const v = this.rtts(p)[from * this.size + to]
    return v === undefined || v === UNKNOWN_RTT ? NaN : v / 10
  }

  /** setRow stores a row. Entries beyond the columns, and missing entries, are ignored. */
  setRow(row: OverviewRow): void {
    const n = this.size
    const from = row.from ?? 0
    if (from >= n) return
    const base = from * n
    const to = row.to?.length ? row.to : undefined
    const wide = (into: Uint16Array, text: string | undefined): void => {
      if (!text) return
      const b = decodeBytes(text)
      const count = Math.min(b.length >> 1, to ? to.length : n)
      for (let i = 0; i < count; i++) {
        const at = to ? to[i]! : i
        if (at < n) into[base + at] = b[2 * i]! | (b[2 * i + 1]! << 8)
      }
    }
    const narrow = (into: Uint8Array, text: string | undefined): void => {
      if (!text) return
      const b = decodeBytes(text)
      const count = Math.min(b.length, to ? to.length : n)
      for (let i = 0; i < count; i++) {
        const at = to ? to[i]! : i
        if (at < n) into[base + at] = b[i]!
      }
    }
    wide(this.p50, row.p50)
    wide(this.p90, row.p90)
    wide(this.p99, row.p99)
    narrow(this.loss, row.loss)
    narrow(this.state, row.state)
  }
}
