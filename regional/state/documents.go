package state

import "fmt"

// DocumentLevel is the feature level from which on the log may have ChangeDocuments.
const DocumentLevel = 3

// Bounds of documents.
const (
	// MaxDocuments bounds the documents of a region, maxDocument the bytes of one, and
	// maxDocuments the bytes of all.
	MaxDocuments = 400_000
	maxDocument  = 256 << 10
	maxDocuments = 128 << 20
)

// Document is a value that the log stores for other parts of the server, which write and read
// the value. Apply never looks into it.
type Document struct {
	Key   string
	Value []byte
	// Version is the index of the command that wrote the document. A command does not set it.
	Version uint64
}

// DocumentCheck is a condition: the document has this version. 0: the document does not exist.
type DocumentCheck struct {
	Key     string
	Version uint64
}

// ChangeDocuments writes and removes documents if all checks hold, and otherwise fails with
// ErrStaleRevision. It is no error if a document that is removed does not exist.
type ChangeDocuments struct {
	Checks  []DocumentCheck
	Puts    []Document
	Deletes []string
}

func applyDocuments(t *txn, c *ChangeDocuments) error {
	for _, check := range c.Checks {
		version := uint64(0)
		if d, ok := t.documents.Get(str(check.Key)); ok {
			version = d.Version
		}
		if version != check.Version {
			return fmt.Errorf("%w: document %s", ErrStaleRevision, check.Key)
		}
	}
	if err := roomForDocuments(t, c); err != nil {
		return err
	}
	for _, key := range c.Deletes {
		dropDocument(t, str(key))
	}
	for _, d := range c.Puts {
		dropDocument(t, str(d.Key))
		d.Version = t.index
		setDocument(t.State, &d)
		t.res.Changed = true
	}
	return nil
}

// roomForDocuments refuses a command that would exceed a bound, or that has a document without
// a key.
func roomForDocuments(t *txn, c *ChangeDocuments) error {
	added, bytes := 0, 0
	for _, d := range c.Puts {
		switch {
		case d.Key == "":
			return fmt.Errorf("%w: a document without a key", ErrInvalid)
		case len(d.Value) > maxDocument:
			return fmt.Errorf("%w: document %s has %d bytes, at most %d", ErrInvalid, d.Key, len(d.Value), maxDocument)
		}
		bytes += d.size()
		if old, ok := t.documents.Get(str(d.Key)); ok {
			bytes -= old.size()
		} else {
			added++
		}
	}
	if added > 0 && t.documents.Len()+added > MaxDocuments || bytes > 0 && t.documentBytes+bytes > maxDocuments {
		return fmt.Errorf("%w: %d documents of %d MiB are stored", ErrFull, t.documents.Len(), t.documentBytes>>20)
	}
	return nil
}

func (d *Document) size() int { return len(d.Key) + len(d.Value) }

func setDocument(s *State, d *Document) {
	s.documents.Set(s.own, str(d.Key), d)
	s.documentBytes += d.size()
}

func dropDocument(t *txn, key str) {
	if d, ok := t.documents.Get(key); ok {
		t.documents.Delete(t.own, key)
		t.documentBytes -= d.size()
		t.res.Changed = true
	}
}
