import { describe, expect, it } from 'vitest'
import { cellAt, cellRect, contains, detail, grid, layout, neighbour, nextCell, overlaps, treemap, visibleCells, weight, boxAt } from './layout'

const world = { x: 0, y: 0, w: 1200, h: 700 }
const area = (r: { w: number; h: number }) => r.w * r.h

describe('treemap', () => {
  it('covers the rectangle in proportion, without overlaps', () => {
    const weights = [9, 1, 4, 4, 2, 16, 1, 1]
    const rects = treemap(weights, world)
    const all = weights.reduce((a, b) => a + b)
    rects.forEach((r, i) => {
      expect(area(r)).toBeCloseTo((weights[i]! / all) * area(world), 3)
      expect(r.x).toBeGreaterThanOrEqual(-1e-6)
      expect(r.x + r.w).toBeLessThanOrEqual(world.w + 1e-6)
      expect(r.y + r.h).toBeLessThanOrEqual(world.h + 1e-6)
      for (let k = 0; k < i; k++) {
        const shrunk = { x: r.x + 1e-6, y: r.y + 1e-6, w: r.w - 2e-6, h: r.h - 2e-6 }
        expect(overlaps(shrunk, rects[k]!)).toBe(false)
      }
    })
  })

  it('has rectangles that are nearly square', () => {
    for (const r of treemap(new Array(200).fill(1), world)) {
      expect(Math.max(r.w / r.h, r.h / r.w)).toBeLessThan(2.5)
    }
  })

  it('survives nothing and emptiness', () => {
    expect(treemap([], world)).toEqual([])
    for (const r of treemap([0, 0], world)) expect(Number.isFinite(r.w + r.h + r.x + r.y)).toBe(true)
  })
})

describe('weight', () => {
  it('stands still while single nodes come and go', () => {
    expect(weight(101)).toBe(weight(100))
    expect(weight(200)).toBeGreaterThan(weight(100))
    expect(weight(0)).toBeGreaterThan(0)
  })
})

describe('grid', () => {
  it('holds every cell, and finds the cell at a point', () => {
    for (const n of [1, 2, 3, 7, 50, 999, 10_000]) {
      for (const into of [world, { x: 5, y: 5, w: 40, h: 300 }, { x: 0, y: 0, w: 500, h: 9 }]) {
        const g = grid(n, into)
        for (const i of [0, n >> 1, n - 1]) {
          const r = cellRect(g, i)
          expect(r.x + r.w).toBeLessThanOrEqual(into.x + into.w + 1e-6)
          expect(r.y + r.h).toBeLessThanOrEqual(into.y + into.h + 1e-6)
          expect(cellAt(g, r.x + r.w / 2, r.y + r.h / 2)).toBe(i)
        }
        expect(cellAt(g, into.x - 1, into.y)).toBe(-1)
      }
    }
    expect(cellAt(grid(0, world), 5, 5)).toBe(-1)
  })

  it('has only the cells that are visible', () => {
    const g = grid(100, { x: 0, y: 0, w: 100, h: 100 })
    expect(visibleCells(g, { x: 15, y: 25, w: 20, h: 10 })).toEqual({ row: 2, rows: 4, column: 1, columns: 4 })
    expect(visibleCells(g, { x: 500, y: 0, w: 10, h: 10 })).toMatchObject({ column: 10, columns: 10 })
  })
})

describe('layout', () => {
  it('places 10,000 nodes inside their regions in a few milliseconds', () => {
    const counts = Array.from({ length: 200 }, (_, i) => (i === 0 ? 5000 : 25))
    const began = performance.now()
    const boxes = layout(counts, world)
    expect(performance.now() - began).toBeLessThan(100)
    boxes.forEach((b, i) => {
      const last = cellRect(b.grid, counts[i]! - 1)
      expect(contains(b.rect, last.x + last.w / 2, last.y + last.h / 2)).toBe(true)
      expect(boxAt(boxes, b.rect.x + b.rect.w / 2, b.rect.y + b.rect.h / 2)).toBe(i)
    })
  })
})

describe('keyboard', () => {
  it('moves between regions and back', () => {
    const boxes = layout([10, 10, 10, 10], { x: 0, y: 0, w: 400, h: 400 })
    const right = neighbour(boxes, 0, 'right')
    expect(right).not.toBe(0)
    expect(neighbour(boxes, right, 'left')).toBe(0)
    expect(neighbour(boxes, -1, 'up')).toBe(0)
    expect(neighbour([], 0, 'up')).toBe(-1)
  })

  it('reaches every region', () => {
    const boxes = layout(
      Array.from({ length: 30 }, (_, i) => i * i),
      world,
    )
    const seen = new Set([0])
    const queue = [0]
    while (queue.length > 0) {
      const at = queue.pop()!
      for (const to of ['left', 'right', 'up', 'down'] as const) {
        const next = neighbour(boxes, at, to)
        if (!seen.has(next)) {
          seen.add(next)
          queue.push(next)
        }
      }
    }
    expect(seen.size).toBe(30)
  })

  it('moves between nodes and stops at the edges', () => {
    const g = grid(10, { x: 0, y: 0, w: 40, h: 30 })
    expect(nextCell(g, -1, 'right')).toBe(0)
    expect(nextCell(g, 0, 'left')).toBe(0)
    expect(nextCell(g, 0, 'down')).toBe(g.columns)
    expect(nextCell(g, 9, 'right')).toBe(9)
    expect(nextCell(grid(0, world), 0, 'up')).toBe(-1)
  })
})

describe('detail', () => {
  it('grows with the size', () => {
    expect([1, 8, 30, 100, 400].map(detail)).toEqual(['dot', 'tile', 'bar', 'name', 'card'])
  })
})
