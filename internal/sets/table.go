package sets

import (
	"errors"
	"sync"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// table is a table of edges whose memory is used again: each connected region sends and gets tables of all
// regions.
type table struct {
	edges *nusav1.EdgeTable
	// names maps the name of each region in earlier tables to itself, so that all tables share one string for a name.
	names map[string]string
}

const (
	// keptEdges is the number of edges up to which the memory of a table is used again. keptNames bounds names,
	// and keptName the length of a name in it.
	keptEdges = 4096
	keptNames = 2 * keptEdges
	keptName  = 128
	// regionsField is the number of EdgeTable.regions.
	regionsField = 1
)

// tables holds unused tables. Their lists are empty.
var tables = sync.Pool{New: func() any {
	return &table{edges: &nusav1.EdgeTable{}, names: map[string]string{}}
}}

// isSmall reports whether the memory of the table may be kept. In a malformed table each list has a length of its own.
func (t *table) isSmall() bool {
	e := t.edges
	return max(
		cap(e.Regions), cap(e.States), cap(e.P50), cap(e.P90), cap(e.P99), cap(e.Min), cap(e.Jitter),
		cap(e.Samples), cap(e.SetAside), cap(e.Loss), cap(e.LossOut), cap(e.LossBack), cap(e.Ages),
	) <= keptEdges
}

// put returns a table to tables.
func (t *table) put() {
	if !t.isSmall() {
		return
	}
	e := t.edges
	clear(e.Regions)
	setLength(0, &e.Regions)
	setLength(0, &e.States)
	setLength(0, &e.P50, &e.Samples, &e.SetAside, &e.Loss, &e.LossOut, &e.LossBack, &e.Ages)
	setLength(0, &e.P90, &e.P99, &e.Min, &e.Jitter)
	e.ProtoReflect().SetUnknown(nil)
	tables.Put(t)
}

// setLength sets the length of lists. The caller sets every item afterwards.
func setLength[V any](n int, lists ...*[]V) {
	for _, list := range lists {
		if n > cap(*list) {
			*list = make([]V, n)
		}
		*list = (*list)[:n]
	}
}

var errName = errors.New("the name of a region is not UTF-8")

// decode decodes an EdgeTable. The names of regions come first in the usual encoding. decode makes a string only
// for a name that no earlier table had.
func (t *table) decode(raw []byte) error {
	for {
		field, kind, n := protowire.ConsumeTag(raw)
		if n < 0 || field != regionsField || kind != protowire.BytesType {
			break // at the end, or an error that Unmarshal finds
		}
		name, size := protowire.ConsumeBytes(raw[n:])
		if size < 0 {
			break
		}
		known, ok := t.names[string(name)]
		if !ok {
			if !utf8.Valid(name) {
				return errName
			}
			if len(t.names) >= keptNames {
				clear(t.names)
			}
			known = string(name)
			if len(known) <= keptName {
				t.names[known] = known
			}
		}
		t.edges.Regions = append(t.edges.Regions, known)
		raw = raw[n+size:]
	}
	return proto.UnmarshalOptions{Merge: true}.Unmarshal(raw, t.edges)
}
