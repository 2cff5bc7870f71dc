import type { Duration, Int64, Timestamp } from './types'

export const num = (v: Int64 | undefined): number => (v === undefined ? 0 : Number(v))

/** seconds reads a duration such as "1.5s". */
export function seconds(d: Duration | undefined): number {
  if (!d) return 0
  const v = Number.parseFloat(d)
  return Number.isFinite(v) ? v : 0
}

/** time reads a time, in milliseconds since 1970. NaN if it is unset. */
export function time(t: Timestamp | undefined): number {
  return t ? Date.parse(t) : NaN
}

/** millis writes a round trip: "0.4 ms", "12 ms", "1.2 s". */
export function millis(ms: number): string {
  if (!Number.isFinite(ms)) return '–'
  if (ms < 10) return `${ms.toFixed(1)} ms`
  if (ms < 1000) return `${Math.round(ms)} ms`
  return `${(ms / 1000).toFixed(1)} s`
}

/** percent writes a share: "0 %", "0.5 %", "37 %". */
export function percent(share: number): string {
  if (!Number.isFinite(share)) return '–'
  const p = share * 100
  return p > 0 && p < 10 && Math.abs(p - Math.round(p)) > 0.05 ? `${p.toFixed(1)} %` : `${Math.round(p)} %`
}

/** bytes writes a size: "512 MiB". */
export function bytes(n: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB']
  let i = 0
  while (n >= 1024 && i < units.length - 1) {
    n /= 1024
    i++
  }
  return `${n >= 100 || i === 0 || Number.isInteger(n) ? Math.round(n) : n.toFixed(1)} ${units[i]}`
}

/** cores writes thousandths of a core: "1.5", "240". */
export function cores(milli: number): string {
  const c = milli / 1000
  return c >= 100 || Number.isInteger(c) ? count(Math.round(c)) : c.toFixed(1)
}

/** count writes a number with thin spaces between thousands. */
export function count(n: number): string {
  return Math.round(n).toString().replace(/\B(?=(\d{3})+(?!\d))/g, '\u202f')
}

/** countdown writes the time that is left: "4:10", "1:02:03". Past: "0:00". */
export function countdown(ms: number): string {
  const s = Math.max(0, Math.ceil(ms / 1000))
  const two = (n: number): string => n.toString().padStart(2, '0')
  const h = Math.floor(s / 3600)
  const m = Math.floor((s % 3600) / 60)
  return h > 0 ? `${h}:${two(m)}:${two(s % 60)}` : `${m}:${two(s % 60)}`
}

/** age writes how long ago: "3 s", "5 min", "2 h", "4 d". */
export function age(ms: number): string {
  const s = Math.max(0, Math.round(ms / 1000))
  if (s < 60) return `${s} s`
  if (s < 3600) return `${Math.round(s / 60)} min`
  if (s < 48 * 3600) return `${Math.round(s / 3600)} h`
  return `${Math.round(s / 86400)} d`
}

/** ratio divides, and is 0 where nothing is offered. */
export function ratio(a: Int64 | undefined, b: Int64 | undefined): number {
  const d = num(b)
  return d > 0 ? num(a) / d : 0
}
