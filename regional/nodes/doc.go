// Package nodes serves the agents of a region during one term of a master. It receives
// their reports, sends them orders and leases, and commits which nodes are lost
// (regional/presence decides that).
//
//	agents     Agents: what a master knows about every node beyond the committed state
//	node       one node: its outbox of orders, its statistics, and when it was last seen
//	drift      what the outboxes have, for comparisons with the log
//	status     commits which nodes are lost or ready again
//	namelease  which agent holds a node's name
//	dispatch   the gRPC service that agents dial, on any server of the region
//	session    one agent's stream: hello, acceptance or refusal (also of an agent that knows
//	           more than the log), registration, attach and detach
//	admit      the condition of the join policy, and what a registration says about a node
//	receive    handles the messages of an agent
//	reports    turns an agent's reports into commands of the log (regional/state applies them)
//	bindings   commits that a node's supervisors know which leases bind their tasks
//	send       sends the messages to an agent: grants, acknowledgements, orders
//	sendstate  decides which goroutine sends on a session
//	turns      the queue of sessions that have something to send
//	stack      runs calls that need a deep stack on another goroutine
package nodes
