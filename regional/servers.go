package regional

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"google.golang.org/grpc"

	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/gossip"
	"github.com/nusa-scheduler/nusa/regional/nodes"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

// watchServers notifies the other parts when the region's servers or its master change. It
// also binds the data directory to the cluster once the log has the cluster's id.
func (s *server) watchServers(ctx context.Context) error {
	servers := s.gossip.Changed()
	bound := s.dir == nil
	for {
		view, committed := s.fsm.Watch()
		if id := view.Cluster().ID; !bound && id != "" {
			if err := s.dir.SetCluster(id); err != nil {
				return err // the log and the directory belong to different clusters
			}
			bound = true
		}
		if bound {
			committed = nil // the directory is bound, so commits do not matter
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
		s.leadership.changed.Notify()
		if m := s.leadership.master(); m != nil {
			m.ServersChanged()
		}
	}
}

// masterID returns Raft's id of the master. It is empty while no master is known.
func (s *server) masterID() string {
	_, id := s.quorum.LeaderWithID()
	return string(id)
}

// master returns the name and gRPC address of the master. Both are empty while no master is
// known.
func (s *server) master() (name, address string) {
	id := s.masterID()
	for _, m := range s.gossip.Members() {
		if m.ID == id && id != "" {
			return m.Name, m.GRPC
		}
	}
	return "", ""
}

// remoteMaster returns the gRPC address of the master. It is empty while no master is
// known, and when this server is the master.
func (s *server) remoteMaster() string {
	if s.masterID() == s.id {
		return ""
	}
	_, address := s.master()
	return address
}

// servers returns the living servers of the region, and the silent servers that are still
// members of the Raft group.
func (s *server) servers() []*nusav1.RegionalServer {
	return s.listServers(func(m gossip.Meta) string { return m.GRPC })
}

// agentServers returns servers with the addresses for agents.
func (s *server) agentServers() []*nusav1.RegionalServer {
	return s.listServers(func(m gossip.Meta) string { return cmp.Or(m.Agents, m.GRPC) })
}

func (s *server) listServers(address func(gossip.Meta) string) []*nusav1.RegionalServer {
	master := s.masterID()
	voters := map[string]bool{}
	for _, v := range s.quorum.GetConfiguration().Configuration().Servers {
		voters[string(v.ID)] = true
	}
	var out []*nusav1.RegionalServer
	for _, m := range s.gossip.Members() {
		if !m.Alive && !voters[m.ID] {
			continue // another server replaced it
		}
		out = append(out, &nusav1.RegionalServer{
			Id: m.Name, Address: address(m.Meta), ProbeAddress: m.Probe,
			Leader: m.ID == master && master != "", Healthy: m.Alive, Version: m.Version,
		})
	}
	return out
}

// featureLevel returns the least feature level of the region's servers. A voter that gossip
// does not know counts as level 0, because its version may be an earlier one.
func (s *server) featureLevel() uint32 {
	level := uint32(state.FeatureLevel)
	known := map[string]uint32{}
	for _, m := range s.gossip.Members() {
		known[m.ID] = m.Level
		if m.Alive {
			level = min(level, m.Level)
		}
	}
	for _, v := range s.quorum.GetConfiguration().Configuration().Servers {
		level = min(level, known[string(v.ID)])
	}
	return level
}

// standbyMessage returns the message that tells an agent the master's address and all
// servers.
func (s *server) standbyMessage() *nusav1.MasterMessage {
	list, address := s.agentServers(), ""
	for _, one := range list {
		if one.GetLeader() {
			address = one.GetAddress()
		}
	}
	return &nusav1.MasterMessage{Kind: &nusav1.MasterMessage_Standby{
		Standby: &nusav1.Standby{MasterAddress: address, Servers: &nusav1.ServerList{Servers: list}}}}
}

// currentAgents returns the agents of this server's term, nil while this server is not the
// master. The channel is closed when the master or the servers change.
func (s *server) currentAgents() (*nodes.Agents, <-chan struct{}) {
	t, changed := s.leadership.current()
	if t == nil {
		return nil, changed
	}
	return t.master.Agents, changed
}

// leadsConnected reports whether this server is the master, and whether it also has a
// session with the global tier.
func (s *server) leadsConnected() (leads, connected bool) {
	m := s.leadership.master()
	return m != nil, m != nil && m.Uplink.Connected()
}

// ready returns an error while the server cannot do its work, because the region has no
// known master, or because its certificate ends soon.
func (s *server) ready() error {
	if err := s.cfg.Identity.Ready(); err != nil {
		return err
	}
	if s.leadership.master() == nil && s.remoteMaster() == "" {
		return errors.New("the region has no master")
	}
	return nil
}

// forwardTo returns a connection to the master, or true when this server is the master.
func (s *server) forwardTo() (*grpc.ClientConn, bool, error) {
	if s.leadership.master() != nil {
		return nil, true, nil
	}
	address := s.remoteMaster()
	if address == "" {
		return nil, false, raftlog.ErrNoMaster
	}
	conn, err := s.masters.to(address)
	return conn, false, err
}

// connToMaster returns a connection to the master. It is nil while no master is known, when
// this server is the master, and when the connection fails.
func (s *server) connToMaster() *grpc.ClientConn {
	address := s.remoteMaster()
	if address == "" {
		return nil
	}
	conn, err := s.masters.to(address)
	if err != nil {
		return nil
	}
	return conn
}

// masterConn is the connection to the present master. It is safe for concurrent use.
type masterConn struct {
	net   network.Net
	creds grpc.DialOption

	mu      sync.Mutex
	address string
	conn    *grpc.ClientConn
}

// to returns a connection to address. It closes the connection to an earlier master.
func (m *masterConn) to(address string) (*grpc.ClientConn, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conn != nil && m.address == address {
		return m.conn, nil
	}
	conn, err := serve.Dial(m.net, address, m.creds, grpc.WithDefaultCallOptions(grpc.ForceCodecV2(wire.NewCodec())))
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
