package global

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/wait"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/enroll"
	"github.com/nusa-scheduler/nusa/security/member"
	"github.com/nusa-scheduler/nusa/security/pki"
)

const (
	// holdEvery is how often a server looks whether it has other roots than the store says that it
	// has. reloadEvery is how often it reads the roots and rings even if no change was noticed.
	holdEvery, reloadEvery = time.Second, time.Minute
	// identityPrefix is what the keys of the root and the rings begin with.
	identityPrefix = recordRoot + "identity/"
)

// rotating is the part of a server that follows changes of the root and of rings of keys.
type rotating struct {
	goals atomic.Pointer[keyGoals]
	// orders are for the identities of this server.
	orders member.Orders
	// etcdRoots are the roots that the embedded etcd trusts until this server is restarted.
	etcdRoots []string
	// held is what the store says that this server has.
	held *nusav1.KeyState
}

// keyGoals are what the members of the federation should have.
type keyGoals struct {
	// all is for regions without a ring of their own. nil: nothing.
	all *nusav1.KeyGoal
	of  map[string]*nusav1.KeyGoal
}

// region returns what the members of a region should have, or nil. Equal results are the same
// pointer.
func (g *keyGoals) region(name string) *nusav1.KeyGoal {
	if g == nil {
		return nil
	}
	if own := g.of[name]; own != nil {
		return own
	}
	return g.all
}

// reuse takes the goals of an earlier read that are the same, so that no region gets them again.
func (g *keyGoals) reuse(earlier *keyGoals) {
	if earlier == nil {
		return
	}
	if proto.Equal(g.all, earlier.all) {
		g.all = earlier.all
	}
	for region, goal := range g.of {
		if old := earlier.of[region]; old != nil && proto.Equal(goal, old) {
			g.of[region] = old
		}
	}
}

// goalsOf returns the goals for the root and the rings of the store.
func goalsOf(root *enroll.Root, probes *nusav1.KeyRingRecord, gossip map[string]*nusav1.KeyRingRecord) *keyGoals {
	out := &keyGoals{of: map[string]*nusav1.KeyGoal{}}
	all := root.Goal()
	if len(probes.GetKeys()) > 0 {
		all = withRing(all, probes, func(want *nusav1.KeyState, ids []string) { want.Probe = ids })
	}
	out.all = all
	for region, ring := range gossip {
		out.of[region] = withRing(all, ring, func(want *nusav1.KeyState, ids []string) { want.Gossip = ids })
	}
	return out
}

// withRing returns a goal that also has a ring. Members need the shorter one of the two spreads.
func withRing(goal *nusav1.KeyGoal, ring *nusav1.KeyRingRecord, set func(*nusav1.KeyState, []string)) *nusav1.KeyGoal {
	out := &nusav1.KeyGoal{Want: &nusav1.KeyState{}, Spread: ring.GetSpread()}
	if goal != nil {
		out = proto.CloneOf(goal)
		out.Spread = durationpb.New(min(goal.GetSpread().AsDuration(), ring.GetSpread().AsDuration()))
	}
	out.Version += ring.GetVersion()
	set(out.GetWant(), enroll.KeyIDs(ring.GetKeys()))
	return out
}

// followKeys follows changes of the root and of the rings until ctx ends.
func followKeys(ctx context.Context, s *server) error {
	if s.cfg.Identity == nil {
		<-ctx.Done()
		return nil
	}
	changed := make(chan struct{}, 1)
	var watching sync.WaitGroup
	defer watching.Wait()
	watch := func(revision int64) (stop func()) {
		ctx, cancel := context.WithCancel(ctx)
		watching.Go(func() { watchKeys(ctx, s.store, revision, changed) })
		return cancel
	}
	stop := func() {}
	defer func() { stop() }()
	next := time.Time{}
	for range wait.Ticks(ctx, holdEvery) {
		noticed := false
		select {
		case <-changed:
			noticed = true
		default:
		}
		if now := time.Now(); noticed || !now.Before(next) {
			stop()
			revision, err := loadKeys(ctx, s)
			if err != nil {
				s.log.Debug("cannot read the roots and keys of the federation yet", "error", err)
				next = time.Time{} // a change that was noticed is not lost
				continue
			}
			next, stop = now.Add(reloadEvery), watch(revision)
		}
		if err := noteHeld(ctx, s); err != nil {
			s.log.Debug("cannot store yet which roots this server has", "error", err)
		}
	}
	return nil
}

// watchKeys reports a change of the root or of a ring after a revision, or the end of the watch. It
// runs until ctx ends, or until it has reported.
func watchKeys(ctx context.Context, st store.Store, after int64, changed chan<- struct{}) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	_ = st.Watch(ctx, identityPrefix, after, func(events []store.Event) error {
		if slices.ContainsFunc(events, func(e store.Event) bool { return isKeys(e.Key) }) {
			select {
			case changed <- struct{}{}:
			default:
			}
			cancel()
		}
		return nil
	})
}

// isKeys reports whether a key is that of the root or of a ring.
func isKeys(key string) bool {
	rest, ok := strings.CutPrefix(key, recordRoot)
	return ok && (rest == enroll.AuthorityKey || strings.HasPrefix(rest, enroll.RingPrefix))
}

// loadKeys reads the root and the rings. It returns the revision after which a watch begins.
func loadKeys(ctx context.Context, s *server) (revision int64, err error) {
	r := records{s.store, s.active.Load}
	probes, gossip := &nusav1.KeyRingRecord{}, map[string]*nusav1.KeyRingRecord{}
	revision, err = s.store.List(ctx, recordRoot+enroll.RingPrefix, func(kv store.KV) error {
		ring := &nusav1.KeyRingRecord{}
		if err := proto.Unmarshal(kv.Value, ring); err != nil {
			return err
		}
		rest := kv.Key[len(recordRoot):]
		if rest == enroll.RingKey(enroll.ProbeRing, "") {
			probes = ring
		} else if region, ok := strings.CutPrefix(rest, enroll.RingKey(enroll.GossipRing, "")); ok {
			gossip[region] = ring
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	given, err := s.issuing.given()
	if err != nil {
		s.log.Warn("cannot read the files of --ca-cert and --ca-key", "error", err)
	}
	root, err := enroll.ReadRoot(ctx, r, given)
	if err != nil {
		return 0, err
	}
	goals := goalsOf(root, probes, gossip)
	goals.reuse(s.rotating.goals.Load())
	s.rotating.goals.Store(goals)
	if root != nil && s.issuing != nil {
		s.issuing.now.Store(root)
		if own := root.Goal(); own != nil {
			own.Spread = nil // few servers need no spread
			s.rotating.orders.Set(own)
		}
	}
	if t := s.active.Load(); t != nil {
		t.uplink.WakeAll()
	}
	return revision, nil
}

// noteHeld stores which roots this server has, if the store has something else.
func noteHeld(ctx context.Context, s *server) error {
	if root := s.issuing.present(); root == nil || root.State.Version == 0 {
		return nil // no server asks
	}
	has, err := s.rotating.orders.Has(s.cfg.Identity)
	if err != nil {
		return err
	}
	has.EtcdRoots = s.rotating.etcdRoots
	msg := enroll.StateToProto(has)
	if proto.Equal(msg, s.rotating.held) {
		return nil
	}
	value, err := proto.Marshal(&nusav1.KeyHolderRecord{Name: s.cfg.Name, Has: msg, At: timestamppb.Now()})
	if err != nil {
		return err
	}
	_, err = s.store.Txn(ctx, nil, []store.Op{store.Put(recordRoot+enroll.HolderPrefix+s.cfg.Name, value)})
	if err == nil {
		s.rotating.held = msg
	}
	return err
}

// rootsAtStart notes which roots the embedded etcd of this server trusts until a restart.
func rootsAtStart(s *server) {
	if s.cfg.Identity == nil || len(s.cfg.Etcd.InitialCluster) == 0 {
		return
	}
	if roots, err := pki.NewRoots(s.cfg.Identity.Roots()...); err == nil {
		s.rotating.etcdRoots = roots.Fingerprints()
	}
}
