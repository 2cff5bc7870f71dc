import { describe, expect, it } from 'vitest'
import { byName, look, maxCells, region, share, trouble } from './model'

describe('region', () => {
  it('draws the counts while the nodes are unknown', () => {
    const r = region({ name: 'oslo', nodesReady: 5, nodesDraining: 1, nodesCordoned: 2, nodesLost: 2 })
    expect(r.known).toBe(false)
    expect(r.cells.map((c) => c.look)).toEqual(['ready', 'ready', 'ready', 'draining', 'cordoned', 'lost', 'lost'])
  })

  it('draws the counts until the nodes have arrived', () => {
    const r = region({ name: 'oslo', nodesReady: 3 }, [])
    expect(r.known).toBe(false)
    expect(r.cells).toHaveLength(3)
    expect(region({ name: 'empty' }, []).known).toBe(true)
  })

  it('never draws more nodes than there are', () => {
    const r = region({ name: 'oslo', nodesReady: 2, nodesDraining: 5, nodesCordoned: 9 })
    expect(r.cells).toHaveLength(2)
    expect(region({ name: 'big', nodesReady: 1e9 }).cells).toHaveLength(maxCells)
  })

  it('sorts nodes as people do', () => {
    const r = region({ name: 'oslo' }, [{ id: '1', name: 'n10' }, { id: '2', name: 'n2' }])
    expect(r.known).toBe(true)
    expect(r.cells.map((c) => c.name)).toEqual(['n2', 'n10'])
    expect(byName('a', 'b')).toBeLessThan(0)
  })

  it('has the shares of what is reserved', () => {
    const r = region({ name: 'oslo', capacity: { cpuMilli: '4000', memoryBytes: '100' }, allocated: { cpuMilli: '1000' } })
    expect(r.cpu).toBe(0.25)
    expect(r.memory).toBe(0)
    expect(share('1', undefined)).toBe(-1)
    expect(share('9', '3')).toBe(1)
  })
})

describe('look', () => {
  it('shows the most important state', () => {
    expect(look({ id: '', state: 'NODE_STATE_LOST', cordoned: true })).toBe('lost')
    expect(look({ id: '', state: 'NODE_STATE_READY', cordoned: true, draining: true })).toBe('draining')
    expect(look({ id: '', state: 'NODE_STATE_READY' })).toBe('ready')
    expect(trouble({ name: 'x', state: 'REGION_STATE_DISCONNECTED', cordoned: true })).toBe('disconnected')
    expect(trouble({ name: 'x', state: 'REGION_STATE_CONNECTED' })).toBe('')
  })
})
