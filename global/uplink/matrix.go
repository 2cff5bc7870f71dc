package uplink

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/topo"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

const (
	// matrixInterval is how often a region gets the compact matrix. maxMatrixAge is the greatest
	// age of the matrix when it is sent.
	matrixInterval = 5 * time.Minute
	maxMatrixAge   = time.Minute
	// firstMatrixReports is the number of report intervals after which a session gets its first
	// matrix. In that time the regions that connected together have sent their rows.
	firstMatrixReports = 3
	// minMatrices may be sent in each tick, so that the few regions of a small federation need not
	// wait. With many regions, each tick sends enough for all regions of earlier versions to get
	// one within matrixInterval. For 1,000 regions, each matrix is 2 MB.
	minMatrices = 4
	// matrixBytes bounds the mean bytes of whole matrices in a tick, for each region of the
	// federation. With 1,000 regions a matrix has half a megabyte, so seven hours pass until all
	// regions have one. That is enough: regions need the matrix only without a global tier, and
	// then they also ask each other.
	matrixBytes = 100
	// maxSince bounds how many messages with the changes since a version are kept.
	maxSince = 8
)

// columns holds unused columns. With 1,000 regions, a column takes 230 kB until it is encoded.
var columns = sync.Pool{New: func() any { return new([]topology.Edge) }}

// columnMessage returns the edges to the session's region that are newer than the last column that
// was sent. The first column has all edges. It returns nil if there are none. The lock is held.
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
			since = math.MinInt64 / 2 // a region of an earlier version keeps edges fresh only if they are sent again
		}
		c.columnAt = now
		column := st.Latency.Column(c.region, since, now)
		if column == nil {
			return nil
		}
		return &nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Column{Column: column}}
	}
	out := &nusav1.ColumnChanges{}
	if confirm || st.Latency.SetSince(c.region, since) { // unchanged edges are confirmed more rarely
		c.columnAt = now
		unused := columns.Get().(*[]topology.Edge)
		*unused = st.Latency.AppendColumn((*unused)[:0], c.region, since, now)
		if len(*unused) > 0 {
			c.edges = unused
		} else {
			columns.Put(unused)
		}
	}
	if confirm {
		if age, except, any := st.Latency.Confirmed(c.region, now); any {
			out.Confirmed, out.Unconfirmed = durationpb.New(age), except
		}
	}
	if c.edges == nil && out.GetConfirmed() == nil {
		return nil
	}
	out.Position = &nusav1.Position{Epoch: st.Epoch, Sequence: uint64(max(0, c.columnAt))}
	return &nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_ColumnChanges{ColumnChanges: out}}
}

// SendMatrix sends the whole compact matrix to some of the regions that have waited longest, and
// its changes to the regions that have it. Only the tick calls it.
func (s *Server) SendMatrix() {
	st := s.st
	st.Lock()
	now := st.Clock()
	var whole, missing, have []*session
	for _, c := range s.live {
		due := now-c.matrixAt >= matrixInterval || !c.matrixSent && now-c.matrixAt >= firstMatrixReports*s.ReportInterval
		switch {
		case c.known != nil && c.matrix != nil: // the session still has to send a matrix
		case c.known != nil && c.matrixVersion > 0:
			have = append(have, c)
		case !due:
		case c.known == nil:
			whole = append(whole, c)
		default:
			missing = append(missing, c)
		}
	}
	regions := len(st.Regions)
	update := len(have)+len(missing) > 0 && (s.matrix.Version == 0 || now-s.matrixAt >= matrixInterval)
	var view *topology.View
	if update || len(whole) > 0 {
		view = st.TopologyView()
	}
	st.Unlock()
	if update {
		names := view.Names()
		s.matrix.Update(names[:min(len(names), topo.MaxRegions)], topo.Medians(view))
		s.matrixAt, s.matrixWhole, s.matrixSince = now, nil, map[uint64]*nusav1.GlobalMessage{}
	}
	for _, c := range have {
		if update || c.matrixVersion < s.matrix.Version {
			s.sendMatrix(c, s.changesSince(c.matrixVersion), now)
		}
	}
	s.sendWhole(whole, view, regions, now)
	if len(missing) == 0 {
		return
	}
	if s.matrixWhole == nil {
		s.matrixWhole = s.matrixChanges(s.matrix.Whole())
	}
	slices.SortFunc(missing, waitedLonger)
	size := 1 + len(s.matrixWhole.GetMatrixChanges().GetValues())
	s.matrixCredit = min(s.matrixCredit+regions*matrixBytes, max(size, regions*matrixBytes))
	for _, c := range missing[:min(len(missing), s.matrixCredit/size)] {
		s.sendMatrix(c, s.matrixWhole, now)
		s.matrixCredit -= size
	}
}

// changesSince returns the message with the changes since a version. All sessions share it, because
// making it takes milliseconds and a hundred kilobytes.
func (s *Server) changesSince(version uint64) *nusav1.GlobalMessage {
	m := s.matrixSince[version]
	if m == nil {
		m = s.matrixChanges(s.matrix.Since(version))
		if len(s.matrixSince) < maxSince {
			s.matrixSince[version] = m
		}
	}
	return m
}

// matrixChanges returns a message with the given changes and the position of the present
// version.
func (s *Server) matrixChanges(c *nusav1.MatrixChanges) *nusav1.GlobalMessage {
	c.Position = &nusav1.Position{Epoch: s.st.Epoch, Sequence: s.matrix.Version}
	return &nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_MatrixChanges{MatrixChanges: c}}
}

// sendMatrix makes a session send a message of the matrix. If an older message still waits, it
// keeps that message: the changes in m apply only to a region that got the older one.
func (s *Server) sendMatrix(c *session, m *nusav1.GlobalMessage, now time.Duration) {
	s.st.Lock()
	defer s.st.Unlock()
	if c.matrix != nil {
		return
	}
	c.matrix, c.matrixSent, c.matrixAt = m, true, now
	if c.known != nil {
		c.matrixVersion = s.matrix.Version
	}
	c.wake()
}

// sendWhole sends the matrix to some regions of earlier versions.
func (s *Server) sendWhole(due []*session, view *topology.View, regions int, now time.Duration) {
	if len(due) == 0 {
		return
	}
	slices.SortFunc(due, waitedLonger)
	if s.compact == nil || now-s.compactAt >= maxMatrixAge {
		s.compact, s.compactAt = topo.Compact(view), now
	}
	most := max(minMatrices, 1+int(int64(regions)*int64(s.ReportInterval)/int64(matrixInterval)))
	message := &nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Matrix{Matrix: s.compact}}
	for _, c := range due[:min(len(due), most)] {
		s.sendMatrix(c, message, now)
	}
}

// waitedLonger orders sessions for the matrix: first the sessions whose regions have no matrix,
// then the others by the age of the matrix that was sent.
func waitedLonger(x, y *session) int {
	has := func(c *session) bool { return c.matrixSent || c.known.GetMatrix() != nil }
	if has(x) != has(y) {
		if has(x) {
			return 1
		}
		return -1
	}
	return cmp.Or(cmp.Compare(x.matrixAt, y.matrixAt), cmp.Compare(x.region, y.region))
}
