// Runs of workflows and their steps, in words and shapes.

import type { Shape } from '../../lib/ui/Mark.svelte'
import type { Timestamp } from '../../lib/types'

export interface Run {
  namespace?: string
  name?: string
  workflow?: string
  state?: string
  message?: string
  began?: Timestamp
  ended?: Timestamp
  parameters?: Record<string, string>
  region?: string
  steps?: number
  stepsEnded?: number
  active?: number
  stepsFailed?: number
  /** The time of the schedule that began the run. */
  time?: Timestamp
  /** The run, and its step, that began this run. */
  parent?: string
  parentStep?: string
}

/** Instance is a step, or one item of a step with foreach. */
export interface Instance {
  step?: string
  index?: number
  item?: string
  state?: string
  message?: string
  attempts?: number
  job?: string
  /** Instead of a job, the run of another workflow. */
  run?: string
  output?: string
  began?: Timestamp
  ended?: Timestamp
  until?: Timestamp
}

/** Step is one step of a graph. */
export interface Step {
  name: string
  after?: string[]
  depends?: string
  state?: string
  items?: number
  itemsEnded?: number
  onExit?: boolean
  workflow?: string
}

/** word returns "timed out" for STEP_STATE_TIMED_OUT, and "running" for WORKFLOW_RUN_STATE_RUNNING. */
export const word = (state: string | undefined): string => (state ?? '').replace(/^(WORKFLOW_RUN|STEP)_STATE_/, '').toLowerCase().replace(/_/g, ' ') || 'unknown'

/** The states of runs in the order of the filter. */
export const runStates = ['running', 'canceling', 'exiting', 'resetting', 'succeeded', 'failed', 'canceled']

/** The states of steps. Of several steps the first one of their states stands for all. */
export const stepStates = ['failed', 'lost', 'timed out', 'approval', 'stopping', 'backoff', 'running', 'pending', 'canceled', 'succeeded', 'skipped']

const shapes: Record<string, Shape> = {
  running: 'busy', resetting: 'busy', canceling: 'draining', exiting: 'draining', stopping: 'draining', succeeded: 'ok', failed: 'lost', 'timed out': 'lost',
  lost: 'lost', canceled: 'banned', approval: 'warn', backoff: 'warn', pending: 'defined', skipped: 'cordoned',
}

/** shape is the shape of a word. */
export const shape = (w: string): Shape => shapes[w] ?? 'defined'

/** ended says if a run has ended. */
export const ended = (run: Run): boolean => ['succeeded', 'failed', 'canceled'].includes(word(run.state))

/** name is the name of a run with its namespace: "default/etl.3f9a01bc". */
export const name = (run: Run): string => `${run.namespace}/${run.name}`

/** newest sorts runs by their beginning, the newest first. */
export const newest = (runs: Run[]): Run[] => [...runs].sort((a, b) => ((a.began ?? '') < (b.began ?? '') ? 1 : (a.began ?? '') > (b.began ?? '') ? -1 : name(a) < name(b) ? -1 : 1))

/** parse splits the name of a run or of a job. */
export function parse(text: string): { namespace: string; name: string } | undefined {
  const m = /^([^/@]+)\/([^/@]+)$/.exec(text)
  return m ? { namespace: m[1]!, name: m[2]! } : undefined
}
