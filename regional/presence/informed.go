package presence

// Informed decides when the supervisors of a node certainly know the leases that bind their
// tasks since an order. An agent acknowledges an order when it has stored the order. Then
// it tells the supervisors. Its next lease request but one comes long after that. The zero
// value is a session without an acknowledgement. Informed is not safe for concurrent use.
type Informed struct {
	// stored is the sequence of the orders that the agent has stored, asked the sequence
	// that it had stored at its latest lease request.
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
