/**
 * Clock is the time for ages and countdowns. It moves once a second while the page is visible. It
 * follows the clock of the server, so a wrong clock of this machine does not matter.
 */
class Clock {
  now = $state(Date.now())
  private offset = 0

  constructor() {
    setInterval(() => this.tick(), 1000)
    document.addEventListener('visibilitychange', () => this.tick())
  }

  /** serverSays takes over a time of the server. */
  serverSays(ms: number): void {
    if (!Number.isFinite(ms)) return
    this.offset = ms - Date.now()
    this.now = ms
  }

  private tick(): void {
    if (!document.hidden) this.now = Date.now() + this.offset
  }
}

export const clock = new Clock()
