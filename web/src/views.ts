import type { Component } from 'svelte'
import type { Want } from './lib/overview.svelte'
import type { Params } from './lib/router.svelte'
import { filterOf } from './views/jobs/list'
import { wantOfRuns } from './views/workflows/want'

/** View is a page of the navigation. Its code is loaded when it is opened. */
export interface View {
  /** Name in the address: /ui/NAME. */
  name: string
  title: string
  /** Keys that open it. */
  keys: string
  load: () => Promise<{ default: Component }>
  /** The view shows regions only, so it has nothing for users who may not read any. */
  regions?: boolean
  /** What the view needs from the one stream at an address. The first request of the page has it. */
  want?: (params: Params) => Want
}

function jobsOf(params: Params): Want {
  const jobs = filterOf(params)
  return jobs ? { jobs } : {}
}

export const views: View[] = [
  { name: 'federation', title: 'Federation', keys: 'g f', load: () => import('./views/federation/Federation.svelte'), regions: true, want: () => ({ edges: true }) },
  { name: 'latency', title: 'Latency', keys: 'g l', load: () => import('./views/latency/Latency.svelte'), regions: true, want: () => ({ edges: true }) },
  { name: 'topology', title: 'Topology', keys: 'g t', load: () => import('./views/topology/Topology.svelte'), regions: true, want: (p) => (p.region ? { nodesOf: p.region } : {}) },
  { name: 'jobs', title: 'Jobs', keys: 'g j', load: () => import('./views/jobs/Jobs.svelte'), want: jobsOf },
  { name: 'workflows', title: 'Workflows', keys: 'g w', load: () => import('./views/workflows/Workflows.svelte'), want: wantOfRuns },
  { name: 'schedules', title: 'Schedules', keys: 'g s', load: () => import('./views/schedules/Schedules.svelte'), want: () => ({ jobs: { search: '.', limit: 1 } }) },
  { name: 'reservations', title: 'Reservations', keys: 'g r', load: () => import('./views/reservations/Reservations.svelte') },
  { name: 'events', title: 'Events', keys: 'g e', load: () => import('./views/events/Events.svelte') },
]
