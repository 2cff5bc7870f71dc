import { expect, it } from 'vitest'
import { encodeBytes } from './matrix'
import { Lines } from './ndjson'
import { Backoff } from './backoff'
import { World, jobKey } from './world'

it('applies changes and says which sections changed', () => {
  const w = new World()
  expect(w.apply({ regions: [{ name: 'a' }, { name: 'b' }], columns: ['a', 'b'] })).toMatchObject({ regions: true, matrix: true, due: false })
  expect(w.apply({ regions: [{ name: 'b', cordoned: true }], regionsRemoved: ['a'] })).toMatchObject({ regions: true, matrix: false })
  expect([...w.regions.values()]).toEqual([{ name: 'b', cordoned: true }])
  w.apply({ jobs: [{ job: { namespace: 'n', name: 'j' } }, { job: { namespace: 'n', name: 'j', region: 'a' } }] })
  w.apply({ jobsRemoved: [{ namespace: 'n', name: 'j' }] })
  expect([...w.jobs.keys()]).toEqual(['n/j@a'])
  expect(jobKey({ name: 'x' })).toBe('/x')
  expect(w.apply({ synced: true })).toEqual({ head: false, regions: false, matrix: false, nodes: false, jobs: false, due: false, errors: false })
})

// A day has 86,400 seconds: an update each second must not make the world grow.
it('does not grow in a day', () => {
  const w = new World()
  const names = Array.from({ length: 50 }, (_, i) => `r${i}`)
  w.apply({ regions: names.map((name) => ({ name })), columns: names })
  const row = encodeBytes(new Uint8Array([1, 0]))
  const text = (i: number): string => JSON.stringify({ regions: [{ name: names[i % 50], message: `${i}` }], rows: [{ from: i % 50, to: [(i * 7) % 50], p50: row }], due: { due: [{ subject: `${i}` }] }, jobs: [{ job: { namespace: 'd', name: `j${i % 20}` } }], nodes: [{ id: `n${i}` }], nodesRemoved: [`n${i - 10}`] })
  const run = (from: number, to: number): void => {
    for (let i = from; i < to; i++) w.apply(JSON.parse(text(i)))
  }
  const heap = (): number => {
    globalThis.gc?.()
    return process.memoryUsage().heapUsed
  }
  run(0, 5_000)
  const before = heap()
  run(5_000, 86_400)
  const grown = heap() - before
  expect([w.regions.size, w.jobs.size, w.nodes.size, w.due.length, w.matrix.p50.length]).toEqual([50, 20, 10, 1, 2500])
  expect(globalThis.gc, 'run with --expose-gc').toBeTypeOf('function')
  expect(grown).toBeLessThan(1 << 20)
}, 60_000)

it('cuts a stream into lines, wherever the chunks end', () => {
  const bytes = new TextEncoder().encode('{"a":"é"}\n{"b":2}\n\n{"c"')
  for (let size = 1; size <= bytes.length; size++) {
    const l = new Lines()
    const out: string[] = []
    for (let i = 0; i < bytes.length; i += size) out.push(...l.push(bytes.subarray(i, i + size)))
    expect(out).toEqual(['{"a":"é"}', '{"b":2}', ''])
  }
  const short = new Lines(10)
  expect(() => short.push(new TextEncoder().encode('x'.repeat(11)))).toThrow(/longer/)
})

it('waits longer after each failure, up to a bound', () => {
  const b = new Backoff(500, 15_000, () => 1)
  expect([b.next(), b.next(), b.next()]).toEqual([500, 1000, 2000])
  for (let i = 0; i < 100; i++) expect(b.next()).toBeLessThanOrEqual(15_000)
  b.reset()
  expect(b.next()).toBe(500)
})
