package uplink

import (
	"cmp"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/topo"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// matrixInterval is how often a region gets the compact matrix, and
	// maxMatrixAge how old the matrix may be when it is sent.
	matrixInterval = 5 * time.Minute
	maxMatrixAge   = time.Minute
	// firstMatrixReports is after how many report intervals a session gets its
	// first matrix. In that time the regions that connected together with it have
	// sent their rows.
	firstMatrixReports = 3
	// minMatrices may be sent in one tick, so that the few regions of a small
	// federation need not wait. With many regions, each tick sends so many that all
	// regions get one within matrixInterval: each is 2 MB for 1,000 regions.
	minMatrices = 4
)

// columnMessage returns the edges to the session's region that are newer than the
// latest column. The first column has all edges. It returns nil for none. The lock
// is held.
func (c *session) columnMessage() *nusav1.GlobalMessage {
	unsent := c.shared.Unsent.Column
	confirm := c.server.confirms != c.confirmed
	if !unsent && !confirm {
		return nil
	}
	c.shared.Unsent.Column, c.confirmed = false, c.server.confirms
	st, since := c.server.st, c.columnAt
	now := st.Clock()
	if c.known == nil {
		if confirm {
			since = math.MinInt64 / 2 // a region of an earlier version learns only so that edges are not stale
		}
		c.columnAt = now
		column := st.Latency.Column(c.region, since, now)
		if column == nil {
			return nil
		}
		return &nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Column{Column: column}}
	}
	out := &nusav1.ColumnChanges{}
	if confirm || st.Latency.SetSince(c.region, since) { // edges become stale far apart
		c.columnAt = now
		c.edges = st.Latency.ColumnEdges(c.region, since, now)
	}
	if confirm {
		if age, except, any := st.Latency.Confirmed(c.region, now); any {
			out.Confirmed, out.Unconfirmed = durationpb.New(age), except
		}
	}
	if len(c.edges) == 0 && out.GetConfirmed() == nil {
		return nil
	}
	out.Position = &nusav1.Position{Epoch: st.Epoch, Sequence: uint64(max(0, c.columnAt))}
	return &nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_ColumnChanges{ColumnChanges: out}}
}

// SendMatrix sends the compact matrix to some of the regions that have waited
// longest. Only the tick calls it.
func (s *Server) SendMatrix() {
	st := s.st
	st.Lock()
	now := st.Clock()
	var due []*session
	for _, c := range s.live {
		if now-c.matrixAt >= matrixInterval || !c.matrixSent && now-c.matrixAt >= firstMatrixReports*s.ReportInterval {
			due = append(due, c)
		}
	}
	most := max(minMatrices, 1+int(int64(len(st.Regions))*int64(s.ReportInterval)/int64(matrixInterval)))
	view := st.TopologyView()
	st.Unlock()
	if len(due) == 0 {
		return
	}
	slices.SortFunc(due, func(x, y *session) int {
		if x.matrixSent != y.matrixSent {
			if x.matrixSent {
				return 1
			}
			return -1
		}
		return cmp.Or(cmp.Compare(x.matrixAt, y.matrixAt), cmp.Compare(x.region, y.region))
	})
	if s.compact == nil || now-s.compactAt >= maxMatrixAge {
		s.compact, s.compactAt = topo.Compact(view), now
	}
	message := &nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Matrix{Matrix: s.compact}}
	st.Lock()
	defer st.Unlock()
	for _, c := range due[:min(len(due), most)] {
		c.matrix, c.matrixSent, c.matrixAt = message, true, now
		c.wake()
	}
}
