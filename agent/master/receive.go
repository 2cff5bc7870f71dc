package master

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/agent/engine"
	"github.com/nusa-scheduler/nusa/agent/lease"
	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/internal/tunnel"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// handle handles one message of the server. It ignores kinds of messages that this version
// does not know.
func (s *session) handle(m *nusav1.MasterMessage) error {
	switch s.state {
	case greeting:
		s.state = standingBy // until a welcome comes
	case active:
		s.watchdog.Reset(s.silence)
	}
	// A server that knows no master does not help yet, so the agent continues to warn.
	if standby := m.GetStandby(); !s.reached && (standby == nil || standby.GetMasterAddress() != "") {
		s.reached = true
		s.pool.contact.greet(s.addr)
	}
	switch k := m.GetKind().(type) {
	case *nusav1.MasterMessage_Welcome:
		return s.welcome(k.Welcome)
	case *nusav1.MasterMessage_Standby:
		return s.standby(k.Standby)
	case *nusav1.MasterMessage_Refused:
		return &refusalError{message: k.Refused.GetMessage(), permanent: k.Refused.GetPermanent()}
	case *nusav1.MasterMessage_Servers:
		s.pool.setServers(k.Servers)
		s.cfg.Orders.Set(k.Servers.GetKeys())
	case *nusav1.MasterMessage_Lease:
		return s.granted(k.Lease)
	case *nusav1.MasterMessage_Orders:
		return s.orders(k.Orders)
	case *nusav1.MasterMessage_ReportsAck:
		s.cfg.Reports.acknowledge(positionFromProto(k.ReportsAck))
	case *nusav1.MasterMessage_Tunnel:
		s.openTunnel(k.Tunnel.GetId())
	}
	return nil
}

// welcome makes this session the one with the master.
func (s *session) welcome(w *nusav1.MasterWelcome) error {
	restored, err := s.pool.activate(s, w)
	if err != nil {
		return err
	}
	if !s.cfg.Engine.NewSession(s.ctx, restored) {
		return context.Cause(s.ctx)
	}
	s.pool.setServers(w.GetServers())
	s.cfg.Orders.Set(w.GetServers().GetKeys())
	s.state = active
	s.silence = positiveOr(w.GetLease().AsDuration(), defaultLease)
	s.watchdog.Stop()
	s.watchdog = time.AfterFunc(s.silence, func() { s.end(fmt.Errorf("%w for %s", errSilent, s.silence)) })
	s.cfg.Reports.acknowledge(positionFromProto(w.GetReports())) // the last acknowledgement may have been lost
	s.cursor = s.cfg.Reports.cursor(positionFromProto(w.GetReports()))
	s.log.Info("connected to the master", "term", w.GetTerm(), "incarnation", w.GetIncarnation(), "session", w.GetSession(), "protocol", w.GetProtocol())
	s.group.Go(func() error { return s.measure(positiveOr(w.GetStatsInterval().AsDuration(), defaultStats)) })
	if s.cfg.Discover != nil {
		s.group.Go(func() error {
			s.cfg.Discover(s.ctx, s.discovery)
			return nil
		})
	}
	// The reports are sent before the lease request. A disconnected node becomes ready at
	// its first lease request, and the master then uses the reports that it has.
	if err := s.sendReports(); err != nil {
		return err
	}
	return s.requestLease()
}

// positiveOr returns d, or otherwise if the server sent no d.
func positiveOr(d, otherwise time.Duration) time.Duration {
	if d <= 0 {
		return otherwise
	}
	return d
}

// standby handles the message that the server is not the master. The session continues. It
// ends if this slot itself must connect to the master, because the other slot cannot.
func (s *session) standby(m *nusav1.Standby) error {
	s.watchdog.Stop()
	s.renewal.Stop()
	s.pool.setServers(m.GetServers())
	if s.state == active {
		s.state = standingBy
		s.pool.deactivate(s)
		s.pool.setMaster(s.slot, m.GetMasterAddress())
		return errMove // the server treats this stream as an active session, so a new one is needed
	}
	s.state = standingBy
	if m.GetMasterAddress() == s.addr {
		s.state = elected
	}
	if s.pool.setMaster(s.slot, m.GetMasterAddress()) {
		return errMove
	}
	if m.GetMasterAddress() == "" && !s.pool.Connected() {
		s.watchdog = time.AfterFunc(noMasterLimit, func() { s.end(fmt.Errorf("%w for %s", errNoMaster, noMasterLimit)) })
	}
	return nil
}

func (s *session) granted(g *nusav1.LeaseGrant) error {
	if s.state != active {
		return nil
	}
	s.latestGrant = g.GetId()
	next, ok := s.cfg.Engine.LeaseGranted(s.ctx, lease.Grant{
		ID: g.GetId(), Node: g.GetDuration().AsDuration(), Region: g.GetRegionLeft().AsDuration(), Continue: g.GetContinueOnly(),
	}, s.silence/3)
	if !ok {
		return context.Cause(s.ctx)
	}
	s.renewal.Reset(next)
	return nil
}

// orders handles a batch of orders. The message after a complete and stored change
// acknowledges the change.
func (s *session) orders(m *nusav1.AllocOrders) error {
	if s.state != active {
		return nil
	}
	b := link.Batch[*nusav1.AllocOrder]{Full: m.GetFull(), Last: m.GetLast(), Removed: m.GetRemoved(), Position: positionFromProto(m.GetPosition())}
	for _, o := range m.GetOrders() {
		b.Items = append(b.Items, link.Item[*nusav1.AllocOrder]{Key: o.GetAllocation().GetId(), Value: o})
	}
	var known []string
	if b.Full && b.Last {
		var err error
		known, err = s.cfg.Engine.Known(s.ctx)
		if err != nil {
			return err
		}
	}
	change, complete, err := s.inbox.Add(b, slices.Values(known))
	if err != nil || !complete {
		return err
	}
	err = s.cfg.Engine.Apply(s.ctx, change, func() bool { return s.pool.isActive(s) })
	if errors.Is(err, engine.ErrNotStored) {
		return nil // not acknowledged
	}
	if err != nil {
		return err
	}
	s.pool.setPosition(change.Position)
	s.stored = positionToProto(change.Position)
	if !slices.ContainsFunc(change.Upserts, boundByRegion) {
		return nil
	}
	// This change may be the first one with an order that needs the region's lease.
	next, ok := s.cfg.Engine.Renewal(s.ctx, s.silence/3)
	if !ok {
		return context.Cause(s.ctx)
	}
	s.renewal.Reset(next)
	return nil
}

func boundByRegion(i link.Item[*nusav1.AllocOrder]) bool {
	b := i.Value.GetBinding()
	return b == nusav1.LeaseBinding_LEASE_BINDING_REGION || b == nusav1.LeaseBinding_LEASE_BINDING_BOTH
}

// openTunnel opens a tunnel that the server requested. If that fails, the caller in the
// region gets no response.
func (s *session) openTunnel(id string) {
	s.group.Go(func() error {
		err := tunnel.Answer(s.ctx, func(ctx context.Context) (tunnel.ClientStream, error) { return s.client.Tunnel(ctx) }, id, s.pool.tunnels)
		if err != nil && s.ctx.Err() == nil {
			s.log.Warn("tunnel failed", "error", err)
		}
		return nil
	})
}
