package audit

import (
	"encoding/binary"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/tlog"
)

// The outcomes of an action.
const (
	// Done: the change is stored.
	Done = "done"
	// Started: an exec session, a log read, or a change that a region carries out begins. The entry
	// is durable before that begins. The region's own trail has the result of a change.
	Started = "started"
	// Denied: the caller may not do this.
	Denied = "denied"
)

// Outcomes returns all outcomes.
func Outcomes() []string { return []string{Done, Started, Denied} }

// Call says who makes a request: see Entry.
type Call struct{ Who, From, Method, Request string }

// Entry is one line of a trail: who did what. An entry never contains a secret. Before and After
// are hashes.
type Entry struct {
	// Seq is the number of the entry in its trail, from 1.
	Seq  int64
	Time time.Time
	// Who is the identity of the caller, or the server that acted by itself. Empty: the connection
	// had no identity. From is the caller's address.
	Who, From string
	// Method is the called method, such as "Jobs/Submit". Verb and Kind say what was done to what
	// kind of object.
	Method, Verb, Kind      string
	Namespace, Name, Region string
	// Request is the id of the request.
	Request string
	Outcome string
	// Reason says more in one line, for example the version of a job, or why a region is lost.
	Reason string
	// Before and After are hashes of the object. Empty: there was no object, or it is not hashed.
	Before, After []byte
}

// By returns the entry of a call.
func (e Entry) By(c Call) Entry {
	e.Who, e.From, e.Method, e.Request = c.Who, c.From, c.Method, c.Request
	return e
}

// canonicalForm is the first byte of the canonical form. A later form has another byte.
const canonicalForm = 1

// maxText bounds each text of an entry, in bytes.
const maxText = 512

// Bounded returns an entry whose texts are valid and not too long, and whose time is that of the
// canonical form.
func (e Entry) Bounded() Entry {
	for _, text := range e.texts() {
		*text = strings.ToValidUTF8(*text, "?")
		if len(*text) > maxText {
			*text = strings.ToValidUTF8((*text)[:maxText], "")
		}
	}
	e.Time = time.Unix(0, e.Time.UnixNano()).UTC()
	return e
}

// texts returns all texts of the entry, in the order of the canonical form.
func (e *Entry) texts() []*string {
	return []*string{
		&e.Who, &e.From, &e.Method, &e.Verb, &e.Kind, &e.Namespace, &e.Name, &e.Region, &e.Request, &e.Outcome, &e.Reason,
	}
}

// appendCanonical appends the bytes that the hash of the entry covers. Different entries have
// different bytes.
func (e *Entry) appendCanonical(b []byte) []byte {
	b = append(b, canonicalForm)
	b = binary.AppendVarint(b, e.Seq)
	b = binary.AppendVarint(b, e.Time.UnixNano())
	for _, text := range e.texts() {
		b = append(binary.AppendUvarint(b, uint64(len(*text))), *text...)
	}
	for _, hash := range [][]byte{e.Before, e.After} {
		b = append(binary.AppendUvarint(b, uint64(len(hash))), hash...)
	}
	return b
}

// Hash is the hash of an entry or of a tree.
type Hash = tlog.Hash

// Hash returns the hash of the entry.
func (e *Entry) Hash() Hash {
	var buffer [512]byte
	return tlog.RecordHash(e.appendCanonical(buffer[:0]))
}
