// Why a group's instances are in some regions, and why not in others.

import type { RegionRollout, Verdict } from '../shared/objects'

export type Place = 'here' | 'fits' | 'refused'

/** Why is the reason of one region in a line. */
export interface Why {
  place: Place
  taken: number
  text: string
}

/** why sums up the verdict of a region or of a node. */
export function why(v: Verdict): Why {
  const taken = v.taken ?? 0
  const terms = (v.terms ?? []).map((t) => `${t.name} ${(t.value ?? 0).toFixed(1)}${t.detail ? ` (${t.detail})` : ''}`).join(', ')
  if (taken > 0) return { place: 'here', taken, text: v.message || terms }
  // A place that fits loses by its score only.
  const lower = !v.reason || v.reason === 'REASON_UNSPECIFIED' || v.reason === 'REASON_LOWER_SCORE'
  return { place: lower ? 'fits' : 'refused', taken, text: v.message || terms || (lower ? 'others score higher' : word(v.reason)) }
}

const word = (reason: string | undefined): string => (reason ?? '').replace('REASON_', '').toLowerCase().replace(/_/g, ' ')

/** Refusals counts the reasons of the places that were not taken, the most frequent first. */
export function refusals(list: Verdict[]): { text: string; count: number }[] {
  const out = new Map<string, number>()
  for (const v of list) {
    const w = why(v)
    if (w.place === 'refused') out.set(word(v.reason), (out.get(word(v.reason)) ?? 0) + 1)
  }
  return [...out].map(([text, count]) => ({ text, count })).sort((a, b) => b.count - a.count || (a.text < b.text ? -1 : 1))
}

/** Progress is how far a rollout of a group is. */
export interface Progress {
  done: number
  outdated: number
  /** Instances that have started or must start. */
  all: number
}

/** progress counts the instances that have the wanted version. */
export function progress(counts: { [state: string]: number | undefined } | undefined): Progress {
  const n = (k: string): number => counts?.[k] ?? 0
  const outdated = n('outdated')
  const all = n('pending') + n('starting') + n('running') + n('complete')
  return { outdated, all, done: Math.max(0, n('running') + n('starting') + n('complete') - outdated) }
}

/** byTurn returns the regions of a rollout in the order of the job, and then by name. */
export function byTurn(regions: Record<string, RegionRollout>): [string, RegionRollout][] {
  return Object.entries(regions).sort(([a, x], [b, y]) => (x.turn || Infinity) - (y.turn || Infinity) || (a < b ? -1 : 1))
}

/** stage says how far a rollout is in a region. */
export function stage(r: RegionRollout): 'done' | 'failed' | 'updating' | 'waiting' {
  if (r.failed) return 'failed'
  if (r.ended) return 'done'
  if (r.waits) return 'waiting'
  return (r.outdated ?? 0) > 0 || (r.healthy ?? 0) < (r.desired ?? 0) ? 'updating' : 'done'
}
