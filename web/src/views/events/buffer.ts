// The latest events of a stream, bounded, with gaps and a pause.

import { matches, noFilter } from './filter'

/** Event is nusa.v1.Event as JSON. Numbers of 64 bits are texts. */
export interface Event {
  token?: string
  reset?: boolean
  time?: string
  type?: string
  subject?: string
  message?: string
  number?: string
  log?: string
  namespace?: string
  region?: string
  missed?: string
}

/** Row is a line of the list: an event, or a gap before the next event. */
export interface Row {
  /** Position since the list began, from 1. It identifies the row. */
  n: number
  event: Event
  gap: boolean
}

/** Greatest number of events that a page retains. */
export const maxEvents = 2000

/** EventBuffer retains the latest events, the newest last. */
export class EventBuffer {
  /** Token of the latest event, from which a new stream continues. */
  token = ''
  /** Number of the latest durable event. */
  number = ''
  /** Number of rows that were removed because the list was full. */
  dropped = 0

  private rows: Row[] = []
  private next = 1
  private frozen: Row[] | undefined
  private frozenAt = 0

  constructor(readonly limit = maxEvents) {}

  /** push adds an event. The first event of the list is no gap, even if it is a reset. */
  push(event: Event): void {
    if (event.token) this.token = event.token
    if (event.number && event.number !== '0') this.number = event.number
    if (event.reset) {
      // A stream without a token begins with a reset if it asked for older events than the
      // server has. Nothing of the list is missing then.
      if (this.rows.length > 0) this.add(event, true)
      return
    }
    this.add(event, false)
  }

  /** pause stops the list that visible returns. The stream continues. */
  pause(): void {
    if (this.frozen) return
    this.frozen = this.rows.slice()
    this.frozenAt = this.next
  }

  resume(): void {
    this.frozen = undefined
  }

  get paused(): boolean {
    return this.frozen !== undefined
  }

  /** waiting returns the number of rows that came since the pause. */
  waiting(): number {
    return this.frozen ? this.next - this.frozenAt : 0
  }

  /** clear removes every row. The stream continues after the latest event. */
  clear(): void {
    this.rows = []
    this.dropped = 0
    if (this.frozen) {
      this.frozen = []
      this.frozenAt = this.next
    }
  }

  /** restart forgets everything, also the place in the stream. */
  restart(): void {
    this.clear()
    this.token = ''
    this.number = ''
  }

  /** visible returns the rows that contain the text, the newest first. Gaps are always shown. */
  visible(text = ''): Row[] {
    const rows = this.frozen ?? this.rows
    const filter = { ...noFilter, text }
    return (text === '' ? rows.slice() : rows.filter((r) => r.gap || matches(filter, r.event))).reverse()
  }

  private add(event: Event, gap: boolean): void {
    this.rows.push({ n: this.next++, event, gap })
    const extra = this.rows.length - this.limit
    if (extra > 0) {
      this.rows.splice(0, extra)
      this.dropped += extra
    }
  }
}

/** gapText says what a gap means. */
export function gapText(event: Event): string {
  const missed = Number(event.missed ?? 0)
  if (missed > 0) {
    return `Gap: ${missed.toLocaleString('en')} durable event${missed === 1 ? '' : 's'} no longer retained`
  }
  return 'Gap: events between these lines are lost'
}
