import { describe, expect, it } from 'vitest'
import { active, beside, counts, drawing, layers, size } from './graph'
import type { Step } from './runs'

const diamond: Step[] = [{ name: 'a' }, { name: 'b', after: ['a'] }, { name: 'c', after: ['a'] }, { name: 'd', after: ['b', 'c'] }, { name: 'end', onExit: true }]

describe('layers', () => {
  it('puts a step behind all on which it depends, and on_exit last', () => {
    expect(layers(diamond)).toEqual([0, 1, 1, 2, 3])
    expect(layers([{ name: 'only', onExit: true }])).toEqual([0])
  })
})

describe('drawing', () => {
  it('draws a diamond from left to right', () => {
    const d = drawing(diamond)
    expect(d.nodes.map((n) => [n.label, n.column, n.row])).toEqual([['a', 0, 0], ['b', 1, 0], ['c', 1, 1], ['d', 2, 0], ['end', 3, 0]])
    expect(d.edges).toEqual([{ from: 0, to: 1 }, { from: 0, to: 2 }, { from: 1, to: 3 }, { from: 2, to: 3 }])
    expect(d.nodes[0]!.y).toBe((d.nodes[1]!.y + d.nodes[2]!.y) / 2)
  })

  it('leads a line around the nodes between its ends', () => {
    const d = drawing([{ name: 'a' }, { name: 'b', after: ['a'] }, { name: 'c', after: ['b', 'a'] }])
    const b = d.nodes[1]!
    // The passage of a is a horizontal line as wide as b, above or below it.
    const y = [...d.lines.matchAll(new RegExp(`M${b.x} ([\\d.]+)h${size.width}`, 'g'))].map((m) => Number(m[1]))
    expect(y).toHaveLength(1)
    expect(y[0]! < b.y || y[0]! > b.y + size.height).toBe(true)
  })

  it('does not depend on the states, so nothing moves', () => {
    const place = (steps: Step[]): number[][] => drawing(steps).nodes.map((n) => [n.x, n.y])
    expect(place(diamond.map((s) => ({ ...s, state: 'STEP_STATE_FAILED' })))).toEqual(place(diamond))
  })

  it('folds steps that have the same neighbours', () => {
    const many = Array.from({ length: 7 }, (_, i) => ({ name: `w${i}`, after: ['a'] }))
    const d = drawing([{ name: 'a' }, ...many, { name: 'z', after: many.map((m) => m.name) }])
    expect(d.nodes.map((n) => n.label)).toEqual(['a', '7 steps', 'z'])
    expect(d.edges).toEqual([{ from: 0, to: 1 }, { from: 1, to: 2 }])
  })

  it('has few nodes however many steps there are, and each step once', () => {
    const chain = Array.from({ length: 10_000 }, (_, i) => ({ name: `s${i}`, after: i ? [`s${i - 1}`] : [] }))
    const ladder = Array.from({ length: 10_000 }, (_, i) => ({ name: `s${i}`, after: i < 100 ? [] : [`s${i - 100}`] }))
    for (const steps of [chain, ladder]) {
      const d = drawing(steps)
      expect(d.nodes.length).toBeLessThanOrEqual(120)
      expect(d.nodes.reduce((n, m) => n + m.steps.length, 0)).toBe(10_000)
      for (const e of d.edges) expect(d.nodes[e.from]!.column).toBeLessThan(d.nodes[e.to]!.column)
    }
  })
})

describe('counts', () => {
  it('names first what stands for all', () => {
    expect(counts([{ name: 'a', state: 'STEP_STATE_SUCCEEDED' }, { name: 'b', state: 'STEP_STATE_TIMED_OUT' }, { name: 'c', state: 'STEP_STATE_SUCCEEDED' }]))
      .toEqual([{ state: 'timed out', count: 1 }, { state: 'succeeded', count: 2 }])
  })
})

describe('active', () => {
  it('is what needs a look', () => {
    const state = (...states: string[]): Step[] => diamond.map((s, i) => ({ ...s, state: `STEP_STATE_${states[i] ?? 'PENDING'}` }))
    expect(active(drawing(state('SUCCEEDED', 'SUCCEEDED', 'FAILED')))?.id).toBe('c')
    expect(active(drawing(state('SUCCEEDED')))?.id).toBe('b')
    expect(active(drawing([]))).toBeUndefined()
  })
})

describe('beside', () => {
  it('follows the lines, and the column', () => {
    const d = drawing(diamond)
    expect(beside(d, 0, 'ArrowRight')).toBe(1)
    expect(beside(d, 1, 'ArrowDown')).toBe(2)
    expect(beside(d, 2, 'ArrowDown')).toBe(2)
    expect(beside(d, 3, 'ArrowLeft')).toBe(1)
    expect(beside(d, 3, 'ArrowRight')).toBe(4)
    expect(beside(d, 4, 'ArrowLeft')).toBe(3)
  })
})
