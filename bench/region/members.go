package region

import (
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/nusa-scheduler/nusa/bench/report"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/mint"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// members makes the identities of the servers, the simulated agents and the callers. A nil
// *members stands for a region without encryption.
type members struct {
	dir        string
	federation *mint.Federation

	mu      sync.Mutex
	sources map[string]*trust.Source // by path of the identity
}

// newMembers makes a federation whose identities are in folders under dir.
func newMembers(dir string) (*members, error) {
	f, err := mint.New(time.Now)
	return &members{dir: dir, federation: f, sources: map[string]*trust.Source{}}, err
}

// server writes the identity of a server, and returns its folder.
func (m *members) server(name string) (string, error) {
	path := "region/" + report.RegionName + "/server/" + name
	return m.folder(path), m.federation.Write(m.folder(path), path)
}

func (m *members) folder(path string) string {
	return filepath.Join(m.dir, "identities", strings.ReplaceAll(path, "/", "-"))
}

// operator returns the options of the connections of callers.
func (m *members) operator() ([]grpc.DialOption, error) { return m.dial("operator/bench") }

// agent returns the options of the connection of a node's agent.
func (m *members) agent(node string) ([]grpc.DialOption, error) {
	return m.dial("region/" + report.RegionName + "/agent/" + node)
}

// dial returns the options of a member's connection to a server of the region. The first call for
// a member makes its identity.
func (m *members) dial(path string) ([]grpc.DialOption, error) {
	if m == nil {
		return nil, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	source := m.sources[path]
	if source == nil {
		var err error
		if source, err = m.federation.Open(m.folder(path), path); err != nil {
			return nil, err
		}
		m.sources[path] = source
	}
	return []grpc.DialOption{source.Dial(identity.ServersOf(report.RegionName))}, nil
}
