// Job files in the editor: colours, and the line of a field. This is not a YAML parser. The
// server reads the file; the page only has to find places in a file of the usual form.

/** Token is a piece of a line with one colour. */
export interface Token {
  text: string
  kind: '' | 'key' | 'string' | 'number' | 'comment' | 'mark'
}

const scalar = /^(?:true|false|null|~|-?\d[\d._]*(?:m|s|ms|h|[KMGT]i?B?|%)?)$/

/** tokens divides a line of YAML into coloured pieces. inBlock: the line is part of a block text. */
export function tokens(line: string, inBlock = false): Token[] {
  if (inBlock) return [{ text: line, kind: 'string' }]
  const out: Token[] = []
  const found = /^(\s*(?:- +)*)(?:("[^"]*"|'[^']*'|[^\s#:{}[\],"'&*!|>][^#:{}[\],]*?)(\s*:)(?=\s|$))?/.exec(line)!
  if (found[1]) out.push({ text: found[1], kind: found[1].includes('-') ? 'mark' : '' })
  if (found[2]) out.push({ text: found[2], kind: 'key' }, { text: found[3]!, kind: 'mark' })
  values(line.slice(found[0].length), out)
  return out
}

const piece = /("(?:[^"\\]|\\.)*"?|'(?:[^']|'')*'?)|((?:^|\s)#.*$)|([{}[\],|>&*])|([^\s{}[\],"'#:]+)(\s*:(?=\s|$))?|(\s+|.)/g

function values(text: string, out: Token[]): void {
  for (const m of text.matchAll(piece)) {
    if (m[1] !== undefined) out.push({ text: m[1], kind: 'string' })
    else if (m[2] !== undefined) out.push({ text: m[2], kind: 'comment' })
    else if (m[3] !== undefined) out.push({ text: m[3], kind: 'mark' })
    else if (m[4] !== undefined && m[5] !== undefined) out.push({ text: m[4], kind: 'key' }, { text: m[5], kind: 'mark' })
    else if (m[4] !== undefined) out.push({ text: m[4], kind: scalar.test(m[4]) ? 'number' : '' })
    else out.push({ text: m[0], kind: '' })
  }
}

/** Place is the position of a key or of an item of a list. */
interface Place {
  /** Column of the key. */
  indent: number
  key: string
  /** Column of the dash of an item, or -1. */
  dash: number
}

/** blocks says for each line if the line is part of a block text (| or >). */
export function blocks(source: string): boolean[] {
  let end = -1
  return source.split('\n').map((line) => {
    const indent = line.search(/\S/)
    if (end >= 0 && (indent < 0 || indent > end)) return true
    end = -1
    if (/(?:^|[\s:])[|>][+-]?\d*\s*(?:#.*)?$/.test(line) && /[:-]\s+[|>]/.test(line)) end = Math.max(indent, 0)
    return false
  })
}

/**
 * lineOf returns the line of a field such as "groups.web.tasks.main.driver" or
 * "groups.web.constraints[1]", from 1. If the file does not have the field, it returns the line
 * of the nearest field above. 0: nothing is found.
 */
export function lineOf(source: string, field: string): number {
  if (field === '') return 0
  const want = parts(field)
  const lines = places(source)
  let best = 0
  let depth = 0
  const path: { indent: number; name: string }[] = []
  const counts = new Map<string, number>()
  lines.forEach((at, i) => {
    if (!at) return
    const leave = (from: number) => {
      while (path.length > 0 && path[path.length - 1]!.indent >= from) path.pop()
    }
    if (at.dash < 0) {
      leave(at.indent)
    } else {
      // An item lies deeper than its key, even if its dash stands below the key's first letter.
      leave(at.dash + 0.5)
      const above = path.map((x) => x.name).join('.')
      const n = counts.get(above) ?? 0
      counts.set(above, n + 1)
      path.push({ indent: at.dash + 0.5, name: `[${n}]` })
      check(i)
      if (at.key === '') return
    }
    path.push({ indent: at.indent, name: at.key })
    check(i)
  })
  return best

  function check(i: number): void {
    if (path.length <= depth || path.length > want.length) return
    if (path.every((x, k) => x.name === want[k])) {
      depth = path.length
      best = i + 1
    }
  }
}

// "groups.web.near[0].max_rtt" has the parts groups, web, near, [0], max_rtt.
function parts(field: string): string[] {
  return field
    .replace(/\[/g, '.[')
    .split('.')
    .filter((p) => p !== '')
    .map((p) => p.replace(/^["']|["']$/g, ''))
}

function places(source: string): (Place | undefined)[] {
  const inBlock = blocks(source)
  return source.split('\n').map((line, i) => {
    if (inBlock[i] || /^\s*(#|$|---)/.test(line)) return undefined
    const found = /^(\s*)(- +)?(?:("[^"]*"|'[^']*'|[^\s#:{}[\],"'][^#:{}[\],]*?)\s*:(?=\s|$))?/.exec(line)!
    const dash = found[2] !== undefined || /^\s*-$/.test(line)
    if (!dash && found[3] === undefined) return undefined
    const column = found[1]!.length
    return {
      indent: column + (found[2] ?? '').length,
      key: (found[3] ?? '').replace(/^["']|["']$/g, ''),
      dash: dash ? column : -1,
    }
  })
}

/** newLineIndent returns the spaces that a new line after this line begins with. */
export function newLineIndent(before: string): string {
  const indent = /^\s*/.exec(before)![0]
  if (/:\s*$/.test(before) || /[:-]\s+[|>][+-]?\s*$/.test(before)) return indent + '  '
  return indent
}
