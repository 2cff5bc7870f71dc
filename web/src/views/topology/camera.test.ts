import { describe, expect, it } from 'vitest'
import { between, bound, fit, focus, home, move, toWorld, view, zoomAt } from './camera'

const screen = { w: 800, h: 600 }

describe('camera', () => {
  it('zooms around a point', () => {
    const before = toWorld(home, 200, 100)
    const c = zoomAt(home, 4, 200, 100, 100)
    expect(c.k).toBe(4)
    expect(toWorld(c, 200, 100)[0]).toBeCloseTo(before[0])
    expect(toWorld(c, 200, 100)[1]).toBeCloseTo(before[1])
    expect(zoomAt(c, 1000, 0, 0, 50).k).toBe(50)
    expect(zoomAt(c, 0.001, 0, 0, 50).k).toBe(1)
  })

  it('stays within the world', () => {
    const c = bound(move({ x: 0, y: 0, k: 2 }, 5000, -5000), screen)
    expect(c.x).toBe(0)
    expect(c.y).toBe(300)
    expect(bound({ x: 9, y: 9, k: 1 }, screen)).toEqual(home)
  })

  it('fits a rectangle', () => {
    const r = { x: 100, y: 100, w: 80, h: 30 }
    const v = view(fit(r, screen, 100), screen)
    expect(v.x).toBeLessThan(100)
    expect(v.x + v.w).toBeGreaterThan(180)
    expect(v.x + v.w / 2).toBeCloseTo(140)
    expect(v.y + v.h / 2).toBeCloseTo(115)
    expect(fit({ x: 0, y: 0, w: 0, h: 0 }, screen, 10)).toEqual(home)
  })

  it('flies from a camera to another', () => {
    const b = { x: 300, y: 200, k: 8 }
    expect(between(home, b, 1, screen)).toEqual(b)
    const start = between(home, b, 0, screen)
    expect(start.k).toBeCloseTo(1)
    expect(start.x).toBeCloseTo(0)
    const mid = between(home, b, 0.5, screen)
    expect(mid.k).toBeGreaterThan(1)
    expect(mid.k).toBeLessThan(8)
    // A flight without a change of the scale moves evenly.
    const shifted = between({ x: 0, y: 0, k: 2 }, { x: 100, y: 0, k: 2 }, 0.5, screen)
    expect(shifted.x).toBeCloseTo(50)
  })

  it('finds the region that fills the screen', () => {
    const boxes = [{ rect: { x: 0, y: 0, w: 400, h: 600 } }, { rect: { x: 400, y: 0, w: 400, h: 600 } }]
    expect(focus(boxes, { x: 420, y: 0, k: 4 }, screen)).toBe(1)
    expect(focus(boxes, home, screen, 0.6)).toBe(-1)
  })
})
