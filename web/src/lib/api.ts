import { Lines } from './ndjson'

/** Problem is a fault of a request: RFC 9457 with what the server adds. */
export interface Fault {
  field?: string
  message?: string
  line?: number
  hint?: string
}

/** ApiError is a refused or failed request, in words for people. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly faults: Fault[] = [],
    readonly body: unknown = undefined,
  ) {
    super(message)
    this.name = 'ApiError'
  }

  /** unauthorised: the server does not know who calls. */
  get unauthorised(): boolean {
    return this.status === 401
  }

  get denied(): boolean {
    return this.status === 403
  }
}

/** credentials returns the token that requests carry, and unauthorised hears of a 401. The session sets both. */
export const hooks: { token: () => string; unauthorised: () => void } = { token: () => '', unauthorised: () => {} }

export type Query = Record<string, string | number | boolean | string[] | undefined>

/** address builds the path of a request. Empty values are left out. */
export function address(path: string, query: Query = {}): string {
  const q = new URLSearchParams()
  for (const [key, value] of Object.entries(query)) {
    if (value === undefined || value === '' || value === false) continue
    for (const v of Array.isArray(value) ? value : [value]) q.append(key, String(v))
  }
  const text = q.toString()
  return text ? `${path}?${text}` : path
}

function headers(more: Record<string, string>): Record<string, string> {
  const token = hooks.token()
  return token ? { ...more, Authorization: `Bearer ${token}` } : more
}

async function failure(r: Response): Promise<ApiError> {
  let body: unknown
  let text = ''
  try {
    text = await r.text()
    body = JSON.parse(text)
  } catch {
    // The body is not JSON: its text is the message.
  }
  const b = (body ?? {}) as Record<string, unknown>
  const message = String(b.detail || b.message || b.title || (body ? '' : text.slice(0, 300)) || r.statusText || `HTTP ${r.status}`)
  const faults = (b.problems ?? b.errors ?? []) as Fault[]
  if (r.status === 401) hooks.unauthorised()
  return new ApiError(r.status, message.trim(), Array.isArray(faults) ? faults : [], body)
}

async function send(method: string, path: string, options: { body?: unknown; signal?: AbortSignal; type?: string; headers?: Record<string, string>; cookies?: boolean } = {}): Promise<Response> {
  const init: RequestInit = {
    method,
    headers: headers({ Accept: 'application/json', ...options.headers }),
    cache: 'no-store',
    credentials: options.cookies ? 'same-origin' : 'omit',
    redirect: 'error',
  }
  if (options.signal) init.signal = options.signal
  if (options.body !== undefined) {
    init.body = typeof options.body === 'string' ? options.body : JSON.stringify(options.body)
    init.headers = { ...(init.headers as Record<string, string>), 'Content-Type': options.type ?? 'application/json' }
  }
  let r: Response
  try {
    r = await fetch(path, init)
  } catch (err) {
    if (options.signal?.aborted) throw err
    throw new ApiError(0, `The server ${location.host} does not answer.`)
  }
  if (!r.ok) throw await failure(r)
  return r
}

async function json<T>(r: Response): Promise<T> {
  const text = await r.text()
  return (text ? JSON.parse(text) : {}) as T
}

/** get reads a message. */
export async function get<T>(path: string, query?: Query, signal?: AbortSignal): Promise<T> {
  return json<T>(await send('GET', address(path, query), signal ? { signal } : {}))
}

/** file reads an object as a file of a content type, with its revision. */
export async function file(path: string, type: string, query: Query, signal: AbortSignal): Promise<{ text: string; revision: string }> {
  const r = await send('GET', address(path, query), { signal, headers: { Accept: type } })
  return { text: await r.text(), revision: (r.headers.get('ETag') ?? '').replace(/^W\/|"/g, '') }
}

/** call sends a message: post('/v1/regions/x:cordon', {cordon: true}). */
export async function call<T>(method: 'POST' | 'PUT' | 'DELETE', path: string, body?: unknown, options: { type?: string; headers?: Record<string, string>; signal?: AbortSignal; cookies?: boolean } = {}): Promise<T> {
  return json<T>(await send(method, path, { ...options, body: body ?? (method === 'DELETE' ? undefined : {}) }))
}

/** Frame is a line of a stream: a message, or the error that ended the stream. */
type Frame<T> = { result?: T; error?: { code?: number; message?: string; httpCode?: number; http_code?: number; status?: number; detail?: string } }

// A browser keeps a page that was left, with its connections, and allows few connections to a server. So the
// streams end with the page. If the user comes back, the page begins again.
const left = new AbortController()
if (typeof window !== 'undefined') {
  window.addEventListener('pagehide', () => left.abort())
  window.addEventListener('pageshow', (e) => { if (e.persisted) location.reload() })
}

/**
 * stream reads newline JSON until the signal, and calls back for each message. It returns when the
 * server ends the stream, and throws if it cannot be opened or breaks. onBytes hears of every chunk.
 */
export async function stream<T>(path: string, query: Query, signal: AbortSignal, onMessage: (m: T) => void, onBytes?: (n: number) => void): Promise<void> {
  const r = await send('GET', address(path, query), { signal: AbortSignal.any([signal, left.signal]), headers: { Accept: 'application/x-ndjson' } })
  const reader = r.body!.getReader()
  const lines = new Lines()
  try {
    for (;;) {
      const { done, value } = await reader.read()
      if (done) return
      onBytes?.(value.length)
      for (const line of lines.push(value)) {
        if (!line.trim()) continue
        const frame = JSON.parse(line) as Frame<T> & T
        if (frame.error) {
          const e = frame.error
          const status = e.httpCode ?? e.http_code ?? e.status ?? (e.code === 16 ? 401 : e.code === 7 ? 403 : 500)
          if (status === 401) hooks.unauthorised()
          throw new ApiError(status, e.message ?? e.detail ?? 'the stream ended with an error', [], frame.error)
        }
        onMessage((frame.result ?? frame) as T)
      }
    }
  } finally {
    reader.cancel().catch(() => {})
  }
}
