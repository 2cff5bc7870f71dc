// The part of the picture that the canvas shows: zoom, move, fit.

import type { Rect } from './layout'

/** Camera shows world point (x, y) at the left upper corner, with k pixels per unit. */
export interface Camera {
  x: number
  y: number
  k: number
}

export interface Size {
  w: number
  h: number
}

export const home: Camera = { x: 0, y: 0, k: 1 }

/** zoomAt changes the scale, and the point under (px, py) stays there. */
export function zoomAt(c: Camera, factor: number, px: number, py: number, max: number): Camera {
  const k = Math.min(max, Math.max(1, c.k * factor))
  return { k, x: c.x + px / c.k - px / k, y: c.y + py / c.k - py / k }
}

/** move shifts the picture by pixels. */
export function move(c: Camera, dx: number, dy: number): Camera {
  return { ...c, x: c.x - dx / c.k, y: c.y - dy / c.k }
}

/** bound retains the camera within the world. */
export function bound(c: Camera, world: Size): Camera {
  const w = world.w / c.k
  const h = world.h / c.k
  return {
    k: c.k,
    x: Math.min(Math.max(c.x, 0), Math.max(0, world.w - w)),
    y: Math.min(Math.max(c.y, 0), Math.max(0, world.h - h)),
  }
}

/** fit shows a rectangle with a margin, as large as possible. */
export function fit(r: Rect, screen: Size, max: number, margin = 0.04): Camera {
  if (r.w <= 0 || r.h <= 0) return home
  const scale = Math.min(screen.w / r.w, screen.h / r.h) * (1 - 2 * margin)
  const k = Math.min(max, Math.max(1, scale))
  return {
    k,
    x: r.x + r.w / 2 - screen.w / k / 2,
    y: r.y + r.h / 2 - screen.h / k / 2,
  }
}

/** view returns the part of the world that is visible. */
export function view(c: Camera, screen: Size): Rect {
  return { x: c.x, y: c.y, w: screen.w / c.k, h: screen.h / c.k }
}

/** toWorld converts a point of the screen. */
export function toWorld(c: Camera, px: number, py: number): [number, number] {
  return [c.x + px / c.k, c.y + py / c.k]
}

/** between returns the camera at part t (0..1) of a flight. The scale changes evenly. */
export function between(a: Camera, b: Camera, t: number, screen: Size): Camera {
  if (t >= 1) return b
  const e = t < 0.5 ? 2 * t * t : 1 - 2 * (1 - t) * (1 - t)
  const k = a.k * Math.pow(b.k / a.k, e)
  // The centre moves so that the flight looks straight at a changing scale.
  const f = Math.abs(b.k - a.k) < 1e-9 ? e : (1 / a.k - 1 / k) / (1 / a.k - 1 / b.k)
  const at = (from: number, to: number, size: number) => {
    const ca = from + size / a.k / 2
    const cb = to + size / b.k / 2
    return ca + (cb - ca) * f - size / k / 2
  }
  return { k, x: at(a.x, b.x, screen.w), y: at(a.y, b.y, screen.h) }
}

/** focus returns the region that fills most of the screen, or -1 if none fills enough. */
export function focus(boxes: { rect: Rect }[], c: Camera, screen: Size, part = 0.3): number {
  const v = view(c, screen)
  let best = -1
  let area = part * v.w * v.h
  boxes.forEach((b, i) => {
    const w = Math.min(b.rect.x + b.rect.w, v.x + v.w) - Math.max(b.rect.x, v.x)
    const h = Math.min(b.rect.y + b.rect.h, v.y + v.h) - Math.max(b.rect.y, v.y)
    if (w > 0 && h > 0 && w * h > area) {
      area = w * h
      best = i
    }
  })
  return best
}
