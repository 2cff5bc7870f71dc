import type { Component } from 'svelte'
import type { Want } from './lib/overview.svelte'

/** View is a page of the navigation. Its code is loaded when it is opened. */
export interface View {
  /** Name in the address: /ui/NAME. */
  name: string
  title: string
  /** Keys that open it. */
  keys: string
  load: () => Promise<{ default: Component }>
  /** What the view always needs from the one stream. */
  want?: Want
}

export const views: View[] = [
  { name: 'federation', title: 'Federation', keys: 'g f', load: () => import('./views/federation/Federation.svelte'), want: { edges: true } },
  { name: 'latency', title: 'Latency', keys: 'g l', load: () => import('./views/latency/Latency.svelte'), want: { edges: true } },
  { name: 'topology', title: 'Topology', keys: 'g t', load: () => import('./views/topology/Topology.svelte') },
  { name: 'jobs', title: 'Jobs', keys: 'g j', load: () => import('./views/jobs/Jobs.svelte') },
  { name: 'reservations', title: 'Reservations', keys: 'g r', load: () => import('./views/reservations/Reservations.svelte') },
  { name: 'events', title: 'Events', keys: 'g e', load: () => import('./views/events/Events.svelte') },
]
