// Schedules and their runs, in words and shapes.

import type { Shape } from '../../lib/ui/Mark.svelte'
import type { Int64, Timestamp } from '../../lib/types'

export interface JobRun {
  name?: string
  time?: Timestamp
  trigger?: string
  state?: string
  began?: Timestamp
  ended?: Timestamp
  message?: string
}

export interface Schedule {
  job: string
  paused?: boolean
  pauseReason?: string
  waiting?: Timestamp[]
  next?: Timestamp[]
  runs?: JobRun[]
  skipped?: Int64
  skipReason?: string
  missed?: Int64
  failures?: number
  backfill?: number
  runCount?: number
  active?: number
  timeZone?: string
  /** The job is a workflow, so its runs are runs of the workflow. */
  workflow?: boolean
}

const shapes: Record<string, Shape> = { active: 'busy', complete: 'ok', failed: 'lost', stopped: 'cordoned' }

/** word returns "failed" for JOB_RUN_STATE_FAILED, and "manual" for JOB_RUN_TRIGGER_MANUAL. */
export const word = (v: string | undefined): string => (v ?? '').replace(/^JOB_RUN_(STATE|TRIGGER)_/, '').toLowerCase() || 'unknown'

export const shape = (state: string | undefined): Shape => shapes[word(state)] ?? 'defined'

/** page returns the view of a run of a schedule, and its parameters. A server of an earlier version does not say that a
 * job is a workflow: the page of the job leads on then. */
export function page(s: Schedule, namespace: string, run: string | undefined): [string, Record<string, string>] {
  const name = `${namespace}/${run}`
  return s.workflow ? ['workflows', { run: name }] : ['jobs', { job: name }]
}

/** moment writes a time in the zone of a schedule: "Sat 28 Nov, 02:30 CET". An unknown zone is UTC. */
export function moment(ms: number, zone: string | undefined): string {
  const options = { weekday: 'short', day: '2-digit', month: 'short', hour: '2-digit', minute: '2-digit', timeZoneName: 'short' } as const
  try {
    return new Intl.DateTimeFormat('en-GB', { ...options, timeZone: zone || 'UTC' }).format(ms)
  } catch {
    return new Intl.DateTimeFormat('en-GB', { ...options, timeZone: 'UTC' }).format(ms)
  }
}

/** missing sums up which times got no run, and why. */
export function missing(s: Schedule): string {
  const out: string[] = []
  if (Number(s.skipped ?? 0)) out.push(`${s.skipped} skipped, the last one because ${s.skipReason || 'of the rules'}`)
  if (Number(s.missed ?? 0)) out.push(`${s.missed} missed, more than catch_up late`)
  if (s.waiting?.length) out.push(`${s.waiting.length} wait for the end of a run`)
  if (s.backfill) out.push(`${s.backfill} left of the backfill`)
  return out.join('; ')
}
