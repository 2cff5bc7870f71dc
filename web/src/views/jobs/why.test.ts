import { describe, expect, it } from 'vitest'
import { byTurn, progress, refusals, why, stage } from './why'

describe('why', () => {
  it('tells what was taken, what fits and what was refused apart', () => {
    expect(why({ taken: 2, terms: [{ name: 'near', value: 40, detail: 'p50 8 ms' }] })).toEqual({ place: 'here', taken: 2, text: 'near 40.0 (p50 8 ms)' })
    expect(why({ fits: 9, reason: 'REASON_LOWER_SCORE' })).toEqual({ place: 'fits', taken: 0, text: 'others score higher' })
    expect(why({ reason: 'REASON_RTT_TOO_HIGH', message: 'p99 80 ms' })).toEqual({ place: 'refused', taken: 0, text: 'p99 80 ms' })
    expect(why({ reason: 'REASON_NO_CAPACITY' }).text).toBe('no capacity')
  })
  it('counts refusals', () => {
    expect(refusals([{ reason: 'REASON_NO_CAPACITY' }, { taken: 1 }, { reason: 'REASON_RTT_TOO_HIGH' }, { reason: 'REASON_NO_CAPACITY' }])).toEqual([
      { text: 'no capacity', count: 2 }, { text: 'rtt too high', count: 1 },
    ])
  })
})

describe('progress', () => {
  it('counts the wanted version', () => {
    expect(progress({ running: 5, starting: 1, outdated: 4, pending: 2 })).toEqual({ done: 2, outdated: 4, all: 8 })
    expect(progress(undefined)).toEqual({ done: 0, outdated: 0, all: 0 })
  })
})

describe('the regions of a rollout', () => {
  it('come in the order of the job, and then by name', () => {
    expect(byTurn({ b: {}, a: {}, z: { turn: 1 }, y: { turn: 2 } }).map(([n]) => n)).toEqual(['z', 'y', 'a', 'b'])
  })

  it('are done, failed, updating or waiting', () => {
    expect([{ ended: '2026-01-01T00:00:00Z' }, { ended: '2026-01-01T00:00:00Z', failed: 'x' }, { outdated: 1 }, { outdated: 1, waits: 'for b' }, { desired: 2, healthy: 2 }].map(stage))
      .toEqual(['done', 'failed', 'updating', 'waiting', 'done'])
  })
})
