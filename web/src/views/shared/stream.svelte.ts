import { ApiError, stream, type Query } from '../../lib/api'
import { Backoff } from '../../lib/backoff'
import { session } from '../../lib/session.svelte'

export type LiveStatus = 'connecting' | 'live' | 'ended' | 'disconnected'

/**
 * Live is a stream of one view. It connects again after a fault, and ends with the view. A request
 * that the server refuses is not repeated.
 */
export class Live {
  status = $state<LiveStatus>('connecting')
  error = $state('')
  private abort: AbortController | undefined
  private timer: ReturnType<typeof setTimeout> | undefined
  private backoff = new Backoff()

  /** open begins the stream. query is called for each connection, so a stream can continue. */
  open<T>(path: string, query: () => Query, onMessage: (m: T) => void, again: 'always' | 'faults' = 'always'): void {
    this.close()
    this.status = 'connecting'
    this.error = ''
    void this.run(path, query, onMessage, again)
  }

  /** close ends the stream. */
  close(): void {
    clearTimeout(this.timer)
    this.abort?.abort()
    this.abort = undefined
  }

  private async run<T>(path: string, query: () => Query, onMessage: (m: T) => void, again: 'always' | 'faults'): Promise<void> {
    const abort = (this.abort = new AbortController())
    let why = ''
    let final = false
    // A stream without messages is live too: the server has accepted the request.
    const opened = setTimeout(() => {
      if (!abort.signal.aborted && this.status === 'connecting') this.status = 'live'
    }, 1500)
    try {
      await stream<T>(path, query(), abort.signal, (m) => {
        if (abort.signal.aborted) return
        this.status = 'live'
        this.error = ''
        this.backoff.reset()
        onMessage(m)
      })
      final = again === 'faults'
    } catch (err) {
      why = err instanceof Error ? err.message : String(err)
      final = err instanceof ApiError && err.status >= 400 && err.status < 500 && err.status !== 429
    } finally {
      clearTimeout(opened)
    }
    if (abort.signal.aborted || session.locked) return
    this.error = why
    if (final) {
      this.status = why === '' ? 'ended' : 'disconnected'
      return
    }
    this.status = 'disconnected'
    this.timer = setTimeout(() => void this.run(path, query, onMessage, again), this.backoff.next())
  }
}
