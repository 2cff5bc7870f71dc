// Package peers holds what a region knows about the other regions of its
// federation, so that the region still has a topology without the global tier. It
// serves no call itself: regional/api answers from it.
//
//	cache   FederationCache: the regions, origin records and matrix that the global tier sent last
//	copy    Copier: one server's copy of them: its file, and the exchange with the master
//	prober  Prober: the probes of this region, and the topology made of all sources
//	poll    Poller: the rows of other regions, asked from them while the global tier is gone
package peers
