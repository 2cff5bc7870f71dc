import { describe, expect, it } from 'vitest'
import { missing, moment, page, word } from './schedule'

describe('moment', () => {
  it('is in the zone of the schedule', () => {
    const at = Date.parse('2026-11-28T01:30:00Z')
    expect(moment(at, 'Europe/Berlin')).toMatch(/^Sat,? 28 Nov, 02:30 CET$/)
    expect(moment(at, '')).toMatch(/^Sat,? 28 Nov, 01:30 UTC$/)
    expect(moment(at, 'No/Such')).toMatch(/^Sat,? 28 Nov, 01:30 UTC$/)
  })
})

describe('missing', () => {
  it('says what did not run, and why', () => {
    expect(missing({ job: 'default/a' })).toBe('')
    expect(missing({ job: 'default/a', skipped: '2', skipReason: 'run a.1 has not ended', missed: '1', backfill: 4 }))
      .toBe('2 skipped, the last one because run a.1 has not ended; 1 missed, more than catch_up late; 4 left of the backfill')
  })
})

describe('page', () => {
  it('of a run is that of its job, or of its workflow', () => {
    expect(page({ job: 'web/a' }, 'web', 'a.1')).toEqual(['jobs', { job: 'web/a.1' }])
    expect(page({ job: 'web/a', workflow: true }, 'web', 'a.1')).toEqual(['workflows', { run: 'web/a.1' }])
  })
})

describe('word', () => {
  it('reads states and triggers', () => expect([word('JOB_RUN_STATE_FAILED'), word('JOB_RUN_TRIGGER_MANUAL'), word(undefined)]).toEqual(['failed', 'manual', 'unknown']))
})
