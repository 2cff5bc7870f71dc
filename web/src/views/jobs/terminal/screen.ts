// What a terminal of the kind of xterm shows: the escape sequences that shells, editors and pagers use.

import { blank, plain, sgr, width, type Look, type Row } from './cells'

/** Greatest number of lines above the screen that are retained. */
export const maxScrollback = 1000
/** A longer escape sequence is dropped. */
const maxSequence = 4096

interface Saved {
  x: number
  y: number
  look: Look
}

/** Screen is the state of a terminal. It is pure: bytes come in, rows and answers come out. */
export class Screen {
  rows: Row[]
  /** Lines that have left the screen at its top. */
  scrollback: Row[] = []
  x = 0
  y = 0
  cursor = true
  /** The keys of the cursor send other sequences. */
  applicationKeys = false
  bracketedPaste = false
  title = ''
  /** What the terminal answers to the program. */
  answers = ''

  private look: Look = plain
  private top = 0
  private bottom: number
  private wrap = false
  private autowrap = true
  private insert = false
  private graphics = false
  private saved: Saved = { x: 0, y: 0, look: plain }
  private other: { rows: Row[]; saved: Saved } | undefined
  private state: 'text' | 'esc' | 'csi' | 'osc' | 'charset' = 'text'
  private sequence = ''
  private decoder = new TextDecoder()

  constructor(public columns: number, public lines: number) {
    this.rows = Array.from({ length: lines }, () => blank(columns))
    this.bottom = lines - 1
  }

  /** write takes output of the program. A sequence or a character may continue in the next piece. */
  write(data: Uint8Array): void {
    for (const ch of this.decoder.decode(data, { stream: true })) this.take(ch)
  }

  /** resize changes the size. Rows are cut, or grow with blanks. */
  resize(columns: number, lines: number): void {
    const fit = (rows: Row[], keep: boolean): Row[] => {
      const all = rows.map((r) => (r.length >= columns ? r.slice(0, columns) : [...r, ...blank(columns - r.length)]))
      while (all.length > lines) {
        if (keep && this.y > 0) {
          this.push(all.shift()!)
          this.y--
        } else all.pop()
      }
      while (all.length < lines) all.push(blank(columns))
      return all
    }
    this.rows = fit(this.rows, !this.other)
    if (this.other) this.other.rows = fit(this.other.rows, false)
    this.columns = columns
    this.lines = lines
    this.top = 0
    this.bottom = lines - 1
    this.move(this.x, this.y)
  }

  private take(ch: string): void {
    const code = ch.codePointAt(0)!
    if (this.state === 'osc') return this.osc(ch, code)
    if (code === 0x1b) {
      this.state = 'esc'
      this.sequence = ''
      return
    }
    if (code === 0x18 || code === 0x1a) {
      this.state = 'text'
      return
    }
    if (code < 0x20 || code === 0x7f) return this.control(code)
    switch (this.state) {
      case 'text':
        return this.print(ch, code)
      case 'charset':
        this.graphics = ch === '0'
        this.state = 'text'
        return
      case 'esc':
        return this.escape(ch)
      case 'csi':
        this.sequence += ch
        if (code >= 0x40 && code <= 0x7e) {
          this.state = 'text'
          this.csi(this.sequence)
        } else if (this.sequence.length > maxSequence) this.state = 'text'
    }
  }

  private control(code: number): void {
    if (code === 8) this.move(this.x - 1, this.y)
    else if (code === 9) this.move(Math.min(this.columns - 1, (this.x + 8) & ~7), this.y)
    else if (code === 10 || code === 11 || code === 12) this.feed()
    else if (code === 13) this.move(0, this.y)
  }

  private osc(ch: string, code: number): void {
    if (code !== 7 && !this.sequence.endsWith('\x1b')) {
      if (this.sequence.length < maxSequence) this.sequence += ch
      else if (code === 0x1b || code < 0x20) this.state = 'text'
      return
    }
    this.state = 'text'
    const title = /^[02];([^\x1b]*)/.exec(this.sequence)
    if (title) this.title = title[1]!.slice(0, 200)
  }

  private print(ch: string, code: number): void {
    const n = width(code)
    if (n === 0) {
      const before = this.rows[this.y]?.[Math.max(0, this.x - 1)]
      if (before && before.ch.length < 16) before.ch += ch
      return
    }
    if (this.graphics) ch = line[ch] ?? ch
    if (this.wrap || this.x + n > this.columns) {
      if (this.autowrap) {
        this.x = 0
        this.feed()
      } else this.x = this.columns - n
    }
    const row = this.rows[this.y]!
    if (this.insert) {
      row.splice(this.x, 0, ...blank(n))
      row.length = this.columns
    }
    row[this.x] = { ch, look: this.look }
    if (n === 2 && this.x + 1 < this.columns) row[this.x + 1] = { ch: '', look: this.look }
    this.x += n
    this.wrap = this.x >= this.columns
    if (this.wrap) this.x = this.columns - 1
  }

  private move(x: number, y: number): void {
    this.x = Math.max(0, Math.min(this.columns - 1, x))
    this.y = Math.max(0, Math.min(this.lines - 1, y))
    this.wrap = false
  }

  private feed(): void {
    this.wrap = false
    if (this.y === this.bottom) this.scroll(1)
    else if (this.y < this.lines - 1) this.y++
  }

  private push(row: Row): void {
    this.scrollback.push(row)
    if (this.scrollback.length > maxScrollback) this.scrollback.shift()
  }

  // The rows between top and bottom move up by n, or down by -n.
  private scroll(n: number, from = this.top): void {
    const empty = (): Row => blank(this.columns, { ...plain, bg: this.look.bg })
    for (let i = 0; i < Math.min(Math.abs(n), this.lines); i++) {
      if (n > 0) {
        const [row] = this.rows.splice(from, 1)
        if (from === 0 && !this.other && row) this.push(row)
        this.rows.splice(this.bottom, 0, empty())
      } else {
        this.rows.splice(this.bottom, 1)
        this.rows.splice(from, 0, empty())
      }
    }
  }

  private escape(ch: string): void {
    this.state = 'text'
    if (ch === '[') this.state = 'csi'
    else if (ch === ']' || ch === 'P' || ch === '_' || ch === '^') this.state = 'osc'
    else if ('()*+'.includes(ch)) this.state = 'charset'
    else if (ch === '7') this.saved = { x: this.x, y: this.y, look: this.look }
    else if (ch === '8') this.restore()
    else if (ch === 'D') this.feed()
    else if (ch === 'E') {
      this.move(0, this.y)
      this.feed()
    } else if (ch === 'M') {
      if (this.y === this.top) this.scroll(-1)
      else this.move(this.x, this.y - 1)
    } else if (ch === 'c') this.reset()
  }

  private restore(): void {
    this.move(this.saved.x, this.saved.y)
    this.look = this.saved.look
  }

  private reset(): void {
    this.rows = Array.from({ length: this.lines }, () => blank(this.columns))
    Object.assign(this, { x: 0, y: 0, look: plain, top: 0, bottom: this.lines - 1, cursor: true, autowrap: true, insert: false, graphics: false, applicationKeys: false, other: undefined })
  }

  private csi(sequence: string): void {
    const found = /^([?>=]?)([\d;:]*)[ !"$']*(.)$/.exec(sequence)
    if (!found) return
    const [, mark, text, final] = found
    const given = text === '' ? [] : text!.split(/[;:]/).map((v) => Math.min(9999, Number(v) || 0))
    const n = Math.max(1, given[0] ?? 1)
    if (mark === '?' && (final === 'h' || final === 'l')) return given.forEach((m) => this.mode(m, final === 'h'))
    if (mark) return
    switch (final) {
      case 'A': return this.move(this.x, Math.max(this.y >= this.top ? this.top : 0, this.y - n))
      case 'B': return this.move(this.x, Math.min(this.y <= this.bottom ? this.bottom : this.lines, this.y + n))
      case 'C': return this.move(this.x + n, this.y)
      case 'D': return this.move(this.x - n, this.y)
      case 'E': return this.move(0, this.y + n)
      case 'F': return this.move(0, this.y - n)
      case 'G': case '`': return this.move(n - 1, this.y)
      case 'd': return this.move(this.x, n - 1)
      case 'H': case 'f': return this.move(Math.max(1, given[1] ?? 1) - 1, n - 1)
      case 'J': return this.erase(given[0] ?? 0)
      case 'K': return this.eraseLine(given[0] ?? 0)
      case 'L': if (this.y >= this.top && this.y <= this.bottom) this.scroll(-n, this.y); return
      case 'M': if (this.y >= this.top && this.y <= this.bottom) this.delete(n); return
      case 'P': return this.shift(n)
      case '@': return this.shift(-n)
      case 'X': return this.fill(this.y, this.x, this.x + n)
      case 'S': return this.scroll(n)
      case 'T': return this.scroll(-n)
      case 'm': this.look = sgr(this.look, given.length ? given : [0]); return
      case 'r':
        this.top = Math.min(this.lines - 1, n - 1)
        this.bottom = Math.min(this.lines, given[1] || this.lines) - 1
        if (this.bottom <= this.top) [this.top, this.bottom] = [0, this.lines - 1]
        return this.move(0, 0)
      case 's': this.saved = { x: this.x, y: this.y, look: this.look }; return
      case 'u': return this.restore()
      case 'h': case 'l': if (given[0] === 4) this.insert = final === 'h'; return
      case 'n': if (given[0] === 6) this.answers += `\x1b[${this.y + 1};${this.x + 1}R`; else if (given[0] === 5) this.answers += '\x1b[0n'; return
      case 'c': this.answers += '\x1b[?1;2c'
    }
  }

  // Lines that are deleted do not go above the screen.
  private delete(n: number): void {
    for (let i = 0; i < Math.min(n, this.lines); i++) {
      this.rows.splice(this.y, 1)
      this.rows.splice(this.bottom, 0, blank(this.columns))
    }
  }

  private mode(m: number, on: boolean): void {
    if (m === 1) this.applicationKeys = on
    else if (m === 7) this.autowrap = on
    else if (m === 25) this.cursor = on
    else if (m === 2004) this.bracketedPaste = on
    else if (m === 47 || m === 1047 || m === 1049) this.alternate(on)
  }

  private alternate(on: boolean): void {
    if (on && !this.other) {
      this.other = { rows: this.rows, saved: { x: this.x, y: this.y, look: this.look } }
      this.rows = Array.from({ length: this.lines }, () => blank(this.columns))
    } else if (!on && this.other) {
      this.rows = this.other.rows
      this.saved = this.other.saved
      this.other = undefined
      this.restore()
    }
  }

  private fill(y: number, from: number, to: number): void {
    const row = this.rows[y]
    const look = { ...plain, bg: this.look.bg }
    for (let x = from; row && x < Math.min(to, this.columns); x++) row[x] = { ch: ' ', look }
  }

  private erase(how: number): void {
    if (how === 0) {
      this.fill(this.y, this.x, this.columns)
      for (let y = this.y + 1; y < this.lines; y++) this.fill(y, 0, this.columns)
    } else if (how === 1) {
      for (let y = 0; y < this.y; y++) this.fill(y, 0, this.columns)
      this.fill(this.y, 0, this.x + 1)
    } else {
      for (let y = 0; y < this.lines; y++) this.fill(y, 0, this.columns)
      if (how === 3) this.scrollback = []
    }
  }

  private eraseLine(how: number): void {
    this.fill(this.y, how === 0 ? this.x : 0, how === 1 ? this.x + 1 : this.columns)
  }

  // n > 0 deletes characters at the cursor, n < 0 inserts blanks.
  private shift(n: number): void {
    const row = this.rows[this.y]!
    if (n > 0) {
      row.splice(this.x, n)
      while (row.length < this.columns) row.push({ ch: ' ', look: plain })
    } else {
      row.splice(this.x, 0, ...blank(Math.min(-n, this.columns)))
      row.length = this.columns
    }
  }
}

// Line drawing characters of the DEC special graphics set.
const line: Record<string, string> = {
  j: '┘', k: '┐', l: '┌', m: '└', n: '┼', q: '─', t: '├', u: '┤', v: '┴', w: '┬', x: '│', a: '▒', '`': '◆', o: '⎺', s: '⎽', '~': '·',
}
