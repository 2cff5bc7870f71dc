import { num, percent, ratio } from './format'
import type { OverviewRegion } from './types'
import type { Shape } from './ui/Mark.svelte'

/** Standing is the state of a region for people: one word with a shape. The worst one counts. */
export interface Standing {
  shape: Shape
  word: string
  /** 0 is the worst. For sorting. */
  rank: number
}

const standings: Record<string, Standing> = {
  lost: { shape: 'lost', word: 'lost', rank: 0 },
  disconnected: { shape: 'disconnected', word: 'disconnected', rank: 1 },
  island: { shape: 'island', word: 'island', rank: 2 },
  banned: { shape: 'banned', word: 'banned', rank: 3 },
  draining: { shape: 'draining', word: 'draining', rank: 4 },
  cordoned: { shape: 'cordoned', word: 'cordoned', rank: 5 },
  defined: { shape: 'defined', word: 'never connected', rank: 6 },
  ok: { shape: 'ok', word: 'connected', rank: 7 },
}

/** standing returns the state that matters most. */
export function standing(r: OverviewRegion): Standing {
  if (r.state === 'REGION_STATE_LOST' || r.lost) return standings.lost!
  if (r.banned) return standings.banned!
  if (r.island || r.state === 'REGION_STATE_ISLAND') return standings.island!
  if (r.state === 'REGION_STATE_DISCONNECTED') return standings.disconnected!
  if (r.draining) return standings.draining!
  if (r.cordoned) return standings.cordoned!
  if (r.state === 'REGION_STATE_DEFINED') return standings.defined!
  return standings.ok!
}

/** standingOrder is the legend: every state that a map can show. */
export const standingOrder: Standing[] = ['ok', 'cordoned', 'draining', 'island', 'disconnected', 'lost', 'banned', 'defined'].map((k) => standings[k]!)

/** also lists the further states of a region besides its standing. */
export function also(r: OverviewRegion): string[] {
  const out: string[] = []
  const s = standing(r).word
  if (r.draining && s !== 'draining') out.push('draining')
  if (r.cordoned && s !== 'cordoned') out.push('cordoned')
  if (r.banned && s !== 'banned') out.push('banned')
  return out
}

/** reserved is the share of CPU or memory that allocations reserve: the fuller one. */
export function reserved(r: OverviewRegion): number {
  return Math.max(ratio(r.allocated?.cpuMilli, r.capacity?.cpuMilli), ratio(r.allocated?.memoryBytes, r.capacity?.memoryBytes))
}

export const cpuReserved = (r: OverviewRegion): number => ratio(r.allocated?.cpuMilli, r.capacity?.cpuMilli)
export const memoryReserved = (r: OverviewRegion): number => ratio(r.allocated?.memoryBytes, r.capacity?.memoryBytes)

/** nodes counts all nodes of a region that it still has. */
export const nodesOf = (r: OverviewRegion): number => num(r.nodesReady) + num(r.nodesLost) + num(r.nodesDraining)

/** running counts running allocations. */
export const running = (r: OverviewRegion): number => r.allocations?.running ?? r.allocations?.ALLOCATION_STATE_RUNNING ?? 0

/** summary describes a region in one line, for screen readers and tooltips. */
export function summary(r: OverviewRegion): string {
  const parts = [r.name, standing(r).word, ...also(r)]
  if (num(r.nodesReady) || num(r.nodesLost)) parts.push(`${num(r.nodesReady)} nodes ready${num(r.nodesLost) ? `, ${num(r.nodesLost)} lost` : ''}`)
  if (r.capacity) parts.push(`${percent(cpuReserved(r))} CPU reserved`)
  if (r.message) parts.push(r.message)
  return parts.join(', ')
}
