package trail

import (
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/security/audit"
)

// partBytes is about how many bytes of entries a part has.
const partBytes = 64 << 10

// Trail is what a server knows about the audit trail of its region beyond the log. It is safe for
// concurrent use.
type Trail struct {
	// Retain is how long entries are kept. Forwards: the region has a global tier, which stores the
	// entries, too.
	Retain   time.Duration
	Forwards bool

	mu sync.Mutex
	// stored is the tree of the entries that the global tier is known to have stored. All of
	// them are entries of the log.
	stored audit.Tree
}

// Complete adds to the entry of a command what the state needs to know which entries it may remove.
// It adds nothing while a server of the region cannot read that. A nil Trail adds nothing.
func (t *Trail) Complete(view *state.View, e *state.AuditEntry) {
	if t == nil || view.Cluster().FeatureLevel < state.ForwardLevel {
		return
	}
	e.Retain = t.Retain
	if t.Forwards {
		t.mu.Lock()
		e.Stored = 1 + t.stored.Size
		t.mu.Unlock()
	}
}

// Part is a run of entries for the global tier.
type Part struct {
	Before  audit.Tree
	Entries []*state.AuditEntry
	// After is the tree after the entries.
	After audit.Tree
	// More: there are entries after the part. Forked: the trail does not have the entries that
	// are stored.
	More, Forked bool
}

// Next returns the entries that follow those that the global tier has stored. If the trail does not
// have these, or not any more, the part begins with the oldest entry. same: what is stored
// belongs to the trail of this name.
func (t *Trail) Next(view *state.View, stored audit.Tree, same bool) Part {
	a, region := view.Audit(), view.Cluster().Region
	out := Part{Before: a.Base()}
	if same {
		begins, known := t.follows(a, region, stored)
		out.Forked = known && !begins
		if begins {
			out.Before = stored
		}
	}
	var hashes []audit.Hash
	bytes := int64(0)
	for x := range a.After(out.Before.Size) {
		if bytes > 0 && bytes+x.Bytes() > partBytes {
			out.More = true
			break
		}
		bytes += x.Bytes()
		e := x.Entry(region)
		out.Entries, hashes = append(out.Entries, x), append(hashes, e.Hash())
	}
	out.After = out.Before.Append(hashes...)
	return out
}

// follows reports whether a trail begins with the entries of a tree, and notes that. known is false
// if the trail no longer has entries that the tree covers.
func (t *Trail) follows(a *state.Trail, region string, stored audit.Tree) (begins, known bool) {
	base, whole := a.Base(), a.Tree()
	if stored.Size > whole.Size {
		return false, true
	}
	if stored.Size < base.Size {
		return false, false
	}
	t.mu.Lock()
	from := t.stored
	t.mu.Unlock()
	if from.Size < base.Size || from.Size > stored.Size {
		from = base
	}
	var hashes []audit.Hash
	for x := range a.After(from.Size) {
		if x.Seq > stored.Size {
			break
		}
		e := x.Entry(region)
		hashes = append(hashes, e.Hash())
	}
	from = from.Append(hashes...)
	if !from.Equal(stored) {
		return false, true
	}
	t.mu.Lock()
	t.stored = stored
	t.mu.Unlock()
	return true, true
}
