package store

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// raisedKey holds how the store's revisions were raised; see Store.Raise.
const raisedKey = "/nusa/v1/revision-offset"

// revisions maps etcd's own revisions to those of this package. A store that was restored
// from an old copy counts its own revisions again from that copy on, so Raise adds an
// offset to all later ones. Earlier ones stay as they are. The zero value adds nothing.
type revisions struct{ raises []raise }

// raise: own revisions from Own on have Offset added. Both grow from one to the next.
type raise struct{ Own, Offset int64 }

// seen returns the revision that callers see for one of etcd's own.
func (r revisions) seen(own int64) int64 {
	for i := len(r.raises) - 1; i >= 0; i-- {
		if own >= r.raises[i].Own {
			return own + r.raises[i].Offset
		}
	}
	return own
}

// own returns etcd's own revision for one that a caller has seen. exact is false for a
// revision that no write can have, because it was passed over by a raise; own is then
// the last one before.
func (r revisions) own(seen int64) (own int64, exact bool) {
	limit := int64(math.MaxInt64) // the first own revision of the following raise
	for i := len(r.raises) - 1; i >= 0; i-- {
		if at := r.raises[i]; seen >= at.Own+at.Offset {
			return min(seen-at.Offset, limit-1), seen-at.Offset < limit
		}
		limit = r.raises[i].Own
	}
	return min(seen, limit-1), seen < limit
}

// compared returns the number that a compare takes to etcd. A revision that no write can have
// never holds.
func (r revisions) compared(seen int64) int64 {
	own, exact := r.own(seen)
	if !exact {
		return -1
	}
	return own
}

// above returns the revisions after a raise whose write happens after the own revision
// now. Own of the last raise is 0: it is the revision of that write.
func (r revisions) above(seen, now int64) revisions {
	offset := max(seen-now, 0)
	if n := len(r.raises); n > 0 {
		offset = max(offset, r.raises[n-1].Offset)
	}
	return revisions{append(r.raises[:len(r.raises):len(r.raises)], raise{0, offset})}
}

// String returns the stored form: pairs of numbers.
func (r revisions) String() string {
	var b strings.Builder
	for _, at := range r.raises {
		fmt.Fprintf(&b, "%d %d\n", at.Own, at.Offset)
	}
	return b.String()
}

// parseRevisions reads the stored form. written is the own revision of the write.
func parseRevisions(text string, written int64) (revisions, error) {
	var out revisions
	for line := range strings.Lines(text) {
		own, offset, ok := strings.Cut(strings.TrimSpace(line), " ")
		at := raise{}
		var err, err2 error
		at.Own, err = strconv.ParseInt(own, 10, 64)
		at.Offset, err2 = strconv.ParseInt(offset, 10, 64)
		if !ok || err != nil || err2 != nil || at.Offset < 0 {
			return revisions{}, fmt.Errorf("%s: %q is not a pair of numbers; was it written by a newer version?", raisedKey, line)
		}
		if at.Own == 0 {
			at.Own = written
		}
		out.raises = append(out.raises, at)
	}
	return out, nil
}
