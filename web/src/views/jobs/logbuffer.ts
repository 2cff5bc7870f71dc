// The lines of a task's output, as a page shows them: bounded, decoded, in order of arrival.

import { foldCarriageReturns } from './ansi'

/** LogLine is one line of output. */
export interface LogLine {
  /** Number of the line since the buffer began, from 1. */
  n: number
  /** The line is from stderr. */
  stderr: boolean
  text: string
}

/** Greatest number of lines that a page retains. */
export const maxLines = 5000
/** A longer line is divided. */
export const maxLineLength = 4096

interface Source {
  decoder: TextDecoder
  rest: string
}

/** LogBuffer retains the latest lines of two streams. */
export class LogBuffer {
  /** Number of lines that were removed because the buffer was full. */
  dropped = 0
  /** Grows with every change. */
  version = 0

  private list: LogLine[] = []
  private next = 1
  private sources: [Source, Source] = [newSource(), newSource()]

  constructor(readonly limit = maxLines) {}

  /** push adds a piece of output. A character or a line may continue in the next piece. */
  push(stderr: boolean, data: Uint8Array): void {
    const source = this.sources[stderr ? 1 : 0]
    const text = source.rest + source.decoder.decode(data, { stream: true })
    const parts = text.split('\n')
    source.rest = parts.pop() ?? ''
    for (const part of parts) this.add(stderr, part)
    while (source.rest.length > maxLineLength) {
      this.add(stderr, source.rest.slice(0, maxLineLength))
      source.rest = source.rest.slice(maxLineLength)
    }
    this.trim()
    this.version++
  }

  /** end adds the last lines, which have no line end. */
  end(): void {
    for (const stderr of [false, true]) {
      const source = this.sources[stderr ? 1 : 0]
      const rest = source.rest + source.decoder.decode()
      source.rest = ''
      if (rest !== '') this.add(stderr, rest)
    }
    this.trim()
    this.version++
  }

  /** clear removes every line. The numbers continue. */
  clear(): void {
    this.list = []
    this.dropped = 0
    this.version++
  }

  /** lines returns a copy of the retained lines, and of the lines that have no end yet. */
  lines(): LogLine[] {
    const out = this.list.slice()
    let n = this.next
    for (const stderr of [false, true]) {
      const rest = this.sources[stderr ? 1 : 0].rest
      if (rest !== '') out.push({ n: n++, stderr, text: foldCarriageReturns(rest) })
    }
    return out
  }

  private add(stderr: boolean, text: string): void {
    const line = foldCarriageReturns(text.endsWith('\r') ? text.slice(0, -1) : text)
    for (let at = 0; at === 0 || at < line.length; at += maxLineLength) {
      this.list.push({ n: this.next++, stderr, text: line.slice(at, at + maxLineLength) })
    }
    // A burst of short lines is trimmed in large steps, because each step copies the list.
    if (this.list.length >= 2 * this.limit) this.trim()
  }

  private trim(): void {
    const extra = this.list.length - this.limit
    if (extra <= 0) return
    this.list.splice(0, extra)
    this.dropped += extra
  }
}

function newSource(): Source {
  return { decoder: new TextDecoder('utf-8'), rest: '' }
}

/** search returns the positions in lines whose text contains the words, in any case. */
export function search(lines: LogLine[], words: string): number[] {
  const want = words.toLowerCase()
  const out: number[] = []
  if (want === '') return out
  lines.forEach((line, i) => {
    if (line.text.toLowerCase().includes(want)) out.push(i)
  })
  return out
}
