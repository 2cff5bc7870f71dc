/** Backoff gives the pauses between attempts: 0.5 s, doubled up to 15 s, with jitter. */
export class Backoff {
  private attempts = 0

  constructor(
    private readonly first = 500,
    private readonly most = 15_000,
    private readonly random: () => number = Math.random,
  ) {}

  reset(): void {
    this.attempts = 0
  }

  /** next returns the next pause in milliseconds, at least half of the nominal one. */
  next(): number {
    const nominal = Math.min(this.most, this.first * 2 ** Math.min(this.attempts++, 20))
    return nominal / 2 + (this.random() * nominal) / 2
  }
}
