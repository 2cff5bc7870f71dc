// States of jobs and instances in words and shapes.

import type { Shape } from '../../lib/ui/Mark.svelte'

const shapes: Record<string, Shape> = {
  pending: 'warn', starting: 'busy', running: 'ok', complete: 'done', failed: 'lost', stopping: 'draining', stopped: 'cordoned', lost: 'disconnected',
}

/** word returns "running" for JOB_STATE_RUNNING and ALLOC_STATE_RUNNING. */
export const word = (state: string | undefined): string => (state ?? '').replace(/^[A-Z]+_STATE_/, '').toLowerCase() || 'unknown'

export const shape = (state: string | undefined): Shape => shapes[word(state)] ?? 'defined'

/** The states of jobs in the order of the filter. */
export const jobStates = ['PENDING', 'STARTING', 'RUNNING', 'COMPLETE', 'FAILED', 'STOPPING', 'STOPPED'].map((s) => `JOB_STATE_${s}`)

/** parse splits the address of a job: "default/api" or "default/api@oslo". */
export function parse(text: string): { namespace: string; name: string; region: string } | undefined {
  const m = /^([^/@]+)\/([^/@]+)(?:@([^/@]+))?$/.exec(text)
  return m ? { namespace: m[1]!, name: m[2]!, region: m[3] ?? '' } : undefined
}

/** text is the reverse of parse. */
export const text = (job: { namespace?: string; name?: string; region?: string }): string => `${job.namespace}/${job.name}${job.region ? `@${job.region}` : ''}`
