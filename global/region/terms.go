package region

import "slices"

// Beginning describes the store at the beginning of a leadership term.
type Beginning struct {
	Term Term
	// Earlier is the greatest revision that an earlier term wrote; 0: unknown. It is only a lower
	// bound until Loaded has seen all records, or until Wrote is set.
	Earlier int64
	// Wrote: the term has written more than its beginning.
	Wrote bool
}

// maxBeginnings is how many beginnings are kept. What a region knows of an older term is compared
// with the oldest kept beginning.
const maxBeginnings = 32

// Begin adds the beginning of a new term. earlier is the revision of the record that holds the
// beginnings. Each term writes that record first.
func Begin(past []Beginning, term Term, earlier int64) []Beginning {
	next := append(slices.Clone(past), Beginning{Term: term, Earlier: earlier})
	return next[max(0, len(next)-maxBeginnings):]
}

// Loaded updates the beginnings from all other records. written is the greatest revision of those
// records. The latest terms without Wrote did not write them, so an earlier term did.
func Loaded(past []Beginning, written int64) []Beginning {
	next := slices.Clone(past)
	for i := len(next) - 1; i >= 0 && !next[i].Wrote; i-- {
		next[i].Earlier = max(next[i].Earlier, written)
	}
	return next
}

// Written marks the latest term: it has written more than its beginning.
func Written(past []Beginning) []Beginning {
	next := slices.Clone(past)
	if n := len(next); n > 0 {
		next[n-1].Wrote = true
	}
	return next
}

// writtenUpTo returns the greatest revision that the numbered term, or an earlier one, may have
// written; 0: unknown.
func (c Config) writtenUpTo(number uint64) int64 {
	for _, b := range c.Terms {
		if b.Term.Number > number {
			return b.Earlier
		}
	}
	return 0
}

// nonceOf returns the nonce of the store's own term with the number of a term that a region knows.
// If the store cannot say, nonceOf returns the nonce that the region knows. The store cannot say
// anything about revisions up to the oldest beginning: a recovery has passed them, or no record of
// that time is left.
func (c Config) nonceOf(known Term, revision int64) string {
	if known.Number != 0 && known.Number == c.Term.Number {
		return c.Term.Nonce
	}
	for _, b := range c.Terms {
		if b.Term.Number == known.Number && revision > c.Terms[0].Earlier {
			return b.Term.Nonce
		}
	}
	return known.Nonce
}
