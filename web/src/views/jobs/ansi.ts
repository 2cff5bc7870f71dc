// The colours of a program's output, without a terminal.

/** Span is a piece of text with one look. */
export interface Span {
  text: string
  /** Names of CSS classes, such as "ansi-1 ansi-bold". Empty for plain text. */
  look: string
}

interface Look {
  bold: boolean
  dim: boolean
  italic: boolean
  underline: boolean
  colour: number
}

const plain: Look = { bold: false, dim: false, italic: false, underline: false, colour: -1 }

// Escape sequences: CSI, OSC up to its end, and the short ones.
const sequence = /\x1b(?:\[([0-?]*)[ -/]*([@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-Z\\^-~])/g
// Other control characters have no place in a line.
const control = /[\x00-\x08\x0b-\x1f\x7f]/g

/** spans divides a line into pieces of one look. Sequences that are not colours vanish. */
export function spans(line: string): Span[] {
  if (!line.includes('\x1b')) {
    const text = line.replace(control, '')
    return text === '' ? [] : [{ text, look: '' }]
  }
  const out: Span[] = []
  let look = plain
  let at = 0
  const add = (text: string) => {
    const clean = text.replace(control, '')
    if (clean !== '') out.push({ text: clean, look: classes(look) })
  }
  for (const found of line.matchAll(sequence)) {
    add(line.slice(at, found.index))
    at = found.index + found[0].length
    if (found[2] === 'm') look = apply(look, found[1] ?? '')
  }
  add(line.slice(at))
  return out
}

/** plainText returns the line without escape sequences. */
export function plainText(line: string): string {
  return spans(line)
    .map((s) => s.text)
    .join('')
}

/** foldCarriageReturns returns what a terminal would show of a line that is rewritten. */
export function foldCarriageReturns(line: string): string {
  const at = line.lastIndexOf('\r')
  return at < 0 ? line : line.slice(at + 1)
}

function apply(look: Look, parameters: string): Look {
  const codes = parameters === '' ? [0] : parameters.split(/[;:]/).map(Number)
  let next = { ...look }
  for (let i = 0; i < codes.length; i++) {
    const code = codes[i]!
    if (code === 0) next = { ...plain }
    else if (code === 1) next.bold = true
    else if (code === 2) next.dim = true
    else if (code === 3) next.italic = true
    else if (code === 4) next.underline = true
    else if (code === 22) next.bold = next.dim = false
    else if (code === 23) next.italic = false
    else if (code === 24) next.underline = false
    else if (code === 39) next.colour = -1
    else if (code >= 30 && code <= 37) next.colour = code - 30
    else if (code >= 90 && code <= 97) next.colour = code - 90 + 8
    else if (code === 38 || code === 48) {
      // The page has 16 colours. Of the 256 colours it shows the first 16.
      const palette = codes[i + 1] === 5
      if (code === 38 && palette && codes[i + 2]! < 16) next.colour = codes[i + 2]!
      i += palette ? 2 : 4
    }
  }
  return next
}

function classes(look: Look): string {
  const out: string[] = []
  if (look.colour >= 0) out.push(`ansi-${look.colour}`)
  if (look.bold) out.push('ansi-bold')
  if (look.dim) out.push('ansi-dim')
  if (look.italic) out.push('ansi-italic')
  if (look.underline) out.push('ansi-underline')
  return out.join(' ')
}
