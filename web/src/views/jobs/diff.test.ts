import { describe, expect, it } from 'vitest'
import { counts, parts, textDiff } from './diff'

describe('parts', () => {
  it('sorts changes by group', () => {
    const diff = [
      { field: 'priority', old: '50', new: '60' },
      { field: 'groups.web.count', old: '1', new: '2' },
      { field: 'groups.web.tasks.main.env.A', new: 'x' },
      { field: 'groups.cache', old: '{…}' },
    ]
    expect(parts(diff).map((p) => [p.title, p.changes.map((c) => `${c.kind} ${c.field}`)])).toEqual([
      ['job', ['changed priority']],
      ['group web', ['changed count', 'added tasks.main.env.A']],
      ['group cache', ['removed (the whole group)']],
    ])
    expect(counts(diff)).toEqual({ added: 1, removed: 1, changed: 2 })
    expect(parts([])).toEqual([])
  })

  it('compares longer texts by line', () => {
    const part = parts([{ field: 'groups.a.tasks.t.templates[0].text', old: 'a\nb\nc', new: 'a\nc\nd' }])[0]!
    expect(part.changes[0]!.lines!.map((l) => `${l.kind} ${l.text}`)).toEqual(['same a', 'removed b', 'same c', 'added d'])
  })
})

describe('textDiff', () => {
  it('can be applied in both directions', () => {
    let seed = 7
    const random = (n: number) => (seed = (seed * 1103515245 + 12345) % 2147483648) % n
    for (let round = 0; round < 200; round++) {
      const make = () => Array.from({ length: random(12) }, () => 'abcd'[random(4)]!).join('\n')
      const [a, b] = [make(), make()]
      const d = textDiff(a, b)
      const side = (kind: string) => d.filter((l) => l.kind === 'same' || l.kind === kind).map((l) => l.text)
      expect(side('removed').join('\n')).toBe(a)
      expect(side('added').join('\n')).toBe(b)
    }
  })

  it('bounds its work', () => {
    const a = Array.from({ length: 3000 }, (_, i) => `a${i}`).join('\n')
    const b = Array.from({ length: 3000 }, (_, i) => `b${i}`).join('\n')
    expect(textDiff(a, b)).toHaveLength(6000)
  })
})
