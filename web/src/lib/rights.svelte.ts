import { SvelteMap } from 'svelte/reactivity'
import { get } from './api'

/** Right says if the user may do something, and else why not. */
export interface Right {
  ok: boolean
  why: string
}

/** Place is where an action takes effect. Left out: every namespace, every region. */
export interface Place {
  namespace?: string | undefined
  region?: string | undefined
}

/** Every action of the page: a verb and a kind. */
const actions = [
  'submit job', 'plan job', 'stop job', 'dispatch job', 'logs allocation', 'exec allocation', 'release reservation', 'release spare', 'cancel spare',
  'cordon region', 'drain region', 'lose region', 'cordon node', 'drain node',
] as const
export type Action = (typeof actions)[number]

interface Answer {
  action: string
  allowed?: boolean
  reason?: string
  depends?: boolean
  somewhere?: boolean
}

const yes: Right = { ok: true, why: '' }
/** Bounds the places that the page asks about. */
const most = 500

/**
 * Rights knows what the user may do. One request asks for all actions in a place, and its answers stay until
 * the token changes or the server refuses an action. Until there is an answer, and if there is none, everything
 * counts as allowed: the server decides anyway.
 */
class Rights {
  private readonly known = new SvelteMap<string, Map<string, Answer>>()
  private readonly asked = new Set<string>()
  private abort = new AbortController()
  /** Grows with clear, so that what is shown asks again. */
  private round = $state(0)

  /**
   * may answers for a place. It asks first for all places together: most roles hold everywhere, and need no
   * request for a place. `anywhere`: one allowed place is enough.
   */
  may(action: Action, at: Place = {}, anywhere = false): Right {
    const all = this.answer(action, {})
    if (!all || all.allowed || all.depends || (all.somewhere && anywhere)) return yes
    if (!all.somewhere || (!at.namespace && !at.region)) return { ok: false, why: all.reason ?? '' }
    const here = this.answer(action, at)
    // Somewhere: the place has no region, and some regions are allowed.
    return !here || here.allowed || here.depends || here.somewhere ? yes : { ok: false, why: here.reason ?? '' }
  }

  /** clear forgets the answers. */
  clear(): void {
    this.abort.abort()
    this.abort = new AbortController()
    this.asked.clear()
    this.known.clear()
    this.round++
  }

  private answer(action: Action, at: Place): Answer | undefined {
    void this.round
    const place = `${at.namespace ?? ''}|${at.region ?? ''}`
    if (!this.asked.has(place) && this.asked.size < most) {
      this.asked.add(place)
      void this.ask(place, { ...at })
    }
    return this.known.get(place)?.get(action)
  }

  private async ask(place: string, at: Place): Promise<void> {
    const { signal } = this.abort
    try {
      const { answers = [] } = await get<{ answers?: Answer[] }>('/v1/auth:canI', { actions: [...actions], namespace: at.namespace, region: at.region }, signal)
      if (!signal.aborted) this.known.set(place, new Map(answers.map((a) => [a.action, a])))
    } catch {
      // The server decides when the action is tried.
    }
  }
}

export const rights = new Rights()
