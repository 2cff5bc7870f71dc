// Places of regions and nodes on the canvas: a treemap of regions, and a grid of nodes in
// each region. The places of nodes are computed from their position, so 10,000 nodes need no
// objects, and the node at a point is found without a search.

export interface Rect {
  x: number
  y: number
  w: number
  h: number
}

/** Grid is the place of a region's nodes: cells of one size, row by row. */
export interface Grid {
  x: number
  y: number
  /** Distance from cell to cell. */
  step: number
  columns: number
  count: number
}

/** Box is the place of a region. */
export interface Box {
  rect: Rect
  /** Height of the line with the name. */
  head: number
  grid: Grid
}

/**
 * weight returns the area of a region with n nodes. Areas change in steps of a half, so that
 * the picture stands still while single nodes come and go.
 */
export function weight(n: number): number {
  return Math.pow(1.5, Math.ceil(Math.log(n + 6) / Math.log(1.5)))
}

/**
 * treemap divides a rectangle into rectangles with areas in proportion to the weights, as
 * square as possible (Bruls, Huizing, van Wijk). The result has the order of the weights.
 */
export function treemap(weights: number[], into: Rect): Rect[] {
  const out: Rect[] = new Array(weights.length)
  const order = weights.map((_, i) => i).sort((a, b) => weights[b]! - weights[a]! || a - b)
  let total = weights.reduce((sum, w) => sum + w, 0)
  let rest = { ...into }
  for (let at = 0; at < order.length;) {
    const scale = total > 0 ? (rest.w * rest.h) / total : 0
    const side = Math.min(rest.w, rest.h)
    let end = at + 1
    let sum = weights[order[at]!]! * scale
    let worst = ratio(sum, sum, sum, side)
    while (end < order.length) {
      const area = weights[order[end]!]! * scale
      const next = ratio(sum + area, weights[order[at]!]! * scale, area, side)
      if (next > worst) break
      worst = next
      sum += area
      end++
    }
    rest = strip(out, order.slice(at, end), weights, scale, sum, rest)
    for (let i = at; i < end; i++) total -= weights[order[i]!]!
    at = end
  }
  return out
}

// ratio returns the worst ratio of sides in a strip of the given area along a side.
function ratio(sum: number, largest: number, smallest: number, side: number): number {
  if (sum <= 0 || smallest <= 0) return Infinity
  const s2 = side * side
  return Math.max((s2 * largest) / (sum * sum), (sum * sum) / (s2 * smallest))
}

// strip places items along the shorter side, and returns what is left of the rectangle.
function strip(out: Rect[], items: number[], weights: number[], scale: number, sum: number, rest: Rect): Rect {
  const wide = rest.w >= rest.h
  const depth = sum / Math.max(wide ? rest.h : rest.w, 1e-9)
  let at = wide ? rest.y : rest.x
  for (const i of items) {
    const length = depth > 0 ? (weights[i]! * scale) / depth : 0
    out[i] = wide ? { x: rest.x, y: at, w: depth, h: length } : { x: at, y: rest.y, w: length, h: depth }
    at += length
  }
  return wide
    ? { x: rest.x + depth, y: rest.y, w: Math.max(0, rest.w - depth), h: rest.h }
    : { x: rest.x, y: rest.y + depth, w: rest.w, h: Math.max(0, rest.h - depth) }
}

/** grid fits n square cells into a rectangle, as large as possible. */
export function grid(n: number, into: Rect): Grid {
  const empty = { x: into.x, y: into.y, step: 0, columns: 1, count: n }
  if (n === 0 || into.w <= 0 || into.h <= 0) return empty
  const guess = Math.sqrt((n * into.w) / into.h)
  let best = empty
  for (const columns of [Math.floor(guess), Math.ceil(guess), Math.ceil(guess) + 1]) {
    if (columns < 1) continue
    const rows = Math.ceil(n / columns)
    const step = Math.min(into.w / columns, into.h / rows)
    if (step > best.step) best = { x: into.x, y: into.y, step, columns, count: n }
  }
  return best
}

/** layout places regions with the given numbers of nodes. Regions keep the order. */
export function layout(counts: number[], into: Rect): Box[] {
  const gap = Math.max(1, Math.min(8, into.w / 160))
  return treemap(counts.map(weight), into).map((r, i) => {
    const count = counts[i] ?? 0
    const pad = Math.min(gap, r.w / 8, r.h / 8)
    const rect = { x: r.x + pad / 2, y: r.y + pad / 2, w: Math.max(0, r.w - pad), h: Math.max(0, r.h - pad) }
    const head = Math.min(22, rect.h * 0.22)
    const inner = Math.min(6, rect.w * 0.05, rect.h * 0.05)
    return {
      rect,
      head,
      grid: grid(count, {
        x: rect.x + inner,
        y: rect.y + head,
        w: rect.w - 2 * inner,
        h: rect.h - head - inner,
      }),
    }
  })
}

/** cellRect returns the place of node i. */
export function cellRect(g: Grid, i: number): Rect {
  return {
    x: g.x + (i % g.columns) * g.step,
    y: g.y + Math.floor(i / g.columns) * g.step,
    w: g.step,
    h: g.step,
  }
}

/** cellAt returns the node at a point, or -1. */
export function cellAt(g: Grid, x: number, y: number): number {
  if (g.step <= 0) return -1
  const column = Math.floor((x - g.x) / g.step)
  const row = Math.floor((y - g.y) / g.step)
  if (column < 0 || column >= g.columns || row < 0) return -1
  const i = row * g.columns + column
  return i < g.count ? i : -1
}

/** boxAt returns the region at a point, or -1. */
export function boxAt(boxes: Box[], x: number, y: number): number {
  return boxes.findIndex((b) => contains(b.rect, x, y))
}

export function contains(r: Rect, x: number, y: number): boolean {
  return x >= r.x && x < r.x + r.w && y >= r.y && y < r.y + r.h
}

export function overlaps(a: Rect, b: Rect): boolean {
  return a.x < b.x + b.w && b.x < a.x + a.w && a.y < b.y + b.h && b.y < a.y + a.h
}

/** visibleCells returns the rows and columns of a grid that a rectangle shows. Ends are excluded. */
export function visibleCells(g: Grid, view: Rect): { row: number; rows: number; column: number; columns: number } {
  if (g.step <= 0) return { row: 0, rows: 0, column: 0, columns: 0 }
  const all = Math.ceil(g.count / g.columns)
  const clamp = (v: number, max: number) => Math.max(0, Math.min(max, v))
  return {
    row: clamp(Math.floor((view.y - g.y) / g.step), all),
    rows: clamp(Math.ceil((view.y + view.h - g.y) / g.step), all),
    column: clamp(Math.floor((view.x - g.x) / g.step), g.columns),
    columns: clamp(Math.ceil((view.x + view.w - g.x) / g.step), g.columns),
  }
}

/** Detail is how much of a node is drawn. */
export type Detail = 'dot' | 'tile' | 'bar' | 'name' | 'card'

/** detail chooses by the size of a node in pixels of the screen. */
export function detail(pixels: number): Detail {
  if (pixels < 4) return 'dot'
  if (pixels < 14) return 'tile'
  if (pixels < 64) return 'bar'
  return pixels < 150 ? 'name' : 'card'
}

export type Direction = 'left' | 'right' | 'up' | 'down'

/** neighbour returns the region that lies in a direction from region i, or i. */
export function neighbour(boxes: Box[], i: number, to: Direction): number {
  if (boxes.length === 0) return -1
  if (i < 0 || i >= boxes.length) return 0
  const [cx, cy] = centre(boxes[i]!.rect)
  let best = i
  let cost = Infinity
  boxes.forEach((b, k) => {
    if (k === i) return
    const [x, y] = centre(b.rect)
    const ahead = to === 'left' ? cx - x : to === 'right' ? x - cx : to === 'up' ? cy - y : y - cy
    const aside = to === 'left' || to === 'right' ? Math.abs(y - cy) : Math.abs(x - cx)
    if (ahead <= 0.5) return
    const c = ahead + 2 * aside
    if (c < cost) {
      cost = c
      best = k
    }
  })
  return best
}

/** nextCell returns the node in a direction from node i, or i at the edge. */
export function nextCell(g: Grid, i: number, to: Direction): number {
  if (g.count === 0) return -1
  if (i < 0) return 0
  const next = to === 'left' ? i - 1 : to === 'right' ? i + 1 : to === 'up' ? i - g.columns : i + g.columns
  return next >= 0 && next < g.count ? next : i
}

function centre(r: Rect): [number, number] {
  return [r.x + r.w / 2, r.y + r.h / 2]
}
