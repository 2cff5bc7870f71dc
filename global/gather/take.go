package gather

import (
	"errors"
	"fmt"
	"strings"

	"github.com/nusa-scheduler/nusa/internal/auditwire"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
)

// Cursor is what is stored of a region's trail.
type Cursor struct {
	// Trail and Key are its name and its public key. Signed is a checkpoint of Tree.
	Trail, Key, Signed string
	Tree               audit.Tree
	// Branch counts how often the trail started again from its beginning. Lost is how many entries are missing.
	Branch, Lost int64
}

// Taken is what Take decides.
type Taken struct {
	Cursor Cursor
	// Entries are to be stored. They follow the tree Before.
	Entries []audit.Entry
	Before  audit.Tree
	// Note says what an operator should know. Empty: nothing.
	Note string
}

// ErrForward says that a region forwarded what cannot be its trail.
var ErrForward = errors.New("the forwarded audit trail is damaged")

// Take checks what a region forwarded after the cursor, and returns what is to be stored.
func Take(c Cursor, region string, resp *nusav1.ForwardAuditResponse) (Taken, error) {
	out := Taken{Cursor: c}
	bad := func(format string, args ...any) (Taken, error) {
		return Taken{}, fmt.Errorf("%w: region %s: %s", ErrForward, region, fmt.Sprintf(format, args...))
	}
	before, err := auditwire.Tree(resp.GetPart().GetBefore())
	if err != nil {
		return bad("%v", err)
	}
	if !strings.HasSuffix(resp.GetTrail(), "/region/"+region) {
		return bad("it is the trail %.200q", resp.GetTrail())
	}
	out.Before = before
	var hashes []audit.Hash
	for i, m := range resp.GetPart().GetEntries() {
		x := auditwire.Exported(m)
		if want := before.Size + int64(i) + 1; x.Entry.Seq != want || x.Entry.Hash() != x.Hash {
			return bad("entry %d is not entry %d, or does not have its hash", x.Entry.Seq, want)
		}
		out.Entries, hashes = append(out.Entries, x.Entry), append(hashes, x.Hash)
	}
	after := before.Append(hashes...)
	point, err := audit.Open(resp.GetSigned(), resp.GetKey())
	switch {
	case err != nil:
		return bad("%v", err)
	case point.Trail != resp.GetTrail() || point.Size != after.Size || point.Root != after.Root():
		return bad("its checkpoint is that of %d entries of %s", point.Size, point.Trail)
	}
	out.Cursor.Tree, out.Cursor.Signed, out.Cursor.Trail, out.Cursor.Key = after, resp.GetSigned(), resp.GetTrail(), resp.GetKey()
	switch gap := before.Size - c.Tree.Size; {
	case c.Trail == "":
		out.Cursor.Lost, out.Note = before.Size, missing(1, before.Size)
	case c.Trail != resp.GetTrail() || c.Key != resp.GetKey() || resp.GetForked():
		out.Cursor.Branch, out.Cursor.Lost = c.Branch+1, c.Lost+before.Size
		out.Note = fmt.Sprintf("the trail starts again after entry %d: the region was set up again, or its log was restored from an old copy", before.Size)
	case gap > 0:
		out.Cursor.Lost, out.Note = c.Lost+gap, missing(c.Tree.Size+1, before.Size)
	case !before.Equal(c.Tree):
		return bad("it follows %d entries, %d are stored", before.Size, c.Tree.Size)
	}
	return out, nil
}

// missing says which entries the region has removed before they were forwarded.
func missing(from, to int64) string {
	if from > to {
		return ""
	}
	return fmt.Sprintf("the entries %d to %d are missing: the region has removed them before they could be forwarded", from, to)
}

// fromRecord returns the cursor of a stored record.
func fromRecord(rec *nusav1.AuditCursor) (Cursor, error) {
	tree, err := auditwire.Tree(rec.GetTree())
	return Cursor{
		Trail: rec.GetTrail(), Key: rec.GetKey(), Signed: rec.GetSigned(), Tree: tree, Branch: rec.GetBranch(), Lost: rec.GetLost(),
	}, err
}

// record returns the stored record of a cursor.
func (c Cursor) record() *nusav1.AuditCursor {
	return &nusav1.AuditCursor{
		Trail: c.Trail, Key: c.Key, Signed: c.Signed, Tree: auditwire.FromTree(c.Tree), Branch: c.Branch, Lost: c.Lost,
	}
}
