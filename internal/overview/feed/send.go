package feed

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/nusa-scheduler/nusa/internal/overview"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// messageSize is about the size of a message. The text forms of HTTP are up to four times as
	// long.
	messageSize = 256 << 10
	// maxDue bounds the list of what is due.
	maxDue = 256
)

// values returns the messages of entries.
func values[T any](entries []*overview.Entry) []T {
	var out []T
	for _, e := range entries {
		if v, ok := e.Value.(T); ok {
			out = append(out, v)
		}
	}
	return out
}

// value returns the message of an entry, or nil.
func value[T any](e *overview.Entry) (none T) {
	if e == nil {
		return none
	}
	v, _ := e.Value.(T)
	return v
}

// toProto returns a message of the stream.
func toProto(m overview.Message) *nusav1.OverviewUpdate {
	out := &nusav1.OverviewUpdate{
		Reset_: m.Reset, Synced: m.Synced, Head: value[*nusav1.OverviewHead](m.Head), JobCounts: value[*nusav1.OverviewJobCounts](m.Counts),
		Regions: values[*nusav1.OverviewRegion](m.Regions), Nodes: values[*nusav1.OverviewNode](m.Nodes), Jobs: values[*nusav1.OverviewJob](m.Jobs),
		Columns: m.Columns,
	}
	for _, e := range m.Gone {
		out.RegionsRemoved = append(out.RegionsRemoved, e.Key)
	}
	for _, e := range m.NodesOff {
		out.NodesRemoved = append(out.NodesRemoved, e.Key)
	}
	for _, e := range m.JobsOff {
		namespace, name, region := overview.CutKey(e.Key)
		out.JobsRemoved = append(out.JobsRemoved, &nusav1.JobRef{Namespace: namespace, Name: name, Region: region})
	}
	for _, r := range m.Rows {
		out.Rows = append(out.Rows, rowToProto(r))
	}
	if m.Due != nil {
		due := values[*nusav1.OverviewDue](*m.Due)
		slices.SortStableFunc(due, func(a, b *nusav1.OverviewDue) int {
			return cmp.Or(a.GetAt().AsTime().Compare(b.GetAt().AsTime()), cmp.Compare(a.GetSubject(), b.GetSubject()))
		})
		out.Due = &nusav1.OverviewDueList{Due: due[:min(len(due), maxDue)]}
	}
	if m.Errors != nil {
		out.Errors = &nusav1.OverviewErrors{Errors: values[*nusav1.PartialError](*m.Errors)}
	}
	return out
}

func rowToProto(r overview.Row) *nusav1.OverviewRow {
	n := len(r.Cells)
	out := &nusav1.OverviewRow{
		From: uint32(r.From), P50: make([]byte, 2*n), P90: make([]byte, 2*n), P99: make([]byte, 2*n), Loss: make([]byte, n), State: make([]byte, n),
	}
	for _, to := range r.To {
		out.To = append(out.To, uint32(to))
	}
	for i, c := range r.Cells {
		binary.LittleEndian.PutUint16(out.P50[2*i:], c.P50)
		binary.LittleEndian.PutUint16(out.P90[2*i:], c.P90)
		binary.LittleEndian.PutUint16(out.P99[2*i:], c.P99)
		out.Loss[i], out.State[i] = c.Loss, c.State
	}
	return out
}
