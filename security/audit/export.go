package audit

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Export is an exported trail.
type Export struct {
	// Trail is the name of the trail. Key is its public key.
	Trail, Key string
	// Base is the tree before the first entry. Earlier entries are no longer kept.
	Base    Tree
	Entries []Exported
	// Marks are the trees that the server stored between the entries, in ascending order. They show
	// where a trail is damaged.
	Marks []Tree
	// Checkpoint is the signed checkpoint at the end.
	Checkpoint string
}

// Exported is an entry, and the hash that the server computed for the entry.
type Exported struct {
	Entry Entry
	Hash  Hash
}

// line is one line of the file. Only one field is set.
type line struct {
	Head       *head      `json:"nusa_audit,omitempty"`
	Entry      *entryLine `json:"entry,omitempty"`
	Mark       *Tree      `json:"tree,omitempty"`
	Checkpoint string     `json:"checkpoint,omitempty"`
}

// head is the first line.
type head struct {
	Format int    `json:"format"`
	Trail  string `json:"trail"`
	Key    string `json:"key"`
	Base   Tree   `json:"base"`
}

// Fields are the fields of an entry that a line of JSON shows, without the values before and after.
type Fields struct {
	Seq       int64     `json:"seq"`
	Time      time.Time `json:"time"`
	Who       string    `json:"who,omitempty"`
	From      string    `json:"from,omitempty"`
	Method    string    `json:"method,omitempty"`
	Verb      string    `json:"verb,omitempty"`
	Kind      string    `json:"kind,omitempty"`
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name,omitempty"`
	Region    string    `json:"region,omitempty"`
	Request   string    `json:"request,omitempty"`
	Outcome   string    `json:"outcome,omitempty"`
	Reason    string    `json:"reason,omitempty"`
}

// Fields returns the fields of the entry.
func (e Entry) Fields() Fields {
	return Fields{
		Seq: e.Seq, Time: e.Time, Who: e.Who, From: e.From, Method: e.Method, Verb: e.Verb, Kind: e.Kind,
		Namespace: e.Namespace, Name: e.Name, Region: e.Region, Request: e.Request, Outcome: e.Outcome, Reason: e.Reason,
	}
}

// entryLine is an entry in the file.
type entryLine struct {
	Fields
	Before []byte `json:"before,omitempty"`
	After  []byte `json:"after,omitempty"`
	Hash   Hash   `json:"hash"`
}

// exportFormat is the format of the file.
const exportFormat = 1

// Writer writes the file of an export, line by line.
type Writer struct{ enc *json.Encoder }

// NewWriter writes the first line of a file.
func NewWriter(w io.Writer, trail, key string, base Tree) (Writer, error) {
	out := Writer{json.NewEncoder(w)}
	return out, out.enc.Encode(line{Head: &head{exportFormat, trail, key, base}})
}

// Entry writes an entry with its hash.
func (w Writer) Entry(x Exported) error {
	e := x.Entry
	return w.enc.Encode(line{Entry: &entryLine{Fields: e.Fields(), Before: e.Before, After: e.After, Hash: x.Hash}})
}

// Mark writes a tree that the server stored here.
func (w Writer) Mark(t Tree) error { return w.enc.Encode(line{Mark: &t}) }

// Checkpoint writes a signed checkpoint.
func (w Writer) Checkpoint(signed string) error { return w.enc.Encode(line{Checkpoint: signed}) }

// maxLine bounds a line of the file in bytes.
const maxLine = 64 << 10

// ErrNoExport says that a file is not an exported audit trail.
var ErrNoExport = errors.New("the file is no audit trail that `nusa audit export` has written")

// is reports whether a text is exactly what a Writer writes for the line. JSON lets a text say more
// than its decoder returns: another program may read another value of a repeated field.
func (l *line) is(text []byte) bool {
	var out bytes.Buffer
	err := json.NewEncoder(&out).Encode(l)
	return err == nil && bytes.Equal(bytes.TrimSuffix(out.Bytes(), []byte("\n")), text)
}

// Read reads the file of an export.
func Read(r io.Reader) (Export, error) {
	var x Export
	in := bufio.NewScanner(r)
	in.Buffer(make([]byte, 0, 4096), maxLine)
	for number := 1; in.Scan(); number++ {
		var l line
		err := json.Unmarshal(in.Bytes(), &l)
		switch {
		case number == 1 && (err != nil || l.Head == nil || l.Head.Format != exportFormat):
			return x, ErrNoExport
		case err != nil:
			return x, fmt.Errorf("line %d is damaged: %w", number, err)
		case !l.is(in.Bytes()):
			return x, fmt.Errorf("line %d is damaged: a field is repeated, unknown or written in another way", number)
		case number == 1:
			x.Trail, x.Key, x.Base = l.Head.Trail, l.Head.Key, l.Head.Base
		case l.Mark != nil:
			x.Marks = append(x.Marks, *l.Mark)
		case l.Checkpoint != "":
			x.Checkpoint = l.Checkpoint
		case l.Entry != nil:
			x.Entries = append(x.Entries, l.Entry.exported())
		default:
			return x, fmt.Errorf("line %d is neither an entry nor a checkpoint", number)
		}
	}
	if err := in.Err(); err != nil {
		return x, fmt.Errorf("read the audit trail: %w", err)
	}
	if x.Trail == "" {
		return x, ErrNoExport
	}
	return x, nil
}

func (l *entryLine) exported() Exported {
	return Exported{Hash: l.Hash, Entry: Entry{
		Seq: l.Seq, Time: l.Time, Who: l.Who, From: l.From, Method: l.Method, Verb: l.Verb, Kind: l.Kind,
		Namespace: l.Namespace, Name: l.Name, Region: l.Region, Request: l.Request, Outcome: l.Outcome, Reason: l.Reason,
		Before: l.Before, After: l.After,
	}}
}
