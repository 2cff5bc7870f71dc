// The lines of a long list that are visible. Only these are in the document.

/** Span is a part of a list: from <= i < to. */
export interface Span {
  from: number
  to: number
}

/** span returns the lines that a scrolled box shows, with some lines more on both sides. */
export function span(scroll: number, height: number, row: number, count: number, more = 8): Span {
  const from = Math.max(0, Math.min(count, Math.floor(scroll / row) - more))
  const to = Math.max(from, Math.min(count, Math.ceil((scroll + height) / row) + more))
  return { from, to }
}

/** reveal returns the scroll position at which line i is visible. It changes as little as needed. */
export function reveal(i: number, scroll: number, height: number, row: number): number {
  const top = i * row
  if (top < scroll) return top
  return top + row > scroll + height ? top + row - height : scroll
}

/** atEnd says whether a box shows its end, apart from a part of a line. */
export function atEnd(scroll: number, height: number, all: number, row: number): boolean {
  return scroll + height >= all - row
}
