import { expect, it } from 'vitest'
import { parse, shape, text, word } from './states'

it('names states', () => {
  expect(word('JOB_STATE_RUNNING')).toBe('running')
  expect(word('ALLOC_STATE_FAILED')).toBe('failed')
  expect(word(undefined)).toBe('unknown')
  expect(shape('JOB_STATE_FAILED')).toBe('lost')
  expect(shape('JOB_STATE_NEW')).toBe('defined')
})

it('reads the address of a job', () => {
  for (const t of ['default/api', 'default/api@oslo']) expect(text(parse(t)!)).toBe(t)
  expect(parse('default/api')).toEqual({ namespace: 'default', name: 'api', region: '' })
  for (const t of ['', 'api', 'a/b/c', '/b', 'a/']) expect(parse(t)).toBeUndefined()
})
