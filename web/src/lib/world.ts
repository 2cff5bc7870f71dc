import { Matrix } from './matrix'
import type {
  JobRef, OverviewDue, OverviewHead, OverviewJob, OverviewJobCounts, OverviewNode, OverviewRegion, OverviewUpdate, PartialError,
} from './types'

/** jobKey names a job: "default/api", or "default/api@jakarta" for a region's own job. */
export function jobKey(j: JobRef): string {
  return `${j.namespace ?? ''}/${j.name ?? ''}${j.region ? `@${j.region}` : ''}`
}

/** Sections says which parts of a world an update has changed. */
export interface Sections {
  head: boolean
  regions: boolean
  matrix: boolean
  nodes: boolean
  jobs: boolean
  due: boolean
  errors: boolean
}

export const noSections = (): Sections => ({ head: false, regions: false, matrix: false, nodes: false, jobs: false, due: false, errors: false })

/** World is what one stream has sent. It has no more than the server has: nothing grows with time. */
export class World {
  head: OverviewHead | undefined
  regions = new Map<string, OverviewRegion>()
  nodes = new Map<string, OverviewNode>()
  jobs = new Map<string, OverviewJob>()
  jobCounts: OverviewJobCounts | undefined
  due: OverviewDue[] = []
  errors: PartialError[] = []
  matrix = new Matrix([])

  /** nodesOf is the region of the nodes. */
  constructor(readonly nodesOf = '') {}

  /** apply adds an update that has no reset, and says what it changed. */
  apply(u: OverviewUpdate): Sections {
    const s = noSections()
    if (u.head) {
      this.head = u.head
      s.head = true
    }
    for (const r of u.regions ?? []) this.regions.set(r.name, r)
    for (const name of u.regionsRemoved ?? []) this.regions.delete(name)
    s.regions = !!(u.regions?.length || u.regionsRemoved?.length)
    if (u.columns?.length) {
      this.matrix = new Matrix(u.columns)
      s.matrix = true
    }
    for (const row of u.rows ?? []) {
      this.matrix.setRow(row)
      s.matrix = true
    }
    for (const n of u.nodes ?? []) this.nodes.set(n.id, n)
    for (const id of u.nodesRemoved ?? []) this.nodes.delete(id)
    s.nodes = !!(u.nodes?.length || u.nodesRemoved?.length)
    for (const j of u.jobs ?? []) this.jobs.set(jobKey(j.job), j)
    for (const j of u.jobsRemoved ?? []) this.jobs.delete(jobKey(j))
    s.jobs = !!(u.jobs?.length || u.jobsRemoved?.length)
    if (u.jobCounts) {
      this.jobCounts = u.jobCounts
      s.jobs = true
    }
    if (u.due) {
      this.due = u.due.due ?? []
      s.due = true
    }
    if (u.errors) {
      this.errors = u.errors.errors ?? []
      s.errors = true
    }
    return s
  }
}
