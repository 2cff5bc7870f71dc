import { describe, expect, it } from 'vitest'
import { foldCarriageReturns, plainText, spans } from './ansi'

describe('spans', () => {
  it('returns plain text as one piece', () => {
    expect(spans('hello')).toEqual([{ text: 'hello', look: '' }])
    expect(spans('')).toEqual([])
  })

  it('reads colours and ends them', () => {
    expect(spans('a \x1b[31mred\x1b[0m b')).toEqual([
      { text: 'a ', look: '' },
      { text: 'red', look: 'ansi-1' },
      { text: ' b', look: '' },
    ])
    expect(spans('\x1b[1;92mok\x1b[22m x\x1b[39m y')).toEqual([
      { text: 'ok', look: 'ansi-10 ansi-bold' },
      { text: ' x', look: 'ansi-10' },
      { text: ' y', look: '' },
    ])
  })

  it('does not mistake the parts of a long colour for other codes', () => {
    expect(spans('\x1b[38;5;4mx')).toEqual([{ text: 'x', look: 'ansi-4' }])
    expect(spans('\x1b[38;2;1;4;7mx')).toEqual([{ text: 'x', look: '' }])
  })

  it('removes everything that is no text', () => {
    expect(plainText('\x1b]0;title\x07a\x1b[2Kb\x1b[?25lc\x07\x00d')).toBe('abcd')
    expect(plainText('cut \x1b[3')).toBe('cut [3')
  })
})

describe('foldCarriageReturns', () => {
  it('keeps what follows the last return', () => {
    expect(foldCarriageReturns('a\rb\rc')).toBe('c')
    expect(foldCarriageReturns('abc')).toBe('abc')
  })
})
