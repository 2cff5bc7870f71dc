const KEY = 'nusa.keys'

/** Key is a shortcut: "g f" is two keys one after the other. */
export interface Key {
  keys: string
  text: string
  run: () => void
}

/** Keys are the shortcuts of the page. The user can turn them off. */
class Keys {
  list = $state.raw<Key[]>([])
  on = $state(localStorage.getItem(KEY) !== 'off')
  private first = ''
  private at = 0

  /** add adds shortcuts until the returned function is called. */
  add(keys: Key[]): () => void {
    this.list = [...this.list, ...keys]
    return () => (this.list = this.list.filter((k) => !keys.includes(k)))
  }

  turn(on: boolean): void {
    this.on = on
    if (on) localStorage.removeItem(KEY)
    else localStorage.setItem(KEY, 'off')
  }

  /** press handles a key of the window. */
  press(e: KeyboardEvent): void {
    if (!this.on || e.defaultPrevented || e.ctrlKey || e.metaKey || e.altKey) return
    const target = e.target as HTMLElement
    if (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) || document.querySelector('dialog[open]')) return
    const both = this.first && e.timeStamp - this.at < 1500 ? `${this.first} ${e.key}` : ''
    const found = this.list.find((k) => k.keys === both) ?? this.list.find((k) => k.keys === e.key)
    this.first = found ? '' : e.key
    this.at = e.timeStamp
    if (!found) return
    e.preventDefault()
    found.run()
  }
}

export const keys = new Keys()
