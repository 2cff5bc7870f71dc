// Package regional is the middle tier: the servers of one region. They find
// one another by gossip, form a Raft group, and the one that Raft elects, the
// master, decides which node runs each instance, holds the agents' sessions and
// is the region's voice towards the global tier.
//
// It is a shell around three pure cores: regional/state (what the committed log
// means), regional/sched (which node each) and regional/accept (what to answer
// to the global tier).
package regional
