package wire

import "google.golang.org/protobuf/encoding/protowire"

// Fields of AgentMessage: its kinds, and what any of them may take along.
const (
	KindHello, KindLease, KindReports, fieldAgentStats, KindInventory, KindGoodbye = 1, 2, 4, 5, 6, 7
)

// AgentMessage is one message of an agent: its kind, 0 = none, and encoded what it holds.
type AgentMessage struct {
	Kind        protowire.Number
	Body, Stats []byte
}

// ReadAgentMessage splits an encoded AgentMessage. body and stats point into raw.
func ReadAgentMessage(raw []byte) (AgentMessage, error) {
	var out AgentMessage
	s := fieldScanner{rest: raw}
	for s.next() {
		switch s.num {
		case fieldAgentStats:
			out.Stats = s.b
		case KindHello, KindLease, KindReports, KindInventory, KindGoodbye:
			out.Kind, out.Body = s.num, s.b
		}
	}
	return out, s.err
}

// ReadLeaseRequest returns the id of an encoded LeaseRequest.
func ReadLeaseRequest(raw []byte) (id uint64, err error) {
	s := fieldScanner{rest: raw}
	for s.next() {
		if s.num == 1 {
			id = s.v
		}
	}
	return id, s.err
}
