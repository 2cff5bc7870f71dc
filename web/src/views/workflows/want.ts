import type { Want } from '../../lib/overview.svelte'
import { parse } from './runs'

/**
 * wantOfRuns selects the jobs of the steps that a view of runs shows. The view needs their counts only: when these
 * change, a step has started or ended. The job of a step has the name of its run, "--" and the name of the step.
 */
export function wantOfRuns(params: Record<string, string>): Want {
  const run = parse(params.run ?? '')
  return { jobs: run ? { namespace: run.namespace, labels: { 'nusa-workflow-run': run.name }, limit: 1 } : { search: '--', limit: 1 } }
}
