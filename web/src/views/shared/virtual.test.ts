import { describe, expect, it } from 'vitest'
import { atEnd, reveal, span } from './virtual'

describe('span', () => {
  it('has the visible lines and some more', () => {
    expect(span(0, 100, 20, 1000, 2)).toEqual({ from: 0, to: 7 })
    expect(span(1000, 100, 20, 1000, 2)).toEqual({ from: 48, to: 57 })
    expect(span(19_950, 100, 20, 1000, 2)).toEqual({ from: 995, to: 1000 })
  })

  it('survives an empty list and a list that became short', () => {
    expect(span(0, 100, 20, 0)).toEqual({ from: 0, to: 0 })
    expect(span(9000, 100, 20, 3)).toEqual({ from: 3, to: 3 })
  })
})

describe('reveal', () => {
  it('moves only if the line is not visible', () => {
    expect(reveal(3, 0, 100, 20)).toBe(0)
    expect(reveal(5, 0, 100, 20)).toBe(20)
    expect(reveal(0, 50, 100, 20)).toBe(0)
  })
})

describe('atEnd', () => {
  it('allows a part of a line', () => {
    expect(atEnd(900, 100, 1000, 20)).toBe(true)
    expect(atEnd(885, 100, 1000, 20)).toBe(true)
    expect(atEnd(800, 100, 1000, 20)).toBe(false)
  })
})
