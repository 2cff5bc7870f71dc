import { hooks } from './api'

const KEY = 'nusa.token'

/** takeToken reads the token of the fragment #token=…, and removes it from the address bar. */
function takeToken(): string {
  const match = /[#&]token=([^&]+)/.exec(location.hash)
  if (!match) return ''
  history.replaceState(history.state, '', location.pathname + location.search)
  return decodeURIComponent(match[1]!)
}

/** Session knows the credential of this tab. It ends with the tab. */
class Session {
  token = $state('')
  /** The server has refused the credential, or there is none: the page shows the login only. */
  locked = $state(false)
  /** Why the login is shown again. */
  why = $state('')

  begin(): void {
    const given = takeToken()
    this.token = given || (sessionStorage.getItem(KEY) ?? '')
    if (given) sessionStorage.setItem(KEY, given)
    hooks.token = () => this.token
    hooks.unauthorised = () => this.lock(this.token ? 'The server does not accept this token. It may have expired.' : '')
    window.addEventListener('hashchange', () => {
      const again = takeToken()
      if (again) this.login(again)
    })
  }

  login(token: string): void {
    this.token = token.trim()
    sessionStorage.setItem(KEY, this.token)
    this.why = ''
    this.locked = false
  }

  lock(why: string): void {
    if (this.locked) return
    this.token = ''
    sessionStorage.removeItem(KEY)
    this.why = why
    this.locked = true
  }
}

export const session = new Session()
