import type { JobFilter } from '../../lib/types'
import { parse } from './states'

/** Jobs of one page of the list. */
export const page = 200

/** filterOf returns which jobs the list shows, or undefined if the view shows one job or the editor. */
export function filterOf(params: Record<string, string>): JobFilter | undefined {
  if (parse(params.job ?? '') || params.edit !== undefined) return undefined
  const out: JobFilter = { limit: page }
  if (params.q) out.search = params.q
  if (params.region) out.region = params.region
  if (params.state) out.states = [`JOB_STATE_${params.state.toUpperCase()}`]
  const after = parse(params.after ?? '')
  if (after) out.after = after
  return out
}
