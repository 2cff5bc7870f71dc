// Package regional is the middle tier: the servers of one region. They find
// one another by gossip, form a Raft group, and the one that Raft elects, the
// master, decides which node runs each instance, holds the agents' sessions and
// is the region's voice towards the global tier.
//
// It is a shell around three pure cores: regional/state (what the committed log
// means), regional/sched (which node each) and regional/accept (what to answer
// to the global tier). Where to look:
//
//	config, run, standing   what a server is told, how it boots and stops, who leads
//	leader, sequencer       one office of a master: everything that ends with it
//	fsm, codec              the committed state as Raft and the disk see it
//	dispatch, session,      the agents: sessions and leases, orders,
//	agents, orders, verify  who is lost, and proof that this master still leads
//	schedule, exprs, spec   plan, commit, plan again
//	uplink, uplink_send,    the global tier: orders down; answers, reports,
//	report, prober          summaries and latency up
//	federation, island      what was told of the others; peers asked directly
//	services, events        what the API needs of the server and of a term
//	errors                  statuses
//
// regional/gossip finds servers; regional/quorum forms and keeps the Raft group.
package regional
