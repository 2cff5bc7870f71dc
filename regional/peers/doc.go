// Package peers keeps what a region knows about the other regions of its
// federation, so that the region still has a topology without the global tier.
//
//	federation  the regions, origin records and matrix that the global tier sent last
//	copy        one server's copy of them: its file, and the exchange with the master
//	prober      the probes of this region, and the topology made of all sources
//	poll        the rows of other regions, asked from them while the global tier is gone
package peers
