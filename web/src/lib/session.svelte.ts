import { call, hooks } from './api'
import { route } from './router.svelte'

const KEY = 'nusa.token'
/** Set if the page itself got the token, by a login at a provider. */
const OWN = 'nusa.own'
/** Where the user was before the login at a provider. */
const BACK = 'nusa.back'
const BASE = import.meta.env.BASE_URL
/** The address to which a provider sends the browser. */
const DONE = BASE + 'login/done'

/** takeAnswer reads what a provider has put into the address, and removes it from the address bar. */
function takeAnswer(): Record<string, string> | undefined {
  if (location.pathname !== DONE) return undefined
  const q = new URLSearchParams(location.search)
  const back = sessionStorage.getItem(BACK) ?? ''
  sessionStorage.removeItem(BACK)
  route.go(back.startsWith(BASE) ? back : BASE, true)
  const of = (name: string): string => q.get(name) ?? ''
  return { state: of('state'), code: of('code'), error: of('error'), description: of('error_description'), iss: of('iss') }
}

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
  /** The server checks the answer of a provider. */
  checking = $state(false)

  begin(): void {
    const answer = takeAnswer()
    const given = takeToken()
    this.token = given || (sessionStorage.getItem(KEY) ?? '')
    if (given) sessionStorage.setItem(KEY, given)
    hooks.token = () => this.token
    hooks.unauthorised = () => this.lock(this.token ? 'The server does not accept this token. It may have expired.' : '')
    window.addEventListener('hashchange', () => {
      const again = takeToken()
      if (again) this.login(again)
    })
    if (answer) void this.finish(answer)
  }

  /** leave opens the address at which a provider asks the user to log in. */
  async leave(provider: string): Promise<void> {
    const { address } = await call<{ address: string }>('POST', BASE + 'login/begin', { provider }, { cookies: true })
    sessionStorage.setItem(BACK, location.pathname + location.search)
    location.assign(address)
  }

  /** finish gives the server the answer of a provider for a token. */
  private async finish(answer: Record<string, string>): Promise<void> {
    this.lock('')
    this.checking = true
    try {
      this.login((await call<{ token: string }>('POST', BASE + 'login/finish', answer, { cookies: true })).token)
      sessionStorage.setItem(OWN, '1')
    } catch (err) {
      this.why = `The login has failed: ${(err as Error).message}`
    } finally {
      this.checking = false
    }
  }

  login(token: string): void {
    this.token = token.trim()
    sessionStorage.setItem(KEY, this.token)
    sessionStorage.removeItem(OWN)
    this.why = ''
    this.locked = false
  }

  /** logout forgets the token. The server revokes one of a login at this page, which nobody else has. */
  async logout(): Promise<void> {
    // The request has the token, which the page then forgets at once.
    const asked = sessionStorage.getItem(OWN) ? call('POST', '/v1/auth:logout', {}, { signal: AbortSignal.timeout(5000) }) : undefined
    this.lock('You are logged out of this tab.')
    try {
      await asked
    } catch {
      if (this.locked) this.why += ' The server has not revoked the token, which stays valid until its end.'
    }
  }

  lock(why: string): void {
    if (this.locked) return
    this.token = ''
    sessionStorage.removeItem(KEY)
    sessionStorage.removeItem(OWN)
    this.why = why
    this.locked = true
  }
}

export const session = new Session()
