package wire

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// AgentMessage is a message of an agent whose parts are still encoded.
type AgentMessage struct {
	// Kind is KindHello, KindLease, KindReports, KindInventory or KindGoodbye. 0: the
	// message has no kind.
	Kind protowire.Number
	Body []byte
	// Stats is an encoded NodeStats. It is nil when the message has none.
	Stats []byte
	// OrdersAck is an encoded Position. It is nil when the message has none.
	OrdersAck []byte
}

// ReadAgentMessage splits an encoded AgentMessage. Body, Stats and OrdersAck point into
// raw.
func ReadAgentMessage(raw []byte) (AgentMessage, error) {
	var out AgentMessage
	s := fieldScanner{rest: raw}
	for s.next() {
		switch s.num {
		case agentStats:
			out.Stats = s.b
		case agentOrdersAck:
			out.OrdersAck = s.b
		case KindHello, KindLease, KindReports, KindInventory, KindGoodbye:
			out.Kind, out.Body = s.num, s.b
		}
	}
	return out, s.err
}

// ReadPosition decodes a Position.
func ReadPosition(raw []byte) (state.Position, error) {
	var out state.Position
	s := fieldScanner{rest: raw}
	for s.next() {
		switch s.num {
		case positionEpoch:
			out.Epoch = string(s.b)
		case positionSequence:
			out.Sequence = s.v
		}
	}
	return out, s.err
}

// ReadLeaseRequest decodes a LeaseRequest. id is the id of the request. granted is the id
// of the latest grant that the agent received: 0 for none, or from an agent that does not
// confirm grants.
func ReadLeaseRequest(raw []byte) (id, granted uint64, err error) {
	s := fieldScanner{rest: raw}
	for s.next() {
		switch s.num {
		case leaseRequestID:
			id = s.v
		case leaseRequestGot:
			granted = s.v
		}
	}
	return id, granted, s.err
}
