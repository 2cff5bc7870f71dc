/** least is the time before a read after a change: what changed together is read together. */
const least = 400
/** later is the time after which a change is read once more: what follows from it may be stored a little later. */
const later = 2500

/**
 * Reread is data of one view that no stream has. It is read when the view opens, soon after touch, and, while
 * `busy`, every `every` milliseconds. Two reads are at least `gap` apart. A hidden page reads nothing.
 */
export class Reread<T> {
  value = $state.raw<T>()
  error = $state('')
  private abort: AbortController | undefined
  private timer: ReturnType<typeof setTimeout> | undefined
  private due = 0
  private last = 0
  private again = false

  constructor(private readonly options: { read: (signal: AbortSignal) => Promise<T>; gap: (v: T | undefined) => number; busy: (v: T) => boolean; every: number }) {}

  /** open reads, and begins to listen to touch until the returned function is called. */
  open(): () => void {
    this.value = undefined
    this.error = ''
    void this.run()
    const shown = (): void => { if (!document.hidden && !this.timer) void this.run() }
    document.addEventListener('visibilitychange', shown)
    return () => {
      document.removeEventListener('visibilitychange', shown)
      clearTimeout(this.timer)
      this.timer = undefined
      this.abort?.abort()
      this.abort = undefined
    }
  }

  /** touch reads soon: something may have changed. */
  touch(): void {
    if (!this.abort) return
    this.again = true
    this.plan(least)
  }

  /** now reads at once: the user has asked, or changed something. */
  now(): void {
    if (this.abort) void this.run()
  }

  private plan(ms: number): void {
    const at = Math.max(Date.now() + ms, this.last + this.options.gap(this.value))
    if (this.timer && this.due <= at) return
    clearTimeout(this.timer)
    this.due = at
    this.timer = setTimeout(() => {
      this.timer = undefined
      if (!document.hidden) void this.run()
    }, at - Date.now())
  }

  private async run(): Promise<void> {
    this.abort?.abort()
    const { signal } = (this.abort = new AbortController())
    clearTimeout(this.timer)
    this.timer = undefined
    this.last = Date.now()
    try {
      const value = await this.options.read(signal)
      if (signal.aborted) return
      this.value = value
      this.error = ''
    } catch (e) {
      if (signal.aborted) return
      this.error = e instanceof Error ? e.message : String(e)
    }
    if (this.again) {
      this.again = false
      this.plan(later)
    } else if (this.value !== undefined && this.options.busy(this.value)) this.plan(this.options.every)
  }
}
