package region

import "slices"

// Beginning says what the store had when a leadership term began.
type Beginning struct {
	Term Term
	// Earlier is the greatest revision that an earlier term wrote; 0 = unknown. It is a lower
	// bound until Loaded has seen the records, or the term Wrote.
	Earlier int64
	// Wrote: the term has written more than its beginning.
	Wrote bool
}

// maxBeginnings is how many beginnings are kept. What a region knows of an older term is
// compared with the oldest one.
const maxBeginnings = 32

// Begin returns the beginnings with that of a new term. earlier is the revision of the record
// that keeps them: each term writes it first.
func Begin(past []Beginning, term Term, earlier int64) []Beginning {
	next := append(slices.Clone(past), Beginning{Term: term, Earlier: earlier})
	return next[max(0, len(next)-maxBeginnings):]
}

// Loaded returns the beginnings with what all other records show; written is the greatest of
// their revisions. The latest terms that have not Wrote left those records as they were.
func Loaded(past []Beginning, written int64) []Beginning {
	next := slices.Clone(past)
	for i := len(next) - 1; i >= 0 && !next[i].Wrote; i-- {
		next[i].Earlier = max(next[i].Earlier, written)
	}
	return next
}

// Written returns the beginnings once the latest term has written more than its beginning.
func Written(past []Beginning) []Beginning {
	next := slices.Clone(past)
	if n := len(next); n > 0 {
		next[n-1].Wrote = true
	}
	return next
}

// writtenUpTo returns the greatest revision that the term of a number, or an earlier one, may
// have written; 0 = unknown.
func (c Config) writtenUpTo(number uint64) int64 {
	for _, b := range c.Terms {
		if b.Term.Number > number {
			return b.Earlier
		}
	}
	return 0
}

// nonceOf returns the nonce of the store's own term of the number of a term that a region
// knows; the known one if nothing tells. A revision that is not above the oldest beginning does
// not tell: a recovery of the store has passed it, or nothing is kept of that time.
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
