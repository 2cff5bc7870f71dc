// Package global is the federation's tier: it stores jobs, slots and regions in
// etcd, decides which regions run a job, and serves the streams of the regions'
// masters. One server is active; the others forward calls to it.
//
//	config.go      Config and its defaults
//	run.go         Run: listeners, store, and everything that runs
//	leadership.go  the election, whose key guards every write (state/committer.go)
//	tracker.go     which server is active, and the connection to it
//	reach.go       whether the store answers, and the log lines while it does not
//	known.go       the greatest revision of the store and the regions that this server has
//	               seen; a lower revision shows that the store is an old copy
//	term.go        leadershipTerm: the active server for one leadership term
//	storelog.go    a term that begins before the store tells the length of its log
//	trail.go       bounds of the audit, of the idempotency records and of the history
//	events.go      stores events that wait, and removes old ones
//	upkeep.go      how full the store is, and when space is made in it
//	failover.go    the loop that declares regions lost and says which slots may move
//	members.go     alarms about global servers and members of the store
//	identity.go    the root of the federation, and the identity that a server issues to itself
//	begin.go       whether a federation has identities
//	bans.go        refuses banned regions, and banned and removed regional servers
//	rotation.go    which roots and keys the members should have, and which ones this server has
//	metrics.go     metrics
//
// The packages below this folder. A package imports only packages that stand before it:
//
//	store        the key-value interface to etcd
//	room         what the federation has room for (pure)
//	region       the session, the lease and the slots of one region (pure)
//	recovery     a store that was restored from an old copy: how it is noticed, and what follows
//	failover     when a silent region is lost, and when its slots move (pure)
//	place        which slots go to which region (pure)
//	queue        the places of groups that wait for a region (pure)
//	latency      the matrix of round trips
//	compact      the slots and summaries of many jobs, in little memory
//	forms        which config the regions' plugins accept
//	history      short entries of the jobs that have ended and left memory (pure)
//	progress     how far a rollout is, and when it has failed (pure)
//	idempotency  the answers to requests with idempotency keys
//	events       the durable events of the federation
//	state        what the active server knows, and the one writer of the store
//	gather       the audit trails of the regions
//	repair       compares the store with the memory and the regions
//	uplink       the streams of the regions
//	placer       the shell around place
//	objects      stored objects of other packages, each with a worker
//	hooks        sends events to the endpoints of webhooks; the folder delivery decides when (pure)
//	buses        publishes events to message brokers
//	api          the gRPC services
//	intakes      submits jobs that messages of brokers contain
//	overview     the stream of the present state for pages
//	rollouts     serves the versions of jobs, and lets operators steer rollouts
//	reservations reserves room on nodes for what another system creates there
//	spares       holds spare hosts for an upgrade; the folder step decides what follows (pure)
//	schedules    begins the runs of schedules and of dispatches; the folder plan decides when (pure)
//	deadletters  stores what is left of instances without attempts; the folder plan decides (pure)
//	tasks        asks the regions for the history of tasks
//	discovery    passes the instances of services on between the regions
//	workflows    runs the steps of workflows; the folder flow decides which (pure)
package global
