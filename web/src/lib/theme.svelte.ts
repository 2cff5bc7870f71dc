const KEY = 'nusa.theme'

export type ThemeChoice = 'auto' | 'light' | 'dark'

const media = matchMedia('(prefers-color-scheme: dark)')

/** Theme is dark or light: the choice of the user, or that of the system. */
class Theme {
  choice = $state<ThemeChoice>('auto')
  private system = $state(media.matches)

  readonly dark = $derived(this.choice === 'dark' || (this.choice === 'auto' && this.system))

  apply(): void {
    const stored = localStorage.getItem(KEY)
    if (stored === 'light' || stored === 'dark') this.choice = stored
    media.addEventListener('change', (e) => (this.system = e.matches))
    this.show()
  }

  set(choice: ThemeChoice): void {
    this.choice = choice
    if (choice === 'auto') localStorage.removeItem(KEY)
    else localStorage.setItem(KEY, choice)
    this.show()
  }

  /** toggle changes between dark and light. */
  toggle(): void {
    this.set(this.dark ? 'light' : 'dark')
  }

  private show(): void {
    if (this.choice === 'auto') document.documentElement.removeAttribute('data-theme')
    else document.documentElement.dataset.theme = this.choice
  }
}

export const theme = new Theme()

const motion = matchMedia('(prefers-reduced-motion: reduce)')

/** calm reports whether the user wants no motion. */
export const calm = (): boolean => motion.matches
