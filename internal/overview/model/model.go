// Package model is what a reader of Overview.Watch knows: it applies the messages of the stream.
package model

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"
	"strings"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Model is the state of a reader. The zero value knows nothing.
type Model struct {
	Head    *nusav1.OverviewHead
	Counts  *nusav1.OverviewJobCounts
	Due     []*nusav1.OverviewDue
	Errors  []*nusav1.PartialError
	Columns []string
	// Synced: a whole snapshot has arrived.
	Synced bool

	regions map[string]*nusav1.OverviewRegion
	nodes   map[string]*nusav1.OverviewNode
	jobs    map[string]*nusav1.OverviewJob
	edges   map[[2]uint32]Edge
}

// Edge is an entry of the latency matrix in the units of nusav1.OverviewRow.
type Edge struct {
	P50, P90, P99 uint16
	Loss, State   uint8
}

func keyOf(j *nusav1.JobRef) string {
	return j.GetNamespace() + "\x00" + j.GetName() + "\x00" + j.GetRegion()
}

// Apply applies a message of the stream.
func (m *Model) Apply(u *nusav1.OverviewUpdate) {
	if u.GetReset_() || m.regions == nil {
		*m = Model{regions: map[string]*nusav1.OverviewRegion{}, nodes: map[string]*nusav1.OverviewNode{}, jobs: map[string]*nusav1.OverviewJob{}, edges: map[[2]uint32]Edge{}}
	}
	m.Synced = m.Synced || u.GetSynced()
	if u.Head != nil {
		m.Head = u.GetHead()
	}
	if u.JobCounts != nil {
		m.Counts = u.GetJobCounts()
	}
	if u.Due != nil {
		m.Due = u.GetDue().GetDue()
	}
	if u.Errors != nil {
		m.Errors = u.GetErrors().GetErrors()
	}
	for _, name := range u.GetRegionsRemoved() {
		delete(m.regions, name)
	}
	for _, r := range u.GetRegions() {
		m.regions[r.GetName()] = r
	}
	for _, id := range u.GetNodesRemoved() {
		delete(m.nodes, id)
	}
	for _, n := range u.GetNodes() {
		m.nodes[n.GetId()] = n
	}
	for _, j := range u.GetJobsRemoved() {
		delete(m.jobs, keyOf(j))
	}
	for _, j := range u.GetJobs() {
		m.jobs[keyOf(j.GetJob())] = j
	}
	if len(u.GetColumns()) > 0 {
		m.Columns, m.edges = u.GetColumns(), map[[2]uint32]Edge{}
	}
	for _, r := range u.GetRows() {
		m.row(r)
	}
}

func (m *Model) row(r *nusav1.OverviewRow) {
	for i := range r.GetState() {
		to := uint32(i)
		if len(r.GetTo()) > 0 {
			to = r.GetTo()[i]
		}
		m.edges[[2]uint32{r.GetFrom(), to}] = Edge{
			P50: binary.LittleEndian.Uint16(r.GetP50()[2*i:]), P90: binary.LittleEndian.Uint16(r.GetP90()[2*i:]), P99: binary.LittleEndian.Uint16(r.GetP99()[2*i:]),
			Loss: r.GetLoss()[i], State: r.GetState()[i],
		}
	}
}

// Edge returns an entry of the matrix. false: it is not known.
func (m *Model) Edge(from, to string) (Edge, bool) {
	e, ok := m.edges[[2]uint32{uint32(slices.Index(m.Columns, from)), uint32(slices.Index(m.Columns, to))}]
	return e, ok
}

// Regions returns the regions, sorted by name.
func (m *Model) Regions() []*nusav1.OverviewRegion {
	return slices.SortedFunc(maps.Values(m.regions), func(a, b *nusav1.OverviewRegion) int { return strings.Compare(a.GetName(), b.GetName()) })
}

// Nodes returns the nodes, sorted by name and id.
func (m *Model) Nodes() []*nusav1.OverviewNode {
	return slices.SortedFunc(maps.Values(m.nodes), func(a, b *nusav1.OverviewNode) int {
		return cmp.Or(strings.Compare(a.GetName(), b.GetName()), strings.Compare(a.GetId(), b.GetId()))
	})
}

// Jobs returns the jobs in their order.
func (m *Model) Jobs() []*nusav1.OverviewJob {
	return slices.SortedFunc(maps.Values(m.jobs), func(a, b *nusav1.OverviewJob) int { return strings.Compare(keyOf(a.GetJob()), keyOf(b.GetJob())) })
}

// Region returns a region, or nil.
func (m *Model) Region(name string) *nusav1.OverviewRegion { return m.regions[name] }
