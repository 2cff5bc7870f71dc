import { describe, expect, it } from 'vitest'
import { filterOf } from './list'

describe('filterOf', () => {
  it('is empty for one job and for the editor', () => {
    expect(filterOf({ job: 'default/api' })).toBeUndefined()
    expect(filterOf({ edit: '1' })).toBeUndefined()
  })
  it('has what the address says', () => {
    expect(filterOf({})).toEqual({ limit: 200 })
    expect(filterOf({ q: 'a', region: 'oslo', state: 'running', after: 'default/b' })).toEqual({
      limit: 200, search: 'a', region: 'oslo', states: ['JOB_STATE_RUNNING'], after: { namespace: 'default', name: 'b', region: '' },
    })
  })
})
