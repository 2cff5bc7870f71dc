package audit

import (
	"cmp"
	"fmt"
	"slices"
)

// Damage is a kind of finding.
type Damage string

// The kinds of damage.
const (
	// Missing: entries between others are not there.
	Missing Damage = "missing"
	// Changed: entries differ from what was stored or signed.
	Changed Damage = "changed"
	// Reordered: an entry is not in its place.
	Reordered Damage = "reordered"
	// Repeated: an entry is there twice.
	Repeated Damage = "repeated"
	// Truncated: entries at the end are not there.
	Truncated Damage = "truncated"
	// Unsigned: the trail has no valid checkpoint of its own.
	Unsigned Damage = "unsigned"
)

// Finding says what is wrong with the entries From to To.
type Finding struct {
	Damage   Damage
	From, To int64
	Why      string
}

// String returns the finding as one line.
func (f Finding) String() string {
	what := "the trail"
	switch {
	case f.From > 0 && f.From == f.To:
		what = fmt.Sprintf("entry %d", f.From)
	case f.From > 0:
		what = fmt.Sprintf("entries %d to %d", f.From, f.To)
	}
	return fmt.Sprintf("%s: %s: %s", what, f.Damage, f.Why)
}

// Report is the result of a verification.
type Report struct {
	Findings []Finding
	// First and Last are the numbers of the first and the last entry. Entries is their number.
	First, Last, Entries int64
	// Signed is the number of the last entry that a valid checkpoint covers.
	Signed int64
	// TooOld are the sizes of the earlier checkpoints that cannot be compared, because the entries
	// up to there are no longer kept.
	TooOld []int64
}

// verification is the state of Verify.
type verification struct {
	Report
	entries []Exported // sorted by number, each once
	marks   []Tree
	points  []Checkpoint // sorted by size
	tree    Tree
	// sound is the size up to which everything was compared.
	sound int64
	// broken: the tree cannot be computed until the next mark.
	broken bool
}

// Verify examines an exported trail. key is the public key of the trail. earlier are signed
// checkpoints that were kept elsewhere: each of them must fit to the trail.
func Verify(x Export, key string, earlier ...string) Report {
	v := verification{tree: x.Base, marks: x.Marks, sound: x.Base.Size}
	if err := x.Base.Check(); err != nil {
		v.find(Changed, 0, 0, "the beginning is damaged: "+err.Error())
		v.broken = true
	}
	for i, signed := range append(slices.Clone(earlier), x.Checkpoint) {
		c, err := Open(signed, key)
		switch {
		case err == nil && c.Trail != x.Trail:
			err = fmt.Errorf("it is a checkpoint of %s, and the trail is %s", c.Trail, x.Trail)
			fallthrough
		case err != nil:
			what := "an earlier checkpoint is not valid: "
			if i == len(earlier) {
				what = "the checkpoint at the end is not valid: "
			}
			v.find(Unsigned, 0, 0, what+err.Error())
		case c.Size < x.Base.Size && i == len(earlier):
			v.find(Unsigned, 0, 0, fmt.Sprintf("the checkpoint at the end is that of %d entries, and the trail begins after entry %d", c.Size, x.Base.Size))
		case c.Size < x.Base.Size:
			v.TooOld = append(v.TooOld, c.Size)
		default:
			v.points = append(v.points, c)
		}
	}
	slices.SortFunc(v.points, func(a, b Checkpoint) int { return cmp.Compare(a.Size, b.Size) })
	v.order(x)
	v.walk()
	slices.SortStableFunc(v.Findings, func(a, b Finding) int { return cmp.Compare(a.From, b.From) })
	return v.Report
}

func (v *verification) find(d Damage, from, to int64, why string) {
	v.Findings = append(v.Findings, Finding{d, from, to, why})
}

// order sorts the entries by their numbers, and notes those that are not in their place.
func (v *verification) order(x Export) {
	seen := map[int64]bool{}
	last := x.Base.Size
	for _, e := range x.Entries {
		seq := e.Entry.Seq
		switch {
		case seq <= x.Base.Size:
			v.find(Reordered, seq, seq, fmt.Sprintf("the trail begins after entry %d", x.Base.Size))
			continue
		case seen[seq]:
			v.find(Repeated, seq, seq, "the trail has two entries of this number")
			continue
		case seq < last:
			v.find(Reordered, seq, seq, fmt.Sprintf("it stands after entry %d", last))
		}
		last = max(last, seq)
		seen[seq] = true
		v.entries = append(v.entries, e)
	}
	slices.SortStableFunc(v.entries, func(a, b Exported) int { return cmp.Compare(a.Entry.Seq, b.Entry.Seq) })
	v.Entries, v.First, v.Last = int64(len(v.entries)), x.Base.Size+1, last
}

// walk computes the tree entry by entry, and compares it with the marks and the checkpoints.
func (v *verification) walk() {
	v.compare()
	for i := range v.entries {
		e := &v.entries[i]
		next := e.Entry.Seq
		if gap := v.tree.Size + 1; next > gap {
			v.find(Missing, gap, next-1, fmt.Sprintf("entry %d follows entry %d", next, gap-1))
			v.skip(next - 1)
		}
		if got := e.Entry.Hash(); got != e.Hash {
			v.find(Changed, next, next, "it does not have the hash that the server computed")
			v.broken = true
		}
		if v.broken {
			v.tree.Size = next
		} else {
			v.tree = v.tree.Append(e.Hash)
		}
		v.compare()
	}
	for _, c := range v.points {
		if c.Size > v.tree.Size {
			v.find(Truncated, v.tree.Size+1, c.Size, fmt.Sprintf("a signed checkpoint has %d entries", c.Size))
		}
	}
	if n := len(v.points); n > 0 && v.points[n-1].Size < v.tree.Size {
		v.find(Unsigned, v.points[n-1].Size+1, v.tree.Size, "no checkpoint covers them")
	}
}

// skip passes over missing entries up to a number.
func (v *verification) skip(to int64) {
	v.broken = true
	v.tree.Size = to
	v.compare()
}

// compare compares the tree with the mark and the checkpoints of its size.
func (v *verification) compare() {
	for len(v.marks) > 0 && v.marks[0].Size <= v.tree.Size {
		m := v.marks[0]
		v.marks = v.marks[1:]
		if m.Size < v.tree.Size || m.Check() != nil {
			continue
		}
		if !v.broken && !m.Equal(v.tree) {
			v.find(Changed, v.sound+1, m.Size, "they do not have the tree that the server stored behind them")
		}
		v.tree, v.broken, v.sound = m, false, m.Size
	}
	for _, c := range v.points {
		if c.Size != v.tree.Size || v.broken {
			continue
		}
		if c.Root != v.tree.Root() {
			v.find(Changed, 0, 0, fmt.Sprintf("its first %d entries are not those that were signed", c.Size))
			continue
		}
		v.Signed = max(v.Signed, c.Size)
	}
}
