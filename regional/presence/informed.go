package presence

// Informed decides when the supervisors of a node certainly know the leases that bind their
// tasks since an order. An agent acknowledges an order when it has stored the order, and
// then tells the supervisors. When its second lease request after the acknowledgement
// arrives, the supervisors have known the leases for long. The zero value is a session
// without an acknowledgement. Informed is not safe for concurrent use.
type Informed struct {
	// stored is the sequence up to which the agent has stored the orders. asked is the
	// value that stored had at the agent's latest lease request.
	stored, asked uint64
}

// Stored records that the agent has stored the orders up to a sequence.
func (i *Informed) Stored(sequence uint64) { i.stored = max(i.stored, sequence) }

// Requested records a lease request. It returns up to which sequence the supervisors know
// the orders. 0: none is known.
func (i *Informed) Requested() uint64 {
	known := i.asked
	i.asked = i.stored
	return known
}
