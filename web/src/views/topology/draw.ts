// Draws the topology on a canvas. What is drawn depends on the size of a node on the screen.

import { view, type Camera, type Size } from './camera'
import { active, matches, regionMatches, type Filter } from './filter'
import { cellRect, detail, overlaps, visibleCells, type Box, type Rect } from './layout'
import type { Cell, Look, Region } from './model'

/** Palette has the colours of the page's theme. */
export interface Palette {
  page: string
  panel: string
  line: string
  text: string
  quiet: string
  accent: string
  focus: string
  good: string
  warn: string
  bad: string
  off: string
  track: string
  font: string
}

/** Alloc is an allocation of the selected node. */
export interface Tile {
  state: string
  label: string
}

export interface Scene {
  regions: Region[]
  boxes: Box[]
  camera: Camera
  screen: Size
  filter: Filter
  /** Shade nodes by what is reserved instead of by their state. */
  shade: 'state' | 'cpu' | 'memory'
  /** Positions of the selected and of the pointed region and node, or -1. */
  region: number
  cell: number
  hoverRegion: number
  hoverCell: number
  /** Allocations of the selected node, if they are known. */
  tiles: Tile[] | undefined
}

/** Stats says what a picture has cost. */
export interface Stats {
  regions: number
  cells: number
}

const isLook = (text: string): text is Look => ['left', 'lost', 'cordoned', 'draining', 'ready'].includes(text)

/** colour returns the colour of a node's state. */
export function colour(p: Palette, look: Look): string {
  if (look === 'lost') return p.bad
  if (look === 'draining' || look === 'cordoned') return p.warn
  return look === 'left' ? p.off : p.good
}

/** step returns the shade of a share: 0..5. A share of -1 is unknown and has no shade. */
export function step(share: number): number {
  return share < 0 ? -1 : Math.min(5, Math.floor(share * 6))
}

/** draw paints the scene. The context already has the scale of the screen's pixels. */
export function draw(ctx: CanvasRenderingContext2D, s: Scene, p: Palette): Stats {
  ctx.fillStyle = p.page
  ctx.fillRect(0, 0, s.screen.w, s.screen.h)
  const seen = view(s.camera, s.screen)
  const stats = { regions: 0, cells: 0 }
  s.boxes.forEach((box, i) => {
    const region = s.regions[i]
    if (!region || !overlaps(box.rect, seen)) return
    stats.regions++
    drawRegion(ctx, s, p, i, region, box)
    stats.cells += drawCells(ctx, s, p, i, region, box, seen)
  })
  outline(ctx, s, s.hoverRegion, s.hoverCell, p.quiet, 1)
  outline(ctx, s, s.region, s.cell, p.focus, 2)
  return stats
}

function onScreen(s: Scene, r: Rect): Rect {
  const k = s.camera.k
  return { x: (r.x - s.camera.x) * k, y: (r.y - s.camera.y) * k, w: r.w * k, h: r.h * k }
}

function drawRegion(ctx: CanvasRenderingContext2D, s: Scene, p: Palette, i: number, region: Region, box: Box): void {
  const r = onScreen(s, box.rect)
  const round = Math.min(8, r.w / 6, r.h / 6)
  ctx.beginPath()
  ctx.roundRect(r.x, r.y, r.w, r.h, round)
  ctx.fillStyle = p.panel
  ctx.fill()
  ctx.lineWidth = 1
  ctx.strokeStyle = region.trouble === 'lost' || region.trouble === 'disconnected' || region.trouble === 'banned' ? p.bad : region.trouble ? p.warn : p.line
  ctx.stroke()
  const head = box.head * s.camera.k
  if (r.w < 36 || head < 8) return
  // The name stays visible while the region is larger than the screen.
  const top = Math.max(r.y, 0)
  const left = Math.max(r.x, 0)
  const size = Math.min(13, Math.max(9, head * 0.62))
  const height = Math.min(head, 26)
  ctx.font = `600 ${size}px ${p.font}`
  ctx.textBaseline = 'middle'
  ctx.fillStyle = region.trouble === 'lost' || region.trouble === 'disconnected' ? p.bad : i === s.region ? p.text : p.text
  const room = Math.min(r.x + r.w, s.screen.w) - left - 12
  const name = clip(ctx, region.name, room)
  ctx.fillText(name, left + 6, top + height / 2)
  const used = ctx.measureText(name).width
  const facts = region.trouble || `${region.cells.length}`
  ctx.font = `${Math.max(9, size - 1)}px ${p.font}`
  ctx.fillStyle = region.trouble === 'lost' || region.trouble === 'disconnected' ? p.bad : p.quiet
  if (used + ctx.measureText(facts).width + 14 < room) {
    ctx.textAlign = 'right'
    ctx.fillText(facts, left + room + 6, top + height / 2)
    ctx.textAlign = 'left'
  }
}

/** clip shortens a text to a width. */
function clip(ctx: CanvasRenderingContext2D, text: string, width: number): string {
  if (width <= 0) return ''
  if (ctx.measureText(text).width <= width) return text
  let lo = 0
  let hi = text.length
  while (lo < hi) {
    const mid = (lo + hi + 1) >> 1
    if (ctx.measureText(text.slice(0, mid) + '…').width <= width) lo = mid
    else hi = mid - 1
  }
  return lo === 0 ? '' : text.slice(0, lo) + '…'
}

function drawCells(ctx: CanvasRenderingContext2D, s: Scene, p: Palette, i: number, region: Region, box: Box, seen: Rect): number {
  const g = box.grid
  const pixels = g.step * s.camera.k
  if (pixels < 0.6) return 0
  const span = visibleCells(g, seen)
  const whole = !active(s.filter) || (regionMatches(s.filter, region) && s.filter.state === '' && s.filter.pool === '')
  const how = detail(pixels)
  const gap = how === 'dot' ? Math.min(0.6, pixels * 0.15) : how === 'tile' ? 1 : Math.min(6, pixels * 0.08)
  const side = pixels - gap
  const x0 = (g.x - s.camera.x) * s.camera.k
  const y0 = (g.y - s.camera.y) * s.camera.k
  // Cells of one colour form one path: a fill for each colour instead of one for each node.
  const paths = new Map<string, Path2D>()
  const large: { cell: Cell; x: number; y: number; at: number; dim: boolean }[] = []
  let n = 0
  for (let row = span.row; row < span.rows; row++) {
    for (let column = span.column; column < span.columns; column++) {
      const at = row * g.columns + column
      const cell = region.cells[at]
      if (!cell) break
      n++
      const dim = !whole && !matches(s.filter, cell)
      const x = x0 + column * pixels
      const y = y0 + row * pixels
      if (how === 'name' || how === 'card') {
        large.push({ cell, x, y, at, dim })
        continue
      }
      const key = (dim ? 'd' : 'n') + (region.known ? '' : '?') + shadeKey(s, cell)
      let path = paths.get(key)
      if (!path) paths.set(key, (path = new Path2D()))
      path.rect(x, y, side, side)
      if (how === 'bar' && region.known && cell.cpu >= 0 && !dim) {
        let bar = paths.get('bar')
        if (!bar) paths.set('bar', (bar = new Path2D()))
        bar.rect(x, y + side * (1 - cell.cpu), side, side * cell.cpu)
      }
    }
  }
  fillPaths(ctx, s, p, paths)
  for (const it of large) drawCard(ctx, p, it.cell, it.x, it.y, side, it.dim, how === 'card', i === s.region && it.at === s.cell ? s.tiles : undefined)
  return n
}

function shadeKey(s: Scene, cell: Cell): string {
  if (s.shade === 'state' || cell.look === 'lost' || cell.look === 'left') return cell.look
  return `${step(s.shade === 'cpu' ? cell.cpu : cell.memory)}`
}

function fillPaths(ctx: CanvasRenderingContext2D, s: Scene, p: Palette, paths: Map<string, Path2D>): void {
  for (const [key, path] of paths) {
    if (key === 'bar') continue
    const kind = key.slice(key[1] === '?' ? 2 : 1)
    const named = isLook(kind)
    ctx.globalAlpha = key[0] === 'd' ? 0.12 : key[1] === '?' ? 0.5 : named ? (s.shade === 'state' ? 0.72 : 0.9) : 0.18 + 0.16 * Number(kind)
    ctx.fillStyle = named ? colour(p, kind) : kind === '-1' ? p.off : p.accent
    ctx.fill(path)
  }
  const bar = paths.get('bar')
  if (bar) {
    ctx.globalAlpha = 0.3
    ctx.fillStyle = p.text
    ctx.fill(bar)
  }
  ctx.globalAlpha = 1
}

function drawCard(
  ctx: CanvasRenderingContext2D,
  p: Palette,
  cell: Cell,
  x: number,
  y: number,
  side: number,
  dim: boolean,
  full: boolean,
  tiles: Tile[] | undefined,
): void {
  ctx.globalAlpha = dim ? 0.25 : 1
  ctx.beginPath()
  ctx.roundRect(x, y, side, side, Math.min(6, side / 12))
  ctx.fillStyle = p.page
  ctx.fill()
  ctx.strokeStyle = p.line
  ctx.lineWidth = 1
  ctx.stroke()
  ctx.fillStyle = colour(p, cell.look)
  ctx.fillRect(x + 1, y + side * 0.12, Math.max(2, side * 0.03), side * 0.76)
  const unit = Math.min(28, side / 9)
  const left = x + side * 0.09
  const width = side * 0.84
  ctx.textBaseline = 'middle'
  ctx.fillStyle = p.text
  const size = Math.min(14, Math.max(9, side / 8))
  ctx.font = `600 ${size}px ${p.font}`
  ctx.fillText(clip(ctx, cell.name || cell.look, width), left, y + unit * 1.2)
  ctx.font = `${Math.max(8, size - 2)}px ${p.font}`
  let at = y + unit * 2.1
  if (full) {
    ctx.fillStyle = p.quiet
    const more = [cell.look === 'ready' ? '' : cell.look, cell.pool, cell.allocations < 0 ? '' : `${cell.allocations} alloc.`].filter((t) => t !== '').join(' · ')
    ctx.fillText(clip(ctx, more, width), left, at + unit * 0.2)
    at += unit
  }
  meter(ctx, p, left, at + unit * 0.3, width, unit, 'CPU', cell.cpu, cell.usedCPU, full)
  meter(ctx, p, left, at + unit * (full ? 1.7 : 1.3), width, unit, 'mem', cell.memory, cell.usedMemory, full)
  if (full) dots(ctx, p, left, at + unit * 3.2, width, y + side - unit * 0.5, cell, tiles)
  ctx.globalAlpha = 1
}

// A meter shows the reserved share as a bar, and the measured use as a mark on it.
function meter(
  ctx: CanvasRenderingContext2D,
  p: Palette,
  x: number,
  y: number,
  width: number,
  unit: number,
  label: string,
  share: number,
  used: number,
  full: boolean,
): void {
  const head = full ? unit * 1.7 : 0
  if (full) {
    ctx.fillStyle = p.quiet
    ctx.fillText(label, x, y + unit * 0.3)
  }
  const h = Math.max(3, unit * 0.45)
  const w = width - head
  ctx.fillStyle = p.track
  ctx.fillRect(x + head, y, w, h)
  if (share >= 0) {
    ctx.fillStyle = share > 0.9 ? p.warn : p.accent
    ctx.fillRect(x + head, y, w * share, h)
  }
  if (used >= 0) {
    ctx.fillStyle = p.text
    ctx.fillRect(x + head + Math.min(w - 2, w * used), y - 1, 2, h + 2)
  }
}

function dots(ctx: CanvasRenderingContext2D, p: Palette, x: number, y: number, width: number, bottom: number, cell: Cell, tiles: Tile[] | undefined): void {
  const n = tiles ? tiles.length : cell.allocations
  if (n <= 0 || bottom - y < 5) return
  if (tiles && n <= 12 && (bottom - y) / n >= 11) {
    tiles.forEach((t, i) => {
      const at = y + (i + 0.5) * Math.min(18, (bottom - y) / n)
      ctx.fillStyle = allocColour(p, t.state)
      ctx.fillRect(x, at - 4, 8, 8)
      ctx.fillStyle = p.text
      ctx.fillText(clip(ctx, t.label, width - 14), x + 13, at)
    })
    return
  }
  const size = Math.max(3, Math.min(12, Math.sqrt((width * (bottom - y)) / n)))
  const columns = Math.max(1, Math.floor(width / size))
  for (let i = 0; i < n; i++) {
    const at = y + Math.floor(i / columns) * size
    if (at + size > bottom) return
    ctx.fillStyle = tiles ? allocColour(p, tiles[i]!.state) : p.accent
    ctx.fillRect(x + (i % columns) * size, at, size - 1.5, size - 1.5)
  }
}

/** allocColour returns the colour of an allocation's state. */
export function allocColour(p: Palette, state: string): string {
  if (/RUNNING|COMPLETE/i.test(state)) return p.good
  if (/FAILED|LOST/i.test(state)) return p.bad
  return /PENDING|STARTING/i.test(state) ? p.warn : p.off
}

function outline(ctx: CanvasRenderingContext2D, s: Scene, region: number, cell: number, colour: string, width: number): void {
  const box = s.boxes[region]
  if (!box) return
  const r = onScreen(s, cell >= 0 && cell < box.grid.count ? cellRect(box.grid, cell) : box.rect)
  const small = r.w < 8 ? 2 : 0
  ctx.lineWidth = width
  ctx.strokeStyle = colour
  ctx.strokeRect(r.x - small, r.y - small, r.w - (small ? -2 * small : 1), r.h - (small ? -2 * small : 1))
}
