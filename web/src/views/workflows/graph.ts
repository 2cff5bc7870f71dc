// Where the steps of a run are drawn: in layers from left to right. It depends on the structure only, so nothing moves
// while the run goes on.

import { stepStates, word, type Step } from './runs'

/** Node is a step, or several steps that are drawn as one. */
export interface Node {
  id: string
  label: string
  steps: Step[]
  column: number
  row: number
  x: number
  y: number
}

export interface Edge {
  from: number
  to: number
}

export interface Drawing {
  nodes: Node[]
  edges: Edge[]
  /** The path of all lines. */
  lines: string
  width: number
  height: number
}

export const size = { width: 176, height: 48, gapX: 48, gapY: 14, pad: 14 }

/** Steps that have the same neighbours are drawn as one from this number on. */
const fold = 5
/** Above this number of nodes a layer becomes one, and then several layers. */
const most = 120
const columns = 40

interface Group {
  id: string
  steps: number[]
  column: number
}

/** layers returns the layer of each step: one more than the greatest of those on which it depends. */
export function layers(steps: Step[]): number[] {
  const at = new Map<string, number>()
  const out: number[] = []
  let last = 0
  for (const s of steps) {
    let layer = 0
    for (const name of s.after ?? []) layer = Math.max(layer, (at.get(name) ?? -1) + 1)
    at.set(s.name, layer)
    out.push(layer)
    last = Math.max(last, layer)
  }
  return out.map((l, i) => (steps[i]!.onExit && steps.length > 1 ? last + 1 : l))
}

/** grouped folds steps, so that at most about `most` nodes remain. */
function grouped(steps: Step[], layer: number[]): Group[] {
  const below = new Map<string, string[]>()
  for (const s of steps) for (const name of s.after ?? []) {
    const list = below.get(name)
    if (list) list.push(s.name)
    else below.set(name, [s.name])
  }
  const by = (key: (i: number) => string, column: (i: number) => number, least: number): Group[] => {
    const found = new Map<string, number[]>()
    steps.forEach((_, i) => {
      const k = key(i)
      const list = found.get(k)
      if (list) list.push(i)
      else found.set(k, [i])
    })
    return [...found.values()].flatMap((list) => (list.length >= least ? [list] : list.map((i) => [i])).map((of) => ({ id: steps[of[0]!]!.name, steps: of, column: column(of[0]!) })))
  }
  const alike = by((i) => `${layer[i]} ${steps[i]!.onExit ?? ''} ${[...(steps[i]!.after ?? [])].sort().join(',')} ${(below.get(steps[i]!.name) ?? []).join(',')}`, (i) => layer[i]!, fold)
  if (alike.length <= most) return alike
  const whole = by((i) => String(layer[i]), (i) => layer[i]!, 2)
  if (whole.length <= columns) return whole
  const part = Math.ceil((Math.max(...layer) + 1) / columns)
  return by((i) => String(Math.floor(layer[i]! / part)), (i) => Math.floor(layer[i]! / part), 1)
}

/** Place is what stands in a column: a node, or the passage of the lines of a node to later columns. */
interface Place {
  node: number
  passage: boolean
  column: number
  from: Place[]
  y: number
}

/** passages bounds the passages. Above it the lines go straight, behind the nodes. */
const passages = 600

/** drawing places the steps of a graph. They come in an order in which each stands after those on which it depends. */
export function drawing(steps: Step[]): Drawing {
  const groups = grouped(steps, layers(steps))
  const of = new Map<string, number>()
  groups.forEach((g, n) => g.steps.forEach((i) => of.set(steps[i]!.name, n)))
  const parents = groups.map(() => new Set<number>())
  groups.forEach((g, n) => {
    for (const i of g.steps) for (const name of steps[i]!.after ?? []) {
      const p = of.get(name)
      if (p !== undefined && p !== n) parents[n]!.add(p)
    }
  })
  const places = groups.map((g, node): Place => ({ node, passage: false, column: g.column, from: [], y: 0 }))
  const depth = Math.max(0, ...groups.map((g) => g.column)) + 1
  const table: Place[][] = Array.from({ length: depth }, () => [])
  for (const p of places) table[p.column]!.push(p)
  // The lines of a node share one passage in each column that they cross.
  const crossed = new Map<string, Place>()
  const passage = (node: number, column: number): Place => {
    if (column <= groups[node]!.column) return places[node]!
    const key = `${node} ${column}`
    let p = crossed.get(key)
    if (!p) {
      p = { node, passage: true, column, from: [passage(node, column - 1)], y: 0 }
      crossed.set(key, p)
      table[column]!.push(p)
    }
    return p
  }
  const spans = groups.map((g, n) => Math.max(0, ...[...parents.keys()].filter((c) => parents[c]!.has(n)).map((c) => groups[c]!.column - g.column - 1)))
  const straight = spans.reduce((sum, n) => sum + n, 0) > passages
  groups.forEach((g, n) => { for (const p of parents[n]!) places[n]!.from.push(straight ? places[p]! : passage(p, g.column - 1)) })

  const high = (p: Place): number => (p.passage ? 4 : size.height)
  const middle = (p: Place): number => p.y + high(p) / 2
  let tall = 0
  for (const list of table) {
    // A node stands near the middle of those on which it depends.
    const want = new Map(list.map((p) => [p, p.from.length ? p.from.reduce((sum, f) => sum + middle(f), 0) / p.from.length : 0]))
    list.sort((a, b) => want.get(a)! - want.get(b)! || a.node - b.node)
    let y = 0
    for (const p of list) {
      p.y = y
      y += high(p) + size.gapY
    }
    tall = Math.max(tall, y - size.gapY)
  }
  for (const list of table) {
    const end = list[list.length - 1]
    const space = end ? (tall - end.y - high(end)) / 2 : 0
    for (const p of list) p.y += space + size.pad
  }
  const x = (column: number): number => size.pad + column * (size.width + size.gapX)
  const nodes = groups.map((g, n): Node => ({
    id: g.id, label: g.steps.length === 1 ? g.id : `${g.steps.length} steps`, steps: g.steps.map((i) => steps[i]!), column: g.column,
    row: table[g.column]!.filter((p) => !p.passage).indexOf(places[n]!), x: x(g.column), y: places[n]!.y,
  }))
  const lines = table.flat().flatMap((p) => [
    ...p.from.map((f) => curve(x(f.column) + size.width, middle(f), x(p.column), middle(p))),
    ...(p.passage ? [`M${x(p.column)} ${middle(p)}h${size.width}`] : []),
  ])
  return {
    nodes, edges: parents.flatMap((set, to) => [...set].map((from) => ({ from, to }))), lines: lines.join(''),
    width: x(depth) - size.gapX + size.pad, height: 2 * size.pad + tall,
  }
}

/** curve is a line between two columns. What it crosses on its way it crosses straight. */
function curve(x: number, y: number, tox: number, toy: number): string {
  const from = tox - size.gapX, bend = size.gapX / 2
  return `M${x} ${y}H${from}C${from + bend} ${y} ${tox - bend} ${toy} ${tox} ${toy}`
}

/** active is the first node that needs a look, or the last one if all is well. */
export function active(d: Drawing): Node | undefined {
  const busy = (n: Node): boolean => !['succeeded', 'skipped', 'pending'].includes(counts(n.steps)[0]!.state)
  return d.nodes.find(busy) ?? d.nodes.find((n) => n.steps.some((s) => word(s.state) === 'pending'))
}

/** counts returns how many of some steps are in each state, the one that stands for all first. */
export function counts(steps: Step[]): { state: string; count: number }[] {
  const found = new Map<string, number>()
  for (const s of steps) found.set(word(s.state), (found.get(word(s.state)) ?? 0) + 1)
  return [...found].map(([state, count]) => ({ state, count })).sort((a, b) => stepStates.indexOf(a.state) - stepStates.indexOf(b.state))
}

/** beside returns the node that an arrow key reaches from another one. */
export function beside(d: Drawing, at: number, key: string): number {
  const here = d.nodes[at]
  if (!here) return at
  const from = (list: number[]): number => (list.length ? list.reduce((best, n) => (Math.abs(d.nodes[n]!.y - here.y) < Math.abs(d.nodes[best]!.y - here.y) ? n : best)) : at)
  const linked = (mine: 'from' | 'to', other: 'from' | 'to'): number[] => d.edges.filter((e) => e[mine] === at).map((e) => e[other])
  const column = (step: number): number[] => d.nodes.flatMap((n, i) => (n.column === here.column + step ? [i] : []))
  switch (key) {
    case 'ArrowRight': return from(linked('from', 'to').length ? linked('from', 'to') : column(1))
    case 'ArrowLeft': return from(linked('to', 'from').length ? linked('to', 'from') : column(-1))
    case 'ArrowDown': case 'ArrowUp': {
      const row = here.row + (key === 'ArrowDown' ? 1 : -1)
      const found = d.nodes.findIndex((n) => n.column === here.column && n.row === row)
      return found < 0 ? at : found
    }
  }
  return at
}
