package regional

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"google.golang.org/grpc"

	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	agentnodes "github.com/nusa-scheduler/nusa/regional/nodes"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

// standing is who leads, as far as this server knows.
type standing struct {
	mu      sync.Mutex
	lead    *leader // of this server; nil when it does not lead
	changed chan struct{}
}

func newStanding() standing { return standing{changed: make(chan struct{})} }

func (s *standing) leader() *leader {
	l, _ := s.now()
	return l
}

// now is the leader value of this server, and a channel that is closed when
// that, the region's master or its servers change.
func (s *standing) now() (*leader, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lead, s.changed
}

// set replaces the leader value and tells everybody.
func (s *standing) set(l *leader) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lead = l
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *standing) bump() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
}

// watch passes on that servers or the master changed, and binds the data
// directory to the cluster once that has a name.
func (s *server) watch(ctx context.Context) error {
	servers := s.gossip.Changed()
	bound := s.dir == nil
	for {
		view, committed := s.fsm.Watch()
		if id := view.Cluster().ID; !bound && id != "" {
			if err := s.dir.SetCluster(id); err != nil {
				return err // the log is not this directory's
			}
			bound = true
		}
		if bound {
			committed = nil // nothing to wait for
		}
		select {
		case <-ctx.Done():
			return nil
		case <-committed:
			continue
		case <-servers:
			servers = s.gossip.Changed()
			if err := s.known.save(s.gossip.Members(), s.addrs.Gossip); err != nil {
				s.cfg.Logger.Warn("cannot store the region's servers", "path", s.known.path, "error", err)
			}
		case <-s.quorum.LeaderChanged():
		}
		s.standing.bump()
		if l := s.standing.leader(); l != nil {
			l.agents.ServersChanged()
			l.uplink.ServersChanged()
		}
	}
}

// masterID is Raft's id of the master; empty when none is known.
func (s *server) masterID() string {
	_, id := s.quorum.LeaderWithID()
	return string(id)
}

// master is the gossip name and gRPC address of the master, if known.
func (s *server) master() (name, address string) {
	id := s.masterID()
	for _, m := range s.gossip.Members() {
		if m.ID == id && id != "" {
			return m.Name, m.GRPC
		}
	}
	return "", ""
}

// serverList is every server of the region that gossip knows.
func (s *server) serverList() *nusav1.ServerList {
	return &nusav1.ServerList{Servers: s.servers()}
}

// servers are the living ones, and the silent ones that still belong to the
// group.
func (s *server) servers() []*nusav1.RegionalServer {
	master := s.masterID()
	voters := map[string]bool{}
	for _, v := range s.quorum.GetConfiguration().Configuration().Servers {
		voters[string(v.ID)] = true
	}
	var out []*nusav1.RegionalServer
	for _, m := range s.gossip.Members() {
		if !m.Alive && !voters[m.ID] {
			continue // it was replaced
		}
		out = append(out, &nusav1.RegionalServer{
			Id: m.Name, Address: m.GRPC, ProbeAddress: m.Probe,
			Leader: m.ID == master && master != "", Healthy: m.Alive, Version: m.Version,
		})
	}
	return out
}

// currentAgents returns the agents of this server's term, nil while it is not the
// master, and a channel that is closed when the master or the servers change.
func (s *server) currentAgents() (*agentnodes.Agents, <-chan struct{}) {
	l, changed := s.standing.now()
	if l == nil {
		return nil, changed
	}
	return l.agents, changed
}

func (s *server) standbyMessage() *nusav1.MasterMessage {
	_, address := s.master()
	return &nusav1.MasterMessage{Kind: &nusav1.MasterMessage_Standby{
		Standby: &nusav1.Standby{MasterAddress: address, Servers: s.serverList()}}}
}

// ready says whether the server can do its work: it leads or knows who does.
func (s *server) ready() error {
	if s.standing.leader() != nil {
		return nil
	}
	if _, address := s.master(); address == "" || s.masterID() == s.id {
		return errors.New("the region has no master")
	}
	return nil
}

// forwardTo says who answers calls: this server, or the master's.
func (s *server) forwardTo() (*grpc.ClientConn, bool, error) {
	if s.standing.leader() != nil {
		return nil, true, nil
	}
	_, address := s.master()
	if address == "" || s.masterID() == s.id {
		return nil, false, errNoMaster
	}
	conn, err := s.masters.to(address)
	return conn, false, err
}

// connToMaster returns a connection to the master; nil when the master is unknown
// or this server.
func (s *server) connToMaster() *grpc.ClientConn {
	_, address := s.master()
	if address == "" || s.masterID() == s.id {
		return nil
	}
	conn, err := s.masters.to(address)
	if err != nil {
		return nil
	}
	return conn
}

// leadsConnected reports whether this server is the master, and whether it has a
// session with the global tier.
func (s *server) leadsConnected() (leads, connected bool) {
	l := s.standing.leader()
	return l != nil, l != nil && l.uplink.Connected()
}

// masterConn is the connection to the present master.
type masterConn struct {
	net network.Net

	mu      sync.Mutex
	address string
	conn    *grpc.ClientConn
}

// to is a connection to address; that to an earlier master is closed.
func (m *masterConn) to(address string) (*grpc.ClientConn, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conn != nil && m.address == address {
		return m.conn, nil
	}
	conn, err := serve.Dial(m.net, address, grpc.WithDefaultCallOptions(grpc.ForceCodecV2(wire.NewCodec())))
	if err != nil {
		return nil, fmt.Errorf("connect to the master at %s: %w", address, err)
	}
	if m.conn != nil {
		_ = m.conn.Close()
	}
	m.conn, m.address = conn, address
	return conn, nil
}

func (m *masterConn) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conn != nil {
		_ = m.conn.Close()
		m.conn = nil
	}
}

// readIdentity reads a server's id, or writes the fresh one. A server that was
// given another name keeps its id.
func readIdentity(path, fresh, name string) (string, error) {
	raw, err := os.ReadFile(path)
	if err == nil {
		if id := strings.TrimSpace(string(raw)); id != "" {
			return id, nil
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("identity of server %s: %w", name, err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return "", fmt.Errorf("identity of server %s: %w", name, err)
	}
	_, err = f.WriteString(fresh + "\n")
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return "", fmt.Errorf("identity of server %s: %w", name, err)
	}
	return fresh, nil
}
