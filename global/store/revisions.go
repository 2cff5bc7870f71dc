package store

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// raisedKey holds the raises of the store's revisions. See Store.Raise.
const raisedKey = "/nusa/v1/revision-offset"

// revisions maps etcd's own revisions to the revisions that callers of this package see. A store
// that was restored from an old copy continues with the revisions of that copy, so etcd uses
// revisions twice. Raise adds an offset to all later revisions. Earlier revisions do not change.
// The zero value adds nothing.
type revisions struct{ raises []raise }

// raise adds Offset to the own revisions from Own on. Both grow with each further raise.
type raise struct{ Own, Offset int64 }

// seen returns the revision that callers see for one of etcd's own revisions.
func (r revisions) seen(own int64) int64 {
	for i := len(r.raises) - 1; i >= 0; i-- {
		if own >= r.raises[i].Own {
			return own + r.raises[i].Offset
		}
	}
	return own
}

// own returns etcd's own revision for a revision that a caller has seen. exact is false if no write
// can have the seen revision, because a raise skipped it. own is then the last own revision before
// it.
func (r revisions) own(seen int64) (own int64, exact bool) {
	limit := int64(math.MaxInt64) // the first own revision of the next raise
	for i := len(r.raises) - 1; i >= 0; i-- {
		if at := r.raises[i]; seen >= at.Own+at.Offset {
			return min(seen-at.Offset, limit-1), seen-at.Offset < limit
		}
		limit = r.raises[i].Own
	}
	return min(seen, limit-1), seen < limit
}

// compared returns etcd's own revision for a compare, or -1 if no write can have the seen revision,
// so that the compare never holds.
func (r revisions) compared(seen int64) int64 {
	own, exact := r.own(seen)
	if !exact {
		return -1
	}
	return own
}

// above returns the revisions after one more raise, so that later revisions are greater than seen.
// now is the present own revision. Own of the new raise is 0, which stands for the revision of the
// write that stores it.
func (r revisions) above(seen, now int64) revisions {
	offset := max(seen-now, 0)
	if n := len(r.raises); n > 0 {
		offset = max(offset, r.raises[n-1].Offset)
	}
	return revisions{append(r.raises[:len(r.raises):len(r.raises)], raise{0, offset})}
}

// String returns the stored form: lines with a pair of numbers.
func (r revisions) String() string {
	var b strings.Builder
	for _, at := range r.raises {
		fmt.Fprintf(&b, "%d %d\n", at.Own, at.Offset)
	}
	return b.String()
}

// parseRevisions reads the stored form. written is the own revision of the write that stored it.
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
