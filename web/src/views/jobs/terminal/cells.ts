// Cells of a terminal's screen, and how they look.

/** Look is how a character is shown. Colours: -1 default, 0..255 palette, and above 255 + 1 << 24 for RGB. */
export interface Look {
  fg: number
  bg: number
  bold: boolean
  dim: boolean
  italic: boolean
  underline: boolean
  inverse: boolean
}

export const plain: Look = { fg: -1, bg: -1, bold: false, dim: false, italic: false, underline: false, inverse: false }

/** Cell is a character with its look. The right half of a wide character has the text ''. */
export interface Cell {
  ch: string
  look: Look
}

export type Row = Cell[]

export const RGB = 1 << 24

/** blank returns an empty row. */
export const blank = (columns: number, look = plain): Row => Array.from({ length: columns }, () => ({ ch: ' ', look }))

/** width returns the number of cells of a character: 0, 1 or 2. */
export function width(code: number): number {
  if (code < 0x300) return 1
  if (code <= 0x36f || code === 0x200d || (code >= 0xfe00 && code <= 0xfe0f)) return 0
  const wide = (code >= 0x1100 && code <= 0x115f) || (code >= 0x2e80 && code <= 0xa4cf) || (code >= 0xac00 && code <= 0xd7a3) ||
    (code >= 0xf900 && code <= 0xfaff) || (code >= 0xfe30 && code <= 0xfe6f) || (code >= 0xff00 && code <= 0xff60) ||
    (code >= 0xffe0 && code <= 0xffe6) || (code >= 0x1f300 && code <= 0x1faff) || (code >= 0x20000 && code <= 0x3fffd)
  return wide ? 2 : 1
}

/** sgr applies the parameters of "select graphic rendition". */
export function sgr(look: Look, codes: number[]): Look {
  let next = { ...look }
  for (let i = 0; i < codes.length; i++) {
    const c = codes[i]!
    if (c === 0) next = { ...plain }
    else if (c === 1) next.bold = true
    else if (c === 2) next.dim = true
    else if (c === 3) next.italic = true
    else if (c === 4) next.underline = true
    else if (c === 7) next.inverse = true
    else if (c === 22) next.bold = next.dim = false
    else if (c === 23) next.italic = false
    else if (c === 24) next.underline = false
    else if (c === 27) next.inverse = false
    else if (c >= 30 && c <= 37) next.fg = c - 30
    else if (c === 39) next.fg = -1
    else if (c >= 40 && c <= 47) next.bg = c - 40
    else if (c === 49) next.bg = -1
    else if (c >= 90 && c <= 97) next.fg = c - 82
    else if (c >= 100 && c <= 107) next.bg = c - 92
    else if (c === 38 || c === 48) {
      const colour = codes[i + 1] === 5 ? (codes[i + 2] ?? 0) & 255 : codes[i + 1] === 2 ? RGB | (((codes[i + 2] ?? 0) & 255) << 16) | (((codes[i + 3] ?? 0) & 255) << 8) | ((codes[i + 4] ?? 0) & 255) : -1
      if (c === 38) next.fg = colour
      else next.bg = colour
      i += codes[i + 1] === 5 ? 2 : 4
    }
  }
  return next
}

/** colour writes a colour for CSS, or '' for the default. The first 16 are the theme's. */
export function colour(c: number): string {
  if (c < 0) return ''
  if (c & RGB) return `rgb(${(c >> 16) & 255} ${(c >> 8) & 255} ${c & 255})`
  if (c < 16) return `var(--ansi-${c})`
  if (c >= 232) return `rgb(${8 + (c - 232) * 10} ${8 + (c - 232) * 10} ${8 + (c - 232) * 10})`
  const step = (v: number): number => (v === 0 ? 0 : 55 + v * 40)
  const n = c - 16
  return `rgb(${step(Math.floor(n / 36))} ${step(Math.floor(n / 6) % 6)} ${step(n % 6)})`
}

/** Run is text of one look in a row. */
export interface Run {
  text: string
  look: Look
  /** Position of its first cell. */
  at: number
}

/** runs returns a row as few pieces. The cell at `cursor` is a piece of its own. */
export function runs(row: Row, cursor = -1): Run[] {
  const out: Run[] = []
  row.forEach((c, i) => {
    const last = out[out.length - 1]
    if (last && last.look === c.look && i !== cursor && i - 1 !== cursor) last.text += c.ch
    else out.push({ text: c.ch, look: c.look, at: i })
  })
  return out
}
