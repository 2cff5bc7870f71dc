/** Lines cuts a stream of bytes into lines. A line that is longer than the bound is an error. */
export class Lines {
  private decoder = new TextDecoder()
  private parts: string[] = []
  private length = 0

  constructor(private readonly most = 64 << 20) {}

  /** push returns the lines that are complete with these bytes. */
  push(bytes: Uint8Array): string[] {
    const text = this.decoder.decode(bytes, { stream: true })
    const pieces = text.split('\n')
    const last = pieces.pop()!
    const out: string[] = []
    for (const piece of pieces) {
      this.parts.push(piece)
      out.push(this.parts.join(''))
      this.parts = []
      this.length = 0
    }
    if (last) {
      this.parts.push(last)
      this.length += last.length
      if (this.length > this.most) throw new Error(`a line of the stream is longer than ${this.most} characters`)
    }
    return out
  }
}
