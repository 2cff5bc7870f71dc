import type { Palette } from './draw'

const names: Record<Exclude<keyof Palette, 'font'>, string> = {
  page: '--bg',
  panel: '--surface',
  line: '--line',
  text: '--text',
  quiet: '--muted',
  accent: '--accent',
  focus: '--accent',
  good: '--ok',
  warn: '--warn',
  bad: '--bad',
  off: '--off',
  track: '--sunken',
}

/** palette resolves the colours of the present theme for a canvas. */
export function palette(at: HTMLElement): Palette {
  const probe = document.createElement('span')
  probe.hidden = true
  at.append(probe)
  const out: Record<string, string> = { font: getComputedStyle(at).fontFamily }
  for (const [key, name] of Object.entries(names)) {
    probe.style.color = `var(${name})`
    out[key] = getComputedStyle(probe).color
  }
  probe.remove()
  return out as unknown as Palette
}
