import { describe, expect, it } from 'vitest'
import { EventBuffer, gapText } from './buffer'

const subjects = (b: EventBuffer) => b.visible().map((r) => (r.gap ? 'gap' : r.event.subject))

describe('EventBuffer', () => {
  it('shows the newest event first and continues after it', () => {
    const b = new EventBuffer()
    b.push({ token: 'a-1', subject: 'x', number: '7' })
    b.push({ token: 'a-2', subject: 'y', number: '0' })
    expect(subjects(b)).toEqual(['y', 'x'])
    expect(b.token).toBe('a-2')
    expect(b.number).toBe('7')
  })

  it('shows a gap between events, but none before the first event', () => {
    const b = new EventBuffer()
    b.push({ token: 'a-0', reset: true })
    b.push({ token: 'a-1', subject: 'x' })
    b.push({ token: 'b-9', reset: true, missed: '3' })
    b.push({ token: 'b-10', subject: 'y' })
    expect(subjects(b)).toEqual(['y', 'gap', 'x'])
    expect(gapText({ missed: '3' })).toContain('3 durable events')
    expect(gapText({ missed: '1' })).toContain('1 durable event ')
    expect(gapText({})).toContain('lost')
  })

  it('is bounded', () => {
    const b = new EventBuffer(5)
    for (let i = 0; i < 100; i++) b.push({ subject: String(i) })
    expect(subjects(b)).toEqual(['99', '98', '97', '96', '95'])
    expect(b.dropped).toBe(95)
  })

  it('stands still during a pause and loses nothing of it', () => {
    const b = new EventBuffer(3)
    b.push({ subject: 'a' })
    b.push({ subject: 'b' })
    b.pause()
    for (let i = 0; i < 10; i++) b.push({ token: `t-${i}`, subject: String(i) })
    expect(subjects(b)).toEqual(['b', 'a'])
    expect(b.waiting()).toBe(10)
    expect(b.token).toBe('t-9')
    b.resume()
    expect(subjects(b)).toEqual(['9', '8', '7'])
    expect(b.waiting()).toBe(0)
  })

  it('clears the list and keeps its place in the stream', () => {
    const b = new EventBuffer()
    b.push({ token: 'a-1', subject: 'x' })
    b.pause()
    b.clear()
    expect(subjects(b)).toEqual([])
    b.push({ token: 'a-2', subject: 'y' })
    expect(b.waiting()).toBe(1)
    b.resume()
    expect(subjects(b)).toEqual(['y'])
  })
})
