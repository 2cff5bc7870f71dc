// What a key sends to the program.

export interface Pressed {
  key: string
  ctrlKey: boolean
  altKey: boolean
  metaKey: boolean
  shiftKey: boolean
}

const named: Record<string, string> = {
  Enter: '\r', Backspace: '\x7f', Escape: '\x1b', Tab: '\t', Delete: '\x1b[3~', Insert: '\x1b[2~', PageUp: '\x1b[5~', PageDown: '\x1b[6~',
  F1: '\x1bOP', F2: '\x1bOQ', F3: '\x1bOR', F4: '\x1bOS', F5: '\x1b[15~', F6: '\x1b[17~', F7: '\x1b[18~', F8: '\x1b[19~', F9: '\x1b[20~', F10: '\x1b[21~', F11: '\x1b[23~', F12: '\x1b[24~',
}
const cursor: Record<string, string> = { ArrowUp: 'A', ArrowDown: 'B', ArrowRight: 'C', ArrowLeft: 'D', Home: 'H', End: 'F' }

/** send returns what a key sends. '': the key is the browser's. Ctrl with Shift leaves copy and paste to it. */
export function send(e: Pressed, applicationKeys = false): string {
  if (e.metaKey || (e.ctrlKey && e.shiftKey)) return ''
  const c = cursor[e.key]
  if (c) {
    const modifier = 1 + (e.shiftKey ? 1 : 0) + (e.altKey ? 2 : 0) + (e.ctrlKey ? 4 : 0)
    return modifier > 1 ? `\x1b[1;${modifier}${c}` : `\x1b${applicationKeys ? 'O' : '['}${c}`
  }
  if (e.key === 'Tab' && e.shiftKey) return '\x1b[Z'
  const n = named[e.key]
  if (n) return e.altKey ? '\x1b' + n : n
  if ([...e.key].length !== 1) return ''
  let text = e.key
  if (e.ctrlKey) {
    const code = text.toLowerCase().charCodeAt(0)
    if (code >= 97 && code <= 122) text = String.fromCharCode(code - 96)
    else if (text === ' ' || text === '@') text = '\0'
    else if ('[\\]^_'.includes(text)) text = String.fromCharCode(text.charCodeAt(0) - 64)
    else return ''
  }
  return e.altKey ? '\x1b' + text : text
}

/** pasted returns what a pasted text sends. */
export function pasted(text: string, bracketed: boolean): string {
  const clean = text.replace(/\r?\n/g, '\r').replace(/\x1b/g, '')
  return bracketed ? `\x1b[200~${clean}\x1b[201~` : clean
}
