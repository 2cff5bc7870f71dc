const BASE = import.meta.env.BASE_URL

export type Params = Record<string, string>

function parse(): { view: string; params: Params } {
  const rest = location.pathname.startsWith(BASE) ? location.pathname.slice(BASE.length) : ''
  return { view: rest.split('/')[0] ?? '', params: Object.fromEntries(new URLSearchParams(location.search)) }
}

/** href is the address of a view with parameters. Empty parameters are left out. */
export function href(view: string, params: Record<string, string | number | undefined> = {}): string {
  const q = new URLSearchParams()
  for (const [k, v] of Object.entries(params)) if (v !== undefined && v !== '') q.set(k, String(v))
  const text = q.toString()
  return BASE + view + (text ? `?${text}` : '')
}

/** Route is the view and its parameters in the address: /ui/latency?from=jakarta. */
class Route {
  view = $state('')
  params = $state.raw<Params>({})

  constructor() {
    this.read()
    window.addEventListener('popstate', () => this.read())
    // Links inside the page do not load it again.
    document.addEventListener('click', (e) => {
      if (e.defaultPrevented || e.button !== 0 || e.metaKey || e.ctrlKey || e.shiftKey || e.altKey) return
      const a = (e.target as Element | null)?.closest?.('a')
      if (!a || a.target || a.hasAttribute('download') || a.origin !== location.origin || !a.pathname.startsWith(BASE)) return
      e.preventDefault()
      this.go(a.pathname + a.search)
    })
  }

  private read(): void {
    const { view, params } = parse()
    this.view = view
    this.params = params
  }

  /** go opens an address of href. */
  go(address: string, replace = false): void {
    if (address !== location.pathname + location.search) {
      if (replace) history.replaceState(null, '', address)
      else history.pushState(null, '', address)
    }
    this.read()
  }

  /** set changes parameters of the present view. An empty value removes a parameter. */
  set(params: Record<string, string | number | undefined>, replace = true): void {
    this.go(href(this.view, { ...this.params, ...params }), replace)
  }
}

export const route = new Route()
