import { describe, expect, it } from 'vitest'
import { colour, runs, sgr, plain } from './cells'
import { pasted, send } from './keys'
import { maxScrollback, Screen } from './screen'

const encoder = new TextEncoder()
function shown(columns: number, lines: number, ...pieces: string[]): { text: string[]; s: Screen } {
  const s = new Screen(columns, lines)
  for (const p of pieces) s.write(encoder.encode(p))
  return { text: s.rows.map((r) => r.map((c) => c.ch).join('').trimEnd()), s }
}
const text = (columns: number, lines: number, ...pieces: string[]): string[] => shown(columns, lines, ...pieces).text

describe('Screen', () => {
  it.each([
    ['lines', ['a\r\nb'], ['a', 'b', '']],
    ['wrap', ['abcdefgh'], ['abcdef', 'gh', '']],
    ['no wrap before the next character', ['abcdef\rX'], ['Xbcdef', '', '']],
    ['scroll', ['1\r\n2\r\n3\r\n4'], ['2', '3', '4']],
    ['cursor', ['\x1b[2;3Hx\x1b[Ay\x1b[5Dz'], ['z  y', '  x', '']],
    ['backspace', ['abc\b\b\x1b[Kd'], ['ad', '', '']],
    ['erase above', ['1\r\n2\r\n3\x1b[2;1H\x1b[1J'], ['', '', '3']],
    ['erase all', ['1\r\n2\x1b[2J'], ['', '', '']],
    ['insert line', ['1\r\n2\r\n3\x1b[2;1H\x1b[L'], ['1', '', '2']],
    ['delete line', ['1\r\n2\r\n3\x1b[1;1H\x1b[M'], ['2', '3', '']],
    ['delete characters', ['abcdef\x1b[1;2H\x1b[2P'], ['adef', '', '']],
    ['insert characters', ['abc\x1b[1;2H\x1b[2@'], ['a  bc', '', '']],
    ['region', ['1\r\n2\r\n3\x1b[2;3r\x1b[3;1H\nx'], ['1', '3', 'x']],
    ['reverse index', ['1\r\n2\x1b[1;1H\x1bMx'], ['x', '1', '2']],
    ['tab', ['a\tb'], ['a    b', '', '']],
    ['line drawing', ['\x1b(0lqk\x1b(Bq'], ['┌─┐q', '', '']],
    ['unknown sequences', ['\x1b[?9999h\x1b]0;title\x07\x1b[>4;1ma\x1bP1$r\x1b\\b'], ['ab', '', '']],
    ['save and restore', ['a\x1b7\x1b[3;3Hx\x1b8b'], ['ab', '', '  x']],
    ['wide characters', ['日本'], ['日本', '', '']],
    ['alternate screen', ['a\x1b[?1049h\x1b[2J\x1b[Hb\x1b[?1049lc'], ['ac', '', '']],
  ])('%s', (_, pieces, want) => expect(text(6, 3, ...pieces)).toEqual(want))

  it('joins characters and sequences of two pieces', () => {
    const s = new Screen(4, 1)
    const b = encoder.encode('é\x1b[31mx')
    for (const byte of b) s.write(new Uint8Array([byte]))
    expect(s.rows[0]!.map((c) => c.ch).join('')).toBe('éx  ')
    expect(s.rows[0]![1]!.look.fg).toBe(1)
  })
  it('answers where the cursor is', () => {
    expect(shown(10, 5, '\x1b[3;4H\x1b[6n').s.answers).toBe('\x1b[3;4R')
  })
  it('retains a bounded number of lines', () => {
    const { s } = shown(4, 2, 'x\r\n'.repeat(3 * maxScrollback))
    expect(s.scrollback.length).toBe(maxScrollback)
  })
  it('does not retain lines of the alternate screen', () => {
    expect(shown(4, 2, '\x1b[?1049h', 'x\r\n'.repeat(9)).s.scrollback.length).toBe(0)
  })
  it('resizes', () => {
    const { s } = shown(4, 3, '1\r\n2\r\n3')
    s.resize(2, 2)
    expect(s.rows.map((r) => r.map((c) => c.ch).join(''))).toEqual(['2 ', '3 '])
    expect([s.scrollback.length, s.x, s.y]).toEqual([1, 1, 1])
    s.resize(5, 4)
    expect(s.rows.map((r) => r.length)).toEqual([5, 5, 5, 5])
  })
  it('survives any input', () => {
    let seed = 7
    const s = new Screen(20, 6)
    for (let i = 0; i < 20_000; i++) {
      seed = (seed * 1103515245 + 12345) & 0x7fffffff
      const c = seed >> 8
      s.write(encoder.encode(c % 5 === 0 ? '\x1b[' : c % 7 === 0 ? String(c % 40) + ';' : String.fromCodePoint(c % 0x180)))
      if (i % 997 === 0) s.resize(1 + (c % 40), 1 + (c % 11))
    }
    expect(s.rows.length).toBe(s.lines)
    expect(s.rows.every((r) => r.length === s.columns)).toBe(true)
    expect(s.y < s.lines && s.x < s.columns).toBe(true)
  })
})

describe('looks', () => {
  it('reads colours', () => {
    expect(sgr(plain, [1, 31, 44])).toMatchObject({ bold: true, fg: 1, bg: 4 })
    expect(colour(sgr(plain, [38, 5, 196]).fg)).toBe('rgb(255 0 0)')
    expect(colour(sgr(plain, [38, 2, 1, 2, 3]).fg)).toBe('rgb(1 2 3)')
    expect(colour(sgr(plain, [97]).fg)).toBe('var(--ansi-15)')
    expect(colour(-1)).toBe('')
  })
  it('makes few pieces', () => {
    const { s } = shown(6, 1, 'ab\x1b[31mcd')
    expect(runs(s.rows[0]!).map((r) => r.text)).toEqual(['ab', 'cd', '  '])
    expect(runs(s.rows[0]!, 1).map((r) => r.text)).toEqual(['a', 'b', 'cd', '  '])
  })
})

describe('keys', () => {
  const key = (k: string, more: object = {}) => ({ key: k, ctrlKey: false, altKey: false, metaKey: false, shiftKey: false, ...more })
  it.each([
    [key('a'), 'a'], [key('Enter'), '\r'], [key('c', { ctrlKey: true }), '\x03'], [key('ArrowUp'), '\x1b[A'], [key('ArrowUp', { ctrlKey: true }), '\x1b[1;5A'],
    [key('b', { altKey: true }), '\x1bb'], [key('Shift'), ''], [key('C', { ctrlKey: true, shiftKey: true }), ''], [key('Tab', { shiftKey: true }), '\x1b[Z'], [key('é'), 'é'],
  ])('%j', (e, want) => expect(send(e)).toBe(want))
  it('knows the other keys of editors', () => expect(send(key('ArrowUp'), true)).toBe('\x1bOA'))
  it('takes the escape out of what is pasted', () => {
    expect(pasted('a\nb\x1b[201~', true)).toBe('\x1b[200~a\rb[201~\x1b[201~')
  })
})
