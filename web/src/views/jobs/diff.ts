// Differences between two versions of a job, for people.

/** DiffLine is nusa.v1.DiffLine as JSON. */
export interface DiffLine {
  field?: string
  old?: string
  new?: string
}

export type Kind = 'added' | 'removed' | 'changed'

/** Change is a changed field. */
export interface Change {
  /** Path below the part of the job, for example "tasks.main.driver". */
  field: string
  kind: Kind
  old: string
  new: string
  /** Lines of a longer text. Undefined: the values are short. */
  lines: TextLine[] | undefined
}

/** Part is a group of the job, or the job itself, with its changes. */
export interface Part {
  title: string
  changes: Change[]
}

export interface TextLine {
  kind: 'same' | 'added' | 'removed'
  text: string
}

/** kindOf says what happened to a field. */
export function kindOf(d: DiffLine): Kind {
  if (!d.old && d.new) return 'added'
  return d.old && !d.new ? 'removed' : 'changed'
}

/** parts sorts the changes by group of the job. The order of the server stays within a group. */
export function parts(diff: DiffLine[]): Part[] {
  const out = new Map<string, Part>()
  for (const d of diff) {
    const field = d.field ?? ''
    const found = /^groups\.([^.[\]]+)(?:\.(.+))?$/.exec(field)
    const title = found ? `group ${found[1]}` : 'job'
    let part = out.get(title)
    if (!part) out.set(title, (part = { title, changes: [] }))
    const long = (d.old ?? '').includes('\n') || (d.new ?? '').includes('\n')
    part.changes.push({
      field: found ? (found[2] ?? '(the whole group)') : field,
      kind: kindOf(d),
      old: d.old ?? '',
      new: d.new ?? '',
      lines: long ? textDiff(d.old ?? '', d.new ?? '') : undefined,
    })
  }
  return [...out.values()]
}

/** counts sums up the kinds. */
export function counts(diff: DiffLine[]): Record<Kind, number> {
  const out = { added: 0, removed: 0, changed: 0 }
  for (const d of diff) out[kindOf(d)]++
  return out
}

/** Greatest product of lines that textDiff compares. Beyond it, everything is replaced. */
const most = 4_000_000

/** textDiff compares two texts by line (longest common subsequence). */
export function textDiff(before: string, after: string): TextLine[] {
  const a = before === '' ? [] : before.split('\n')
  const b = after === '' ? [] : after.split('\n')
  let head = 0
  while (head < a.length && head < b.length && a[head] === b[head]) head++
  let tail = 0
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail++
  const out: TextLine[] = a.slice(0, head).map((text) => ({ kind: 'same', text }))
  out.push(...middle(a.slice(head, a.length - tail), b.slice(head, b.length - tail)))
  for (const text of a.slice(a.length - tail)) if (tail > 0) out.push({ kind: 'same', text })
  return out
}

function middle(a: string[], b: string[]): TextLine[] {
  const out: TextLine[] = []
  if (a.length * b.length > most) {
    for (const text of a) out.push({ kind: 'removed', text })
    for (const text of b) out.push({ kind: 'added', text })
    return out
  }
  const w = b.length + 1
  const length = new Uint32Array((a.length + 1) * w)
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      length[i * w + j] = a[i] === b[j] ? length[(i + 1) * w + j + 1]! + 1 : Math.max(length[(i + 1) * w + j]!, length[i * w + j + 1]!)
    }
  }
  let i = 0
  let j = 0
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      out.push({ kind: 'same', text: a[i++]! })
      j++
    } else if (j >= b.length || (i < a.length && length[(i + 1) * w + j]! >= length[i * w + j + 1]!)) {
      out.push({ kind: 'removed', text: a[i++]! })
    } else {
      out.push({ kind: 'added', text: b[j++]! })
    }
  }
  return out
}
