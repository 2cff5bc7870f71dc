import { describe, expect, it } from 'vitest'
import { LogBuffer, maxLineLength, search } from './logbuffer'

const bytes = (text: string) => new TextEncoder().encode(text)
const texts = (b: LogBuffer) => b.lines().map((l) => l.text)

describe('LogBuffer', () => {
  it('joins lines that arrive in pieces, apart for each stream', () => {
    const b = new LogBuffer()
    b.push(false, bytes('one\ntw'))
    b.push(true, bytes('bad'))
    b.push(false, bytes('o\n'))
    b.push(true, bytes(' news\n'))
    expect(b.lines().map((l) => [l.n, l.stderr, l.text])).toEqual([
      [1, false, 'one'],
      [2, false, 'two'],
      [3, true, 'bad news'],
    ])
  })

  it('joins a character whose bytes arrive in two pieces', () => {
    const b = new LogBuffer()
    const all = bytes('né\n')
    b.push(false, all.slice(0, 2))
    b.push(false, all.slice(2))
    expect(texts(b)).toEqual(['né'])
  })

  it('shows a line without an end, and adds it at the end', () => {
    const b = new LogBuffer()
    b.push(false, bytes('prompt> '))
    expect(texts(b)).toEqual(['prompt> '])
    b.end()
    expect(texts(b)).toEqual(['prompt> '])
    b.push(false, bytes('x\n'))
    expect(texts(b)).toEqual(['prompt> ', 'x'])
  })

  it('retains the latest lines and counts the others', () => {
    const b = new LogBuffer(10)
    for (let i = 1; i <= 1000; i++) b.push(i % 2 === 0, bytes(`line ${i}\n`))
    const lines = b.lines()
    expect(lines).toHaveLength(10)
    expect(lines[0]!.text).toBe('line 991')
    expect(lines[9]!.n).toBe(1000)
    expect(b.dropped).toBe(990)
  })

  it('bounds a burst in one piece and a line without an end', () => {
    const b = new LogBuffer(10)
    b.push(false, bytes('x\n'.repeat(100_000)))
    expect(b.lines()).toHaveLength(10)
    b.push(false, bytes('y'.repeat(30 * maxLineLength)))
    const lines = b.lines()
    expect(lines.length).toBeLessThanOrEqual(11)
    for (const line of lines) expect(line.text.length).toBeLessThanOrEqual(maxLineLength)
  })

  it('shows the last version of a line that is rewritten', () => {
    const b = new LogBuffer()
    b.push(false, bytes('10 %\r50 %\r100 %\r\nnext\n'))
    expect(texts(b)).toEqual(['100 %', 'next'])
  })

  it('finds lines in any case', () => {
    const b = new LogBuffer()
    b.push(false, bytes('Alpha\nbeta\nalphabet\n'))
    expect(search(b.lines(), 'ALPHA')).toEqual([0, 2])
    expect(search(b.lines(), '')).toEqual([])
  })
})
