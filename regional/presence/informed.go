package presence

// Informed decides when the supervisors of a node certainly know the leases that bind their
// tasks since an order. An agent acknowledges an order when it has stored the order. An agent
// that gets a grant after that passes the grant's deadline to the supervisors. So the
// supervisors know the leases when the agent confirms the grant of a later request. The
// number of requests alone proves nothing: the grants may have been lost. An empty grant
// proves nothing either: an agent may confirm such a grant and pass on no deadline. A grant is
// empty if it has no lease of the node, or if it only continues what runs. The zero value is
// a session without an acknowledgement. Informed is not safe for concurrent use.
type Informed struct {
	// stored is the sequence up to which the agent has stored the orders. asked is the
	// value that stored had at a lease request, and request is the id of that request.
	stored, asked, request uint64
	// known is the sequence up to which the supervisors know the orders.
	known uint64
}

// Stored records that the agent has stored the orders up to a sequence.
func (i *Informed) Stored(sequence uint64) { i.stored = max(i.stored, sequence) }

// Requested records a lease request with an id that grows. confirmed is the id of the latest
// grant that the agent received in this session, 0 for none. empty is the id of the latest
// empty grant of this session, 0 for none. Requested returns up to which sequence the
// supervisors know the orders. 0: none is known.
func (i *Informed) Requested(id, confirmed, empty uint64) uint64 {
	if i.request > 0 && confirmed >= i.request && confirmed > empty {
		i.known, i.request = i.asked, 0
	}
	if i.request == 0 && i.stored > i.known {
		i.asked, i.request = i.stored, id
	}
	return i.known
}
