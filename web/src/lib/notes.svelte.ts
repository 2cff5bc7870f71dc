/** Note is a short message about what a user did. */
export interface Note {
  id: number
  text: string
  bad: boolean
}

/** Notes are at most four. Good ones disappear after six seconds, bad ones when they are closed. */
class Notes {
  list = $state.raw<Note[]>([])
  private next = 1

  add(text: string, bad = false): void {
    const note = { id: this.next++, text, bad }
    this.list = [...this.list.slice(-3), note]
    if (!bad) setTimeout(() => this.close(note.id), 6000)
  }

  close(id: number): void {
    this.list = this.list.filter((n) => n.id !== id)
  }
}

export const notes = new Notes()
