import { describe, expect, it } from 'vitest'
import { choices, count, hasLabel, matches, noFilter } from './filter'
import { cell, region } from './model'
import { lines, parent, type TreeInput } from './tree'

const oslo = region({ name: 'oslo', labels: { tier: 'edge' }, servers: [{ id: 's1', leader: true, healthy: true }], nodesReady: 2 }, [
  { id: 'aa11', name: 'n1', state: 'NODE_STATE_READY', pool: 'default', labels: { disk: 'ssd' } },
  { id: 'bb22', name: 'n2', state: 'NODE_STATE_LOST', pool: 'gpu', labels: {} },
])
const bergen = region({ name: 'bergen', nodesReady: 3 })

const input = (more: Partial<TreeInput> = {}): TreeInput => ({
  globals: [{ name: 'g1', active: true }],
  regions: [oslo, bergen],
  openRegion: '',
  openNode: '',
  allocations: undefined,
  filter: noFilter,
  ...more,
})
const keys = (is: TreeInput) => lines(is).map((l) => l.key)

describe('lines', () => {
  it('opens a region and a node', () => {
    expect(keys(input())).toEqual(['g/g1', 'r/oslo', 'r/bergen'])
    expect(keys(input({ openRegion: 'oslo' }))).toEqual(['g/g1', 'r/oslo', 's/oslo/s1', 'c/aa11', 'c/bb22', 'r/bergen'])
    const open = input({ openRegion: 'oslo', openNode: 'aa11', allocations: [{ id: 'x', job: 'default/api', state: 'running' }] })
    expect(keys(open)).toContain('a/x')
    expect(lines(open)[parent(lines(open), keys(open).indexOf('a/x'))]!.key).toBe('c/aa11')
    expect(keys(input({ openRegion: 'oslo', openNode: 'aa11' }))).toContain('n/aa11')
  })

  it('says that the nodes of a region load', () => {
    expect(keys(input({ openRegion: 'bergen' }))).toContain('n/bergen')
  })

  it('shows only what the filter selects', () => {
    expect(keys(input({ filter: { ...noFilter, state: 'lost' }, openRegion: 'oslo' }))).toEqual(['r/oslo', 'c/bb22'])
    expect(keys(input({ filter: { ...noFilter, text: 'BERG' } }))).toEqual(['r/bergen'])
    expect(keys(input({ filter: { ...noFilter, label: 'tier=edge' } }))).toEqual(['r/oslo'])
  })
})

describe('filter', () => {
  it('reads labels', () => {
    expect(hasLabel({ a: 'b' }, 'a')).toBe(true)
    expect(hasLabel({ a: 'b' }, 'a=b')).toBe(true)
    expect(hasLabel({ a: 'b' }, 'a=')).toBe(false)
    expect(hasLabel({}, 'a')).toBe(false)
  })

  it('finds nodes by name and by the beginning of the id', () => {
    const n = cell({ id: 'aa11', name: 'Node-7' })
    expect(matches({ ...noFilter, text: 'node' }, n)).toBe(true)
    expect(matches({ ...noFilter, text: 'aa1' }, n)).toBe(true)
    expect(matches({ ...noFilter, text: 'a11' }, n)).toBe(false)
  })

  it('counts, and offers what exists', () => {
    expect(count(noFilter, [oslo, bergen])).toEqual({ matching: 5, all: 5 })
    expect(count({ ...noFilter, pool: 'gpu' }, [oslo, bergen])).toEqual({ matching: 1, all: 5 })
    expect(choices([oslo, bergen])).toEqual({ pools: ['default', 'gpu'], labels: ['disk', 'tier'] })
  })
})
