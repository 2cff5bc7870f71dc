// Package regional is the middle tier: the servers of one region. The servers find one
// another by gossip and form a Raft group. The server that Raft elects is the master. It
// decides which node runs each instance, serves the agents' sessions, and holds the
// region's session with the global tier.
//
//	config        Config and Run
//	open          opens a server's data directory, addresses and services
//	run           starts the parts of a server and stops them in order
//	restore       continues a region from an old copy of a data directory
//	identity      a server's id
//	knownservers  the gossip addresses of the region's servers, on disk
//	servers       the region's servers, its master, and connections to the master
//	leadership    runs a Master in each term of this server
//	bootstrap     the cluster's identity, committed by its first master
//	rights        who may do what
//	denials       denied calls in the audit trail; new entries of the trail for the sink
//	counters      metrics
//	bans          refuses banned and removed members
//	keys          the roots and keys that the region's members should have
//	tasks         the parts of the history of tasks
//	services      what the API gets from the server and from a term
//
// The parts are packages of their own:
//
//	master   the work of one term: planning, purging, and the wiring of its parts
//	nodes    the agents' sessions
//	uplink   the session with the global tier
//	peers    the other regions, also without the global tier
//	discovery exchanges the instances of services with the other tiers
//	api      the gRPC services for users and for other servers
//	versions serves the versions of the region's own jobs
//	overview the stream of the present state for pages
//	raftlog  the log: sequencer, state machine, formats
//	events   the durable events in the log
//	wire     conversions between the state and protobuf
//	metrics  the history of measurements
//	tasks    the history of every allocation, in a file
//	repair   compares the log with the memory of the master and with the agents
//	reserved tells the global tier where reservations are
//	letters  tells the global tier which instances have failed for good
//	trail    what is known of the audit trail beyond the log
//	gossip   finds the region's servers
//	quorum   forms and maintains the Raft group
//
// The decisions are in pure cores: state (the meaning of the committed log), sched (which
// node runs each instance), pools (what the policies of node pools weigh), accept (the answers to the global tier), register (which
// instances of services are healthy), presence (which nodes
// are lost), regionlease (how long the region's lease lasts) and voters (which servers vote
// in the Raft group).
package regional
