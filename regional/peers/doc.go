// Package peers holds what a region knows about the other regions of its federation. So the
// region still has a topology without the global tier. The package serves no calls:
// regional/api serves them with its values.
//
//	cache   FederationCache: the regions, origin records and matrix that the global tier sent last
//	copy    Copier: copies the cache from the master and to a file
//	prober  Prober: the probes of this region, and the topology from all sources
//	poll    Poller: asks other regions for their rows while the global tier is gone
package peers
