package uplink

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/accept"
	"github.com/nusa-scheduler/nusa/regional/regionlease"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

// leaseLevel is the least feature level, of the region and of the global tier, at which the
// region's log is bound to its federation and the region's lease is in use.
const leaseLevel = 1

// joinOf returns the command that stores the content of a welcome. An error means that the
// region must not use anything of the session.
//
// The command is nil while the log is not bound to a federation and a server of the region
// or of the global tier has an earlier version. A log that is bound accepts every active
// server that names the log's federation, even while a global server of an earlier version
// is running. The log counts as bound while a command of an earlier session that binds it is
// not committed yet, because it is committed before the orders of this session.
func (u *Uplink) joinOf(hello *nusav1.RegionHello, w *nusav1.GlobalWelcome) (*state.JoinFederation, error) {
	c := u.cfg.FSM.View().Cluster()
	bound := c.FederationID != "" || u.joining
	switch {
	case bound && w.GetFederationId() == "":
		return nil, fmt.Errorf("region %s belongs to federation %s, and the version of the active global server does not name its federation: upgrade that server",
			c.Region, c.FederationID)
	case !bound && (w.GetFederationId() == "" || w.GetFeatureLevel() < leaseLevel || hello.GetFeatureLevel() < leaseLevel):
		return nil, nil
	}
	join := &state.JoinFederation{
		FederationID: w.GetFederationId(), Term: w.GetLeadershipTerm().GetNumber(), Nonce: w.GetLeadershipTerm().GetNonce(),
		Fence: w.GetFence(), StoreRevision: w.GetStoreRevision(), Lease: w.GetLease().AsDuration(),
	}
	_, err := c.Joined(join)
	return join, joinError(err)
}

// joinError marks an error of JoinFederation that an operator must resolve.
func joinError(err error) error {
	if errors.Is(err, state.ErrOtherFederation) {
		return fmt.Errorf("%w: %w", errForeign, err)
	}
	return err
}

// newSession records that a session begins, and the length that the region's lease has in
// it.
func (u *Uplink) newSession(length time.Duration) {
	u.mu.Lock()
	u.lease.NewSession()
	u.refused = ""
	changed := length != u.length
	if changed {
		u.length, u.lengthSince = length, u.cfg.Clock()
	}
	u.mu.Unlock()
	if changed && u.LengthChanged != nil {
		u.LengthChanged()
	}
}

// LeaseLength returns the length of the region's lease in the latest session of this
// master, and since when all sessions have had that length. Both are 0 before the first
// session.
func (u *Uplink) LeaseLength() (length, since time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.length, u.lengthSince
}

// LeaseLeft returns the remaining time of the region's lease. 0: the region holds no lease.
func (u *Uplink) LeaseLeft() time.Duration { return u.leaseState().Left }

// LeaseMissing returns why the region holds no lease. It is empty when the region holds a
// lease. It is also empty when leases are not in use, because there is no global tier or a
// server has an earlier version.
func (u *Uplink) LeaseMissing() string {
	if u.cfg.FSM.View().Cluster().FederationID == "" {
		return ""
	}
	return u.leaseState().Why
}

// leaseState returns the state of the lease. When the region has a lease again, leaseState
// also calls LeaseReturned.
func (u *Uplink) leaseState() regionlease.State {
	now, log := u.cfg.Clock(), regionlease.BasisOf(u.cfg.FSM.View().Cluster())
	log.Planned = u.cfg.Planned()
	if log.Planned == (state.Position{}) {
		log.Planned.Epoch = log.Orders.Epoch // nothing is planned yet
	}
	u.mu.Lock()
	st := u.lease.At(now, log)
	u.mu.Unlock()
	if st.Returned {
		u.cfg.LeaseReturned()
	}
	return st
}

// CommitBlocked returns for how long the region has been unable to commit. It is 0 while
// the region can commit.
func (u *Uplink) CommitBlocked() time.Duration {
	return regionlease.CommitBlocked(u.cfg.Log.Waited())
}

// join commits the content of the welcome. Before that, the region uses nothing else of the
// session.
func (ss *session) join() error {
	ctx := ss.stream.Context() // ends with the stream
	cfg := &ss.u.cfg
	if ss.welcome != nil {
		if err := ss.commitWelcome(ctx); err != nil {
			return err
		}
	}
	ss.joined.Store(true)
	close(ss.hasJoined)
	cfg.Log.Wake() // slots that fit nowhere may be returned now
	ss.wakeSender()
	return nil
}

// commitWelcome commits the welcome, unless the log has the same content already. An earlier session
// may have proposed another welcome that is not committed yet. Then the log may change, so this
// welcome has to follow.
func (ss *session) commitWelcome(ctx context.Context) error {
	cfg := &ss.u.cfg
	view := cfg.FSM.View().Cluster()
	if next, err := view.Joined(ss.welcome); err == nil && next == view && !ss.u.joining {
		return nil
	}
	p, err := cfg.Log.ProposeQueued(ctx, state.Command{JoinFederation: ss.welcome})
	if err == nil {
		ss.u.joining = true
		_, err = p.Wait(ctx)
	}
	if err != nil {
		return joinError(fmt.Errorf("commit the welcome: %w", err))
	}
	ss.u.joining = false
	return nil
}

// checkCluster returns an error, which ends the session, when the region's feature level has
// risen since the hello, or when a rebind has bound the region to another federation since the
// welcome.
func (ss *session) checkCluster(time.Time) (time.Time, error) {
	switch c := ss.u.cfg.FSM.View().Cluster(); {
	case c.FeatureLevel > ss.level:
		return time.Time{}, errLevel
	case ss.welcome != nil && c.FederationID != ss.welcome.FederationID:
		return time.Time{}, errRebound
	}
	return time.Time{}, nil
}

// verifyEach verifies this server's leadership before each request for the region's lease,
// until ctx ends. It has a goroutine of its own, because the sender must not wait for a
// quorum.
func (ss *session) verifyEach(ctx context.Context) {
	tick := time.NewTicker(regionlease.Pause(ss.lease))
	defer tick.Stop()
	for {
		if err := ss.u.cfg.Verifier.Wait(ctx); err != nil {
			return // the term ends
		}
		ss.update(func() { ss.leaseDue = true })
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// sendLease requests the region's lease whenever verifyEach has verified the leadership.
func (ss *session) sendLease(time.Time) (time.Time, error) {
	if !ss.clear(&ss.leaseDue) {
		return time.Time{}, nil
	}
	u := ss.u
	request := &nusav1.LeaseRequest{}
	u.mu.Lock()
	request.Id, request.Granted = u.lease.Request(u.cfg.Clock()), u.lease.Latest()
	u.mu.Unlock()
	if blocked := u.CommitBlocked(); blocked > 0 {
		request.CommitBlocked = durationpb.New(blocked)
	}
	if ss.confirm {
		n, complete := accept.Unordered(u.cfg.FSM.View())
		request.Confirmed, request.Unordered = n == 0 && complete && !u.cfg.LogSuspect(), int32(min(n, math.MaxInt32))
	}
	return time.Time{}, ss.send(&nusav1.RegionMessage{
		AppliedIndex: u.cfg.FSM.View().Index(), Kind: &nusav1.RegionMessage_Lease{Lease: request},
	})
}

// leaseGranted records a grant. A grant of a global server of an earlier version has no
// basis, so it does not count.
func (ss *session) leaseGranted(g *nusav1.LeaseGrant) {
	u := ss.u
	u.mu.Lock()
	u.lease.Granted(regionlease.Grant{
		ID: g.GetId(), Duration: min(g.GetDuration().AsDuration(), ss.lease),
		Basis: regionlease.Basis{
			Term: g.GetLeadershipTerm().GetNumber(), Nonce: g.GetLeadershipTerm().GetNonce(),
			Fence: g.GetFence(), Incarnation: g.GetIncarnation(), Orders: wire.PositionFromProto(g.GetOrders()),
		},
	})
	u.mu.Unlock()
	u.leaseState()
}
