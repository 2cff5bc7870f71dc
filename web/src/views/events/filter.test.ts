import { describe, expect, it } from 'vitest'
import { fromParams, matches, noFilter, request, target, toParams, tone } from './filter'

describe('filter', () => {
  it('survives the address of the page', () => {
    const f = { types: ['job.', 'region.lost'], subject: 'default/api', region: 'jakarta', durable: true, instances: true, text: 'a b' }
    expect(fromParams(toParams(f))).toEqual(f)
    expect(fromParams(toParams(noFilter))).toEqual(noFilter)
    expect(fromParams({})).toEqual(noFilter)
  })

  it('asks the server for what the server can select', () => {
    const q = request({ ...noFilter, types: ['job.'], durable: true, text: 'x' }, 'a-5')
    expect(q).toMatchObject({ token: 'a-5', since: '', durable: true, types: ['job.'] })
    expect(request(noFilter, '').since).toBe('3600s')
  })

  it('needs no new stream for a text', () => {
    expect(request({ ...noFilter, text: 'x' }, '')).toEqual(request(noFilter, ''))
  })

  it('finds a text in any field and in any case', () => {
    const e = { type: 'node.lost', subject: 'N1', message: 'silent for 40 s' }
    expect(matches({ ...noFilter, text: 'n1' }, e)).toBe(true)
    expect(matches({ ...noFilter, text: 'SILENT' }, e)).toBe(true)
    expect(matches({ ...noFilter, text: 'api' }, e)).toBe(false)
  })
})

describe('target', () => {
  it('finds the object of an event', () => {
    expect(target({ type: 'job.submitted', subject: 'default/api' })).toEqual({
      kind: 'job',
      namespace: 'default',
      name: 'api',
      region: undefined,
    })
    expect(target({ type: 'instance.failed', subject: 'pay/db@oslo/web/3' })).toEqual({
      kind: 'job',
      namespace: 'pay',
      name: 'db',
      region: 'oslo',
    })
    expect(target({ type: 'region.lost', subject: 'oslo' })).toEqual({ kind: 'region', name: 'oslo' })
    expect(target({ type: 'node.lost', subject: 'n1', region: 'oslo' })).toEqual({
      kind: 'node',
      name: 'n1',
      region: 'oslo',
    })
  })

  it('finds the node of a region', () => {
    expect(target({ type: 'node.cordoned', subject: 'oslo/n1' })).toEqual({
      kind: 'node',
      name: 'n1',
      region: 'oslo',
    })
    expect(target({ type: 'node.lost', subject: 'oslo', region: 'oslo' })).toEqual({
      kind: 'region',
      name: 'oslo',
    })
  })

  it('returns nothing for what has no view', () => {
    expect(target({ type: 'node.lost', subject: 'n1' })).toBeUndefined()
    expect(target({ type: 'store.filling', subject: 'store' })).toBeUndefined()
    expect(target({ type: 'job.submitted', subject: '<script>' })).toBeUndefined()
    expect(target({})).toBeUndefined()
  })
})

describe('tone', () => {
  it('marks what an operator must see', () => {
    expect(tone('region.lost')).toBe('bad')
    expect(tone('slot.moved')).toBe('warn')
    expect(tone('instance.running')).toBe('good')
    expect(tone('job.submitted')).toBe('plain')
  })
})
