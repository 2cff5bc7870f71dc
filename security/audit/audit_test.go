package audit

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"
	"pgregory.net/rapid"
)

// trail is a trail as a server keeps it.
type trail struct {
	signer, key string
	x           Export
	tree        Tree
}

const trailName = "nusa/FED/global"

func newTrail(t interface{ Fatal(...any) }) *trail {
	signer, key, err := GenerateKey(rand.Reader, trailName)
	if err != nil {
		t.Fatal(err)
	}
	return &trail{signer: signer, key: key, x: Export{Trail: trailName, Key: key}}
}

// add adds entries as one transaction does, and then a mark.
func (r *trail) add(entries ...Entry) {
	for _, e := range entries {
		e.Seq = r.tree.Size + 1
		e = e.Bounded()
		r.tree = r.tree.Append(e.Hash())
		r.x.Entries = append(r.x.Entries, Exported{e, e.Hash()})
	}
	r.x.Marks = append(r.x.Marks, r.tree)
}

func (r *trail) sign(t interface{ Fatal(...any) }) string {
	signed, err := Sign(r.signer, r.tree)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

// forget removes the oldest entries, as the retention does.
func (r *trail) forget(n int) {
	var base []Hash
	for _, e := range r.x.Entries[:n] {
		base = append(base, e.Hash)
	}
	r.x.Base = r.x.Base.Append(base...)
	r.x.Entries = slices.Clone(r.x.Entries[n:])
	r.x.Marks = slices.DeleteFunc(r.x.Marks, func(m Tree) bool { return m.Size < r.x.Base.Size })
}

var entries = rapid.Custom(func(t *rapid.T) Entry {
	text := rapid.StringOfN(rapid.Rune(), 0, 8, -1)
	return Entry{
		Time: time.Unix(0, rapid.Int64().Draw(t, "time")), Who: text.Draw(t, "who"), From: text.Draw(t, "from"),
		Method: text.Draw(t, "method"), Verb: text.Draw(t, "verb"), Kind: text.Draw(t, "kind"),
		Namespace: text.Draw(t, "namespace"), Name: text.Draw(t, "name"), Region: text.Draw(t, "region"),
		Request: text.Draw(t, "request"), Outcome: text.Draw(t, "outcome"), Reason: text.Draw(t, "reason"),
		Before: rapid.SliceOfN(rapid.Byte(), 0, 4).Draw(t, "before"), After: rapid.SliceOfN(rapid.Byte(), 0, 4).Draw(t, "after"),
	}.Bounded()
})

// drawTrail returns a signed trail of several transactions, with earlier checkpoints.
func drawTrail(t *rapid.T) (r *trail, earlier []string) {
	r = newTrail(t)
	for range rapid.IntRange(1, 6).Draw(t, "transactions") {
		r.add(rapid.SliceOfN(entries, 1, 4).Draw(t, "entries")...)
		if rapid.Bool().Draw(t, "sign") {
			earlier = append(earlier, r.sign(t))
		}
	}
	r.forget(rapid.IntRange(0, len(r.x.Entries)-1).Draw(t, "forgotten"))
	r.x.Checkpoint = r.sign(t)
	return r, earlier
}

// TestTreeIsThatOfTlog: the tree has the same roots as a tree of package tlog.
func TestTreeIsThatOfTlog(t *testing.T) {
	var stored []tlog.Hash
	reader := tlog.HashReaderFunc(func(indexes []int64) (out []tlog.Hash, err error) {
		for _, i := range indexes {
			out = append(out, stored[i])
		}
		return out, nil
	})
	tree, one := Tree{}, Tree{}
	var all []Hash
	for n := int64(0); n < 300; n++ {
		want, err := tlog.TreeHash(n, reader)
		if err != nil || tree.Root() != want || !one.Append(all...).Equal(tree) || tree.Check() != nil {
			t.Fatalf("%d entries: %s, want %s, %v", n, tree.Root(), want, err)
		}
		e := Entry{Seq: n + 1}
		hashes, err := tlog.StoredHashesForRecordHash(n, e.Hash(), reader)
		if err != nil {
			t.Fatal(err)
		}
		stored, all, tree = append(stored, hashes...), append(all, e.Hash()), tree.Append(e.Hash())
	}
}

// TestAWholeTrailIsSound: a trail without damage has no findings, also after the file was written
// and read, and after the oldest entries were removed.
func TestAWholeTrailIsSound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, earlier := drawTrail(t)
		x := reread(t, r.x)
		report := Verify(x, r.key, earlier...)
		if len(report.Findings) > 0 || report.Signed != r.tree.Size || report.Last != r.tree.Size || report.Entries != int64(len(r.x.Entries)) {
			t.Fatalf("%+v", report)
		}
		for _, size := range report.TooOld {
			if size >= x.Base.Size {
				t.Fatalf("the checkpoint of %d entries was not compared", size)
			}
		}
	})
}

func reread(t *rapid.T, x Export) Export {
	var file bytes.Buffer
	w, err := NewWriter(&file, x.Trail, x.Key, x.Base)
	marks := x.Marks
	for _, e := range x.Entries {
		for len(marks) > 0 && marks[0].Size < e.Entry.Seq {
			err = cmpErr(err, w.Mark(marks[0]))
			marks = marks[1:]
		}
		err = cmpErr(err, w.Entry(e))
	}
	for _, m := range marks {
		err = cmpErr(err, w.Mark(m))
	}
	if err = cmpErr(err, w.Checkpoint(x.Checkpoint)); err != nil {
		t.Fatal(err)
	}
	out, err := Read(&file)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func cmpErr(first, second error) error {
	if first != nil {
		return first
	}
	return second
}

func has(r Report, d Damage, seq int64) bool {
	return slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Damage == d && f.From <= seq && seq <= f.To })
}

// TestDamageIsNamed: a change of the file is found, and the finding names the entry.
func TestDamageIsNamed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, earlier := drawTrail(t)
		x := r.x
		x.Entries = slices.Clone(x.Entries)
		n := len(x.Entries)
		i := rapid.IntRange(0, n-1).Draw(t, "entry")
		seq := x.Entries[i].Entry.Seq
		want := Damage("")
		switch kind := rapid.SampledFrom([]string{"missing", "changed", "reordered", "repeated", "truncated"}).Draw(t, "damage"); {
		case kind == "missing" && i < n-1:
			x.Entries, want = slices.Delete(x.Entries, i, i+1), Missing
		case kind == "changed":
			x.Entries[i].Entry = mutate(t, x.Entries[i].Entry)
			want = Changed
		case kind == "reordered" && i < n-1:
			x.Entries[i], x.Entries[i+1] = x.Entries[i+1], x.Entries[i]
			want = Reordered
		case kind == "repeated":
			x.Entries, want = slices.Insert(x.Entries, i, x.Entries[i]), Repeated
		case kind == "truncated":
			x.Entries, want = x.Entries[:i], Truncated
			x.Marks = slices.DeleteFunc(slices.Clone(x.Marks), func(m Tree) bool { return m.Size >= seq })
		default:
			t.Skip("the last entry")
		}
		if report := Verify(reread(t, x), r.key, earlier...); !has(report, want, seq) {
			t.Fatalf("entry %d is %s: %v", seq, want, report.Findings)
		}
	})
}

// TestLinesSayOneThing: a line that another program may read in another way is damaged.
func TestLinesSayOneThing(t *testing.T) {
	var file bytes.Buffer
	w, err := NewWriter(&file, "t", "k", Tree{})
	e := Entry{Seq: 1, Time: time.Unix(1, 5).UTC(), Who: "operator/joe", Outcome: Done}
	if err = cmpErr(err, w.Entry(Exported{Entry: e, Hash: e.Hash()})); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(bytes.NewReader(file.Bytes())); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{
		`"who":"operator/evil","who":"operator/joe"`, `"who":"operator/evil","Who":"operator/joe"`, `"Who":"operator/joe"`,
		`"extra":1,"who":"operator/joe"`, `"who": "operator/joe"`, `"who":"operator\/joe"`,
	} {
		changed := bytes.Replace(file.Bytes(), []byte(`"who":"operator/joe"`), []byte(to), 1)
		if _, err := Read(bytes.NewReader(changed)); err == nil || !strings.Contains(err.Error(), "line 2 is damaged") {
			t.Errorf("%s: %v", to, err)
		}
	}
}

// mutate changes one field.
func mutate(t *rapid.T, e Entry) Entry {
	switch i := rapid.IntRange(-3, len(e.texts())-1).Draw(t, "field"); i {
	case -3:
		e.Time = e.Time.Add(time.Nanosecond)
	case -2:
		e.Before = append([]byte{1}, e.Before...)
	case -1:
		e.After = append([]byte{1}, e.After...)
	default:
		*e.texts()[i] += "x"
	}
	return e
}

// TestForgedTrails: without the secret key, nobody can sign the tree of changed entries. An earlier
// checkpoint shows a trail that was signed with the key.
func TestForgedTrails(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, _ := drawTrail(t)
		if r.x.Base.Size > 0 {
			t.Skip("the beginning was removed")
		}
		i := rapid.IntRange(0, len(r.x.Entries)-1).Draw(t, "entry")
		forged := &trail{signer: r.signer, key: r.key, x: Export{Trail: trailName, Key: r.key}}
		for j, e := range r.x.Entries {
			if j == i {
				e.Entry = mutate(t, e.Entry)
			}
			forged.add(e.Entry)
		}
		forged.x.Checkpoint = r.x.Checkpoint
		if report := Verify(forged.x, r.key); len(report.Findings) == 0 || report.Signed == report.Last {
			t.Fatalf("with the checkpoint: %+v", report)
		}
		forged.x.Checkpoint = forged.sign(t)
		if report := Verify(forged.x, r.key, r.x.Checkpoint); len(report.Findings) == 0 {
			t.Fatalf("with an earlier checkpoint: %+v", report)
		}
		other := newTrail(t)
		other.tree = forged.tree
		forged.x.Checkpoint = other.sign(t)
		if report := Verify(forged.x, r.key); len(report.Findings) == 0 || report.Signed != 0 {
			t.Fatalf("with another key: %+v", report)
		}
	})
}

// TestFindings is a table of damage and of the lines that name it.
func TestFindings(t *testing.T) {
	whole := func() *trail {
		r := newTrail(t)
		for _, n := range []int{1, 3, 2} {
			var some []Entry
			for i := range n {
				some = append(some, Entry{Time: time.Unix(int64(i), 0), Who: "jane", Verb: "submit", Kind: "job"})
			}
			r.add(some...)
		}
		r.x.Checkpoint = r.sign(t)
		return r
	}
	for name, c := range map[string]struct {
		damage func(r *trail)
		want   string
	}{
		"whole":          {func(*trail) {}, ""},
		"a removed one":  {func(r *trail) { r.x.Entries = slices.Delete(r.x.Entries, 2, 3) }, "entry 3: missing: entry 4 follows entry 2"},
		"removed ones":   {func(r *trail) { r.x.Entries = slices.Delete(r.x.Entries, 1, 4) }, "entries 2 to 4: missing: entry 5 follows entry 1"},
		"another reason": {func(r *trail) { r.x.Entries[3].Entry.Reason = "x" }, "entry 4: changed: it does not have the hash that the server computed"},
		"and its hash": {func(r *trail) { e := &r.x.Entries[3]; e.Entry.Reason = "x"; e.Hash = e.Entry.Hash() },
			"entries 2 to 4: changed: they do not have the tree that the server stored behind them"},
		"and the marks": {func(r *trail) { e := &r.x.Entries[3]; e.Entry.Reason = "x"; e.Hash = e.Entry.Hash(); r.x.Marks = nil },
			"the trail: changed: its first 6 entries are not those that were signed"},
		"swapped":  {func(r *trail) { x := r.x.Entries; x[0], x[1] = x[1], x[0] }, "entry 1: reordered: it stands after entry 2"},
		"twice":    {func(r *trail) { r.x.Entries = append(r.x.Entries, r.x.Entries[1]) }, "entry 2: repeated: the trail has two entries of this number"},
		"cut off":  {func(r *trail) { r.x.Entries, r.x.Marks = r.x.Entries[:4], r.x.Marks[:2] }, "entries 5 to 6: truncated: a signed checkpoint has 6 entries"},
		"unsigned": {func(r *trail) { r.add(Entry{}) }, "entry 7: unsigned: no checkpoint covers them"},
		"no checkpoint": {func(r *trail) { r.x.Checkpoint = "" },
			"the trail: unsigned: the checkpoint at the end is not valid: the checkpoint is not signed with the key of nusa/FED/global: malformed note"},
		"damaged beginning": {func(r *trail) { r.x.Base.Size = 1; r.x.Entries = r.x.Entries[1:] },
			"the trail: changed: the beginning is damaged: a tree of 1 entries has 0 hashes, not 1"},
	} {
		r := whole()
		c.damage(r)
		var got []string
		for _, f := range Verify(r.x, r.key).Findings {
			got = append(got, f.String())
		}
		if text := strings.Join(got, "\n"); text != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, text, c.want)
		}
	}
}

// TestEntriesHaveBounds: the texts of an entry are valid and not too long, and two entries never
// have the same canonical form.
func TestEntriesHaveBounds(t *testing.T) {
	e := Entry{Who: strings.Repeat("é", 400), Reason: "a\xffb"}.Bounded()
	if len(e.Who) != maxText || e.Reason != "a?b" {
		t.Errorf("%d bytes, %q", len(e.Who), e.Reason)
	}
	odd := Entry{Who: "x" + strings.Repeat("é", 400)}.Bounded()
	if len(odd.Who) != maxText-1 {
		t.Errorf("%d bytes", len(odd.Who))
	}
	rapid.Check(t, func(t *rapid.T) {
		e := entries.Draw(t, "entry")
		if other := mutate(t, e); bytes.Equal(e.appendCanonical(nil), other.appendCanonical(nil)) {
			t.Fatalf("%+v and %+v", e, other)
		}
		if a, b := (&Entry{Who: "ab", From: "c"}), (&Entry{Who: "a", From: "bc"}); a.Hash() == b.Hash() {
			t.Fatal("the border between texts moves")
		}
	})
}

// FuzzRead: no file makes the reader or the verification fail otherwise than with an error.
func FuzzRead(f *testing.F) {
	r := newTrail(f)
	r.add(Entry{Who: "jane"}, Entry{})
	var file bytes.Buffer
	w, err := NewWriter(&file, r.x.Trail, r.x.Key, r.x.Base)
	if err != nil || w.Entry(r.x.Entries[0]) != nil || w.Mark(r.tree) != nil || w.Checkpoint(r.sign(f)) != nil {
		f.Fatal(err)
	}
	f.Add(file.Bytes())
	f.Add([]byte(`{"nusa_audit":{"format":1,"trail":"x","base":{"size":9223372036854775807}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		x, err := Read(bytes.NewReader(data))
		if err == nil {
			_ = fmt.Sprint(Verify(x, r.key))
		}
	})
}
