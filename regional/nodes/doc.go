// Package nodes serves the agents of a region during one term of a master: it
// receives their reports, sends them orders and leases, and decides which node
// is lost.
//
//	agents     Agents: what a master knows of every node beyond the committed state
//	node       one node: its outbox of orders, its statistics, when it was last seen
//	status     which nodes are lost or ready again
//	namelease  which agent holds a node's name
//	dispatch   the gRPC service that agents dial, on any server of the region
//	session    one agent's stream: hello, acceptance or refusal, registration, attach and detach
//	receive    what an agent sends, message by message
//	reports    an agent's reports as commands of the log (applied in regional/state)
//	send       the messages to an agent: grants, acknowledgements, orders
//	sendstate  which goroutine sends on a session
//	turns      the queue of sessions that have something to send
//	stack      why some calls run on another goroutine
package nodes
